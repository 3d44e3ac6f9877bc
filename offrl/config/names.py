# ruff: noqa: F401
"""The names that ``offrl.config`` exports."""

from offrl.config.algo import AlgoConfig, LearningRateConfig, OptimConfig, RegularizationConfig
from offrl.config.build import (
    config_factory,
    config_from_content,
    stored_config,
    without_pretrained,
)
from offrl.config.online import OnlineConfig
from offrl.config.schema import (
    Config,
    EncoderConfig,
    HierarchyObservationConfig,
    ObservationConfig,
    RolloutConfig,
)
from offrl.config.section import (
    Bounds,
    Count,
    FreeMap,
    KeyLists,
    Map,
    MustBe,
    NonNegative,
    Positive,
    Section,
    Share,
    Steps,
)
from offrl.config.train import ActionConfig, EMAConfig, RewardsConfig, TrainConfig
