"""Registers algorithms, and makes them from a config."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from offrl.config import AlgoConfig, Config, config_factory
from offrl.config.build import with_train
from offrl.lazy import torch
from offrl.registry import ALGOS
from offrl.specs import ObsSpec

if TYPE_CHECKING:
    from offrl.algos.shared.algo import Algo

AlgoClass = TypeVar("AlgoClass", bound="type[Algo]")


def register_algo(config_class: type[AlgoConfig]) -> Callable[[AlgoClass], AlgoClass]:
    """Register the decorated ``Algo`` subclass as an algorithm that configs can name.

    config_class: its section ``algo``, an ``AlgoConfig`` whose ``ALGO_NAME`` is the name.
    """

    def register(algo_class: AlgoClass) -> AlgoClass:
        enter = ALGOS.register(config_class.ALGO_NAME, algo_class.__module__)
        enter(lambda algo_config: (algo_class, {}))
        return algo_class

    return register


def register_algo_factory_func(name: str) -> Callable:
    """Register the decorated function as an algorithm whose class depends on the config:
    ``algo_config -> (subclass of Algo, dict of keyword arguments)``.

    name: the ``ALGO_NAME`` of its section.
    """
    return lambda function: ALGOS.register(name, function.__module__)(function)


def algo_factory(
    algo_name: str,
    config: Config,
    obs_key_shapes: Mapping[str, Sequence[int]],
    ac_dim: int,
    device: "torch.device | str",
) -> "Algo":
    """Make an algorithm, with untrained networks, for given shapes of data.

    Raises ``ValueError`` if the networks do not fit in memory, or if the config contradicts itself.

    config: made by ``config_factory``.
    obs_key_shapes: the shape of each observation per time step, as networks see it: images are
        ``[C, H, W]``.
    ac_dim: the number of action dimensions, or of discrete actions.
    device: where the networks are, ``"cpu"`` or ``"cuda"``.
    """
    from offrl.algos.shared.memory import made_within_memory

    if config.algo_name != algo_name:
        raise ValueError(
            f"algo_name: the config is for {config.algo_name!r}, but {algo_name!r} was asked for"
        )
    # Assignments since the config was made were checked one by one, not against each other.
    # The class of ``train`` says whether the length of the training may be read.
    config = with_train(config_factory(algo_name, config.to_dict()), type(config.train))
    algo_class, kwargs = ALGOS[algo_name](config.algo)
    spec = ObsSpec.from_config(config.observation, obs_key_shapes)
    return made_within_memory(
        algo_name,
        device,
        lambda: algo_class(config=config, obs_spec=spec, ac_dim=ac_dim, device=device, **kwargs),
    )
