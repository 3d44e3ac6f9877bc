# ruff: noqa: F401
"""Typed configs with robomimic's sections, key names and defaults.

``config_factory("bc", {"train": {"batch_size": 256}})`` gives the defaults of an algorithm with
overrides laid over them. Every key is checked: a wrong type, an unknown key or contradictory
switches raise ``ValueError`` naming the dotted path, what is allowed and the nearest known key.
A config knows no behaviour.
"""

from offrl.config.algo import AlgoConfig, LearningRateConfig, OptimConfig, RegularizationConfig
from offrl.config.build import config_factory, config_from_content, without_pretrained
from offrl.config.experiment import RolloutConfig
from offrl.config.online import OnlineConfig
from offrl.config.schema import (
    Config,
    EncoderConfig,
    HierarchyObservationConfig,
    ObservationConfig,
)
from offrl.config.section import (
    Bounds,
    Count,
    FreeMap,
    KeyLists,
    Map,
    NonNegative,
    Only,
    Section,
    Share,
    Steps,
)
from offrl.config.train import ActionConfig, EMAConfig, RewardsConfig, TrainConfig
