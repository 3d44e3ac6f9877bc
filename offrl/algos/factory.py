"""How algorithms are registered, and made from a config."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch

from offrl.algos.shared.memory import made_within_memory
from offrl.config import AlgoConfig, Config, config_factory
from offrl.registry import ALGOS
from offrl.specs import ObsSpec

if TYPE_CHECKING:
    from offrl.algos.base import Algo

AlgoClass = TypeVar("AlgoClass", bound="type[Algo]")


def register_algo(config_class: type[AlgoConfig]) -> Callable[[AlgoClass], AlgoClass]:
    """Decorate an algorithm's class with its ``algo`` section, whose ``ALGO_NAME`` names both."""

    def register(algo_class: AlgoClass) -> AlgoClass:
        ALGOS.register(config_class.ALGO_NAME)(lambda algo_config: (algo_class, {}))
        return algo_class

    return register


def register_algo_factory_func(name: str) -> Callable:
    """Decorate a function ``algo_config -> (Algo subclass, keyword arguments)``, which may choose
    the class by the config."""
    return ALGOS.register(name)


def algo_factory(
    algo_name: str,
    config: Config,
    obs_key_shapes: Mapping[str, Sequence[int]],
    ac_dim: int,
    device: torch.device | str,
) -> "Algo":
    """Build an algorithm for observations of the given shapes and ``ac_dim`` action dimensions;
    ``ValueError`` for one whose networks do not fit in memory."""
    if config.algo_name != algo_name:
        raise ValueError(
            f"algo_name: the config is for {config.algo_name!r}, but {algo_name!r} was asked for"
        )
    # Assignments since the config was made were checked one by one, not against each other.
    config = config_factory(algo_name, config.to_dict())
    algo_class, kwargs = ALGOS[algo_name](config.algo)
    spec = ObsSpec.from_config(config.observation, obs_key_shapes)
    return made_within_memory(
        algo_name,
        device,
        lambda: algo_class(config=config, obs_spec=spec, ac_dim=ac_dim, device=device, **kwargs),
    )
