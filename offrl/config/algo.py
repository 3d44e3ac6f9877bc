"""The base of all sections ``algo``, and sections that algorithms share, named as in robomimic."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from offrl.config.networks import (  # noqa: F401 (users' algorithms import them here)
    ActorConfig,
    GaussianConfig,
    GMMConfig,
    LayersConfig,
    RNNConfig,
    TransformerConfig,
    VAEConfig,
)
from offrl.config.section import Bounds, Count, MustBe, Section, Share, Steps, without_effect
from offrl.registry import ALGO_CONFIGS


class LearningRateConfig(Section):
    """``multistep``: times ``decay_factor`` at each epoch of ``epoch_schedule``; ``linear``: down
    to ``decay_factor`` at the one epoch named there; ``cosine``: ``warmup_steps`` up, then
    ``num_cycles`` cosine waves over the whole training; ``constant``: up, and then as it is."""

    initial: float = Field(1e-4, ge=0)
    """Learning rate at the start."""
    decay_factor: float = Field(0.1, ge=0)
    """Factor on the rate at each epoch of epoch_schedule, or until the one there ("linear")."""
    epoch_schedule: list[Count] = []
    """Epochs at which the rate falls, or the one until which it falls ("linear"). Empty: none."""
    scheduler_type: Literal["multistep", "linear", "cosine", "constant", "constant_with_warmup"] = (
        "multistep"
    )
    """Course of the rate during the training."""
    step_every_batch: bool = False
    """Count training steps instead of epochs, in all of these keys."""
    warmup_steps: int = Field(0, ge=0)
    """Epochs in which the rate rises from 0 to initial ("cosine", "constant",
    "constant_with_warmup"). For the last, which forks of robomimic have, the default is theirs:
    10000 training steps (step_every_batch)."""
    num_cycles: float = 0.5
    """Cosine waves over the whole training ("cosine"). 0.5: the rate falls to 0 once."""


class RegularizationConfig(Section):
    L2: float = Field(0.0, ge=0)
    """Weight decay of the optimizer."""


class OptimConfig(Section):
    """The optimizer of one network."""

    optimizer_type: Literal["adam", "adamw", "rmsprop"] = "adam"
    """Kind of optimizer. "adam" and "rmsprop" add the weight decay to gradients, "adamw" takes it
    from the weights directly."""
    epsilon: float | None = Field(None, gt=0)
    """Number that the optimizer adds to what it divides by. A larger one makes steps of rare
    gradients smaller. null: the optimizer's own, 1e-8."""
    learning_rate: LearningRateConfig = LearningRateConfig()
    """Learning rate, and how it changes."""
    regularization: RegularizationConfig = RegularizationConfig()
    """Terms of the loss that keep weights small."""
    # robomimic writes these two into the configs of its runs; offrl counts by itself.
    num_train_batches: int | None = without_effect(None, exclude=False)
    num_epochs: int | None = without_effect(None, exclude=False)

    def is_due(self, epoch: int) -> bool:
        """Say whether the optimizer works in this epoch."""
        return True


class StagedOptimConfig(OptimConfig):
    """An optimizer that works from ``start_epoch`` on and before ``end_epoch``; -1: no limit."""

    start_epoch: int = -1
    """First epoch in which the network is trained. -1: from the beginning."""
    end_epoch: int = -1
    """Epoch from which on the network is trained no more. -1: never."""

    def is_due(self, epoch: int) -> bool:
        return epoch >= self.start_epoch and (self.end_epoch == -1 or epoch < self.end_epoch)


def learning_rates(
    decay_factor: float = 0.1, staged: bool = False, **initial: float
) -> dict[str, OptimConfig]:
    """Make Adam configs with these initial learning rates, by network."""
    config = StagedOptimConfig if staged else OptimConfig
    return {
        name: config(learning_rate=LearningRateConfig(initial=rate, decay_factor=decay_factor))
        for name, rate in initial.items()
    }


def adamw(weight_decay: float, **learning_rate: Any) -> OptimConfig:
    """Make an AdamW with a weight decay and keys of its learning rate."""
    return OptimConfig(
        optimizer_type="adamw",
        learning_rate=LearningRateConfig(**learning_rate),
        regularization=RegularizationConfig(L2=weight_decay),
    )


