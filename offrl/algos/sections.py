"""Sections of configs that actor-critic algorithms share, with robomimic's key names."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from offrl.config import AlgoConfig, Count, LearningRateConfig, OptimConfig, Section
from offrl.section import Bounds


class CommonNetConfig(Section):
    std_activation: Literal["softplus", "exp"] = "softplus"
    low_noise_eval: bool = True
    use_tanh: bool = False


class GaussianNetConfig(Section):
    init_last_fc_weight: float = 0.001
    init_std: float = 0.3
    fixed_std: bool = False


class GMMNetConfig(Section):
    num_modes: Count = 5
    min_std: float = 1e-4


class ActorNetConfig(Section):
    type: Literal["gaussian", "gmm"] = "gaussian"
    common: CommonNetConfig = CommonNetConfig()
    gaussian: GaussianNetConfig = GaussianNetConfig()
    gmm: GMMNetConfig = GMMNetConfig()


class ActorConfig(Section):
    net: ActorNetConfig = ActorNetConfig()
    layer_dims: list[Count] = [300, 400]
    max_gradient_norm: float | None = Field(None, gt=0)


class EnsembleConfig(Section):
    n: Count = 2


class CriticConfig(Section):
    use_huber: bool = False
    max_gradient_norm: float | None = Field(None, gt=0)  # of each critic by itself
    layer_dims: list[Count] = [300, 400]
    ensemble: EnsembleConfig = EnsembleConfig()


class BoundedCriticConfig(CriticConfig):
    # The least and the largest that the networks can say.
    value_bounds: Bounds | None = None


class WeightedEnsembleConfig(EnsembleConfig):
    weight: float = Field(1.0, ge=0, le=1)  # of the least value in a target; the rest: the largest


class StagedOptimConfig(OptimConfig):
    """An optimizer that works from ``start_epoch`` on and before ``end_epoch``; -1: no limit."""

    start_epoch: int = -1
    end_epoch: int = -1

    def is_due(self, epoch: int) -> bool:
        return epoch >= self.start_epoch and (self.end_epoch == -1 or epoch < self.end_epoch)


class ActorCriticConfig(AlgoConfig):
    """Base of their ``algo`` sections."""

    DEFAULTS: ClassVar[dict[str, Any]] = {"train": {"hdf5_load_next_obs": True}}

    discount: float = Field(0.99, ge=0, le=1)
    n_step: Count = 1  # rewards summed before a value is bootstrapped
    target_tau: float = Field(0.005, ge=0, le=1)
    critic: CriticConfig = CriticConfig()


def learning_rate(initial: float, decay_factor: float = 0.1, staged: bool = False) -> OptimConfig:
    rate = LearningRateConfig(initial=initial, decay_factor=decay_factor)
    return (StagedOptimConfig if staged else OptimConfig)(learning_rate=rate)