def while_acting(online: dict[str, Any], **train: Any) -> dict[str, Any]:
    """Make the ``DEFAULTS`` of an algorithm that learns while it acts, of keys of ``train``."""
    return {"experiment": {"epoch_every_n_steps": 1000}, "train": {"online": online, **train}}


class AlgoConfig(Section):
    """Base of every algorithm's section ``algo``; a subclass registers under its ``ALGO_NAME``.

    ``DEFAULTS`` holds the defaults that the algorithm changes in other sections, for example
    ``{"train": {"batch_size": 1024}}``. ``OPTIMIZERS`` is the default of ``optim_params``: a
    learning rate for each network, with which Adam is used, or the whole config of an optimizer.
    ``OBSERVATION`` is the class of the section ``observation``, if that is not the usual one.
    """

    ALGO_NAME: ClassVar[str] = ""
    DEFAULTS: ClassVar[dict[str, Any]] = {}
    OPTIMIZERS: ClassVar[Mapping[str, float | OptimConfig]] = {}
    OBSERVATION: ClassVar[type[Section] | None] = None

    optim_params: dict[str, OptimConfig] = {}
    """Optimizer of each network, by the name of the network."""
    # Of forks of robomimic.
    language_conditioned: Annotated[
        bool, MustBe(False, "name lang_emb in observation.modalities.obs.low_dim instead")
    ] = without_effect(False)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "OPTIMIZERS" in vars(cls):  # before pydantic makes the fields
            cls.optim_params = {
                name: x if isinstance(x, OptimConfig) else learning_rates(of=x)["of"]
                for name, x in cls.OPTIMIZERS.items()
            }

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        if "ALGO_NAME" in cls.__dict__:
            ALGO_CONFIGS.register(cls.ALGO_NAME, cls.__module__)(cls)


DISCRETE = {"actions": {"format": "discrete"}}  # an action_config


class EnsembleConfig(Section):
    n: Count = 2
    """Number of critics."""


class CriticConfig(LayersConfig):
    use_huber: bool = False
    """Use the Huber loss, which limits the effect of large errors. If false, the squared error."""
    ensemble: EnsembleConfig = EnsembleConfig()
    """Number and kind of the critics."""
    value_bounds: Bounds | None = None
    """Least and largest value that the critics can say, for example [0, 1]. null: any."""


class WeightedEnsembleConfig(EnsembleConfig):
    weight: Share = 1.0
    """Weight of the least critic's value in a target; the largest has the rest."""


class WeightedCriticConfig(CriticConfig):
    ensemble: WeightedEnsembleConfig = WeightedEnsembleConfig()


class DistributionalConfig(Section):
    enabled: bool = False
    """Let one critic, whatever ensemble.n, learn how likely each return is. Needs value_bounds."""
    num_atoms: int = Field(51, ge=2)
    """Number of returns that get a probability, between value_bounds."""


class DistributionalCriticConfig(CriticConfig):
    distributional: DistributionalConfig = DistributionalConfig()
    """A critic of distributions of returns (C51)."""

    @model_validator(mode="after")
    def _is_bounded(self) -> "DistributionalCriticConfig":
        if self.distributional.enabled and self.value_bounds is None:
            raise ValueError(
                "value_bounds: distributional critics need the least and largest return, as [0, 1]"
            )
        return self


class TDConfig(AlgoConfig):
    """Base of the sections ``algo`` of algorithms that learn by temporal differences."""

    discount: Share = 0.99
    """Factor on a reward for each step that it lies ahead (gamma)."""
    n_step: Steps = 1
    """Number of rewards that are summed before the value of a later state counts."""
    infinite_horizon: bool = False
    """Let the last reward of an episode that ended be received for ever."""
    target_tau: Share = 0.005
    """Share of the way to the trained networks that target networks go in an update. 1: all."""
    critic: CriticConfig = CriticConfig()
    """Networks that estimate values."""


class StagedTDConfig(TDConfig):
    """A section with networks that may learn in some epochs only."""

    optim_params: dict[str, StagedOptimConfig] = {}  # type: ignore[assignment]
