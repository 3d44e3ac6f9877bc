"""The base of every ``algo`` section of a config, and the sections that several algorithms share,
with robomimic's key names."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from offrl.config.content import shown
from offrl.config.section import Bounds, Count, FreeMap, Map, Section, Share, Steps, only
from offrl.registry import ALGO_CONFIGS


class LearningRateConfig(Section):
    """``multistep``: times ``decay_factor`` at each epoch of ``epoch_schedule``; ``linear``: down
    to ``decay_factor`` at the one epoch named there; ``cosine``: ``warmup_steps`` up, then
    ``num_cycles`` cosine waves over the whole training."""

    initial: float = Field(1e-4, ge=0)
    decay_factor: float = Field(0.1, ge=0)
    epoch_schedule: list[Count] = []
    scheduler_type: Literal["multistep", "linear", "cosine", "constant"] = "multistep"
    step_every_batch: bool = False  # count steps instead of epochs
    warmup_steps: int = Field(0, ge=0)
    num_cycles: float = 0.5


class RegularizationConfig(Section):
    L2: float = Field(0.0, ge=0)


class OptimConfig(Section):
    optimizer_type: Literal["adam", "adamw"] = "adam"
    learning_rate: LearningRateConfig = LearningRateConfig()
    regularization: RegularizationConfig = RegularizationConfig()
    # robomimic writes these two into the configs of its runs; offrl counts by itself.
    num_train_batches: int | None = None
    num_epochs: int | None = None

    def is_due(self, epoch: int) -> bool:
        """Whether it works in this epoch."""
        return True


class StagedOptimConfig(OptimConfig):
    """An optimizer that works from ``start_epoch`` on and before ``end_epoch``; -1: no limit."""

    start_epoch: int = -1
    end_epoch: int = -1

    def is_due(self, epoch: int) -> bool:
        return epoch >= self.start_epoch and (self.end_epoch == -1 or epoch < self.end_epoch)


def learning_rates(
    decay_factor: float = 0.1, staged: bool = False, **initial: float
) -> dict[str, Any]:
    """Adam with these initial rates, by network."""
    config = StagedOptimConfig if staged else OptimConfig
    return {
        name: config(learning_rate=LearningRateConfig(initial=rate, decay_factor=decay_factor))
        for name, rate in initial.items()
    }


class AlgoConfig(Section):
    """Base of every algorithm's ``algo`` section; a subclass registers under its ``ALGO_NAME``.

    ``DEFAULTS`` holds what the algorithm wants different in the other sections, e.g.
    ``{"train": {"batch_size": 1024}}``.
    """

    ALGO_NAME: ClassVar[str] = ""
    DEFAULTS: ClassVar[dict[str, Any]] = {}

    optim_params: dict[str, OptimConfig] = {}  # by the name of the network

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        if "ALGO_NAME" in cls.__dict__:
            ALGO_CONFIGS.register(cls.ALGO_NAME)(cls)


# -- networks -----------------------------------------------------------------------------------


class GaussianConfig(Section):
    enabled: bool = False
    fixed_std: bool = False
    use_tanh: bool = False  # offrl's own: a tanh of the distribution, not of its mean
    init_std: float = Field(0.1, gt=0)
    min_std: float = Field(0.01, ge=0)
    std_activation: Literal["softplus", "exp"] = "softplus"
    low_noise_eval: bool = True


class GMMConfig(Section):
    enabled: bool = False
    num_modes: Count = 5
    min_std: float = Field(1e-4, ge=0)
    std_activation: Literal["softplus", "exp"] = "softplus"
    low_noise_eval: bool = True


class VAEDecoderConfig(Section):
    is_conditioned: bool = True
    reconstruction_sum_across_elements: bool = False


class VAEPriorConfig(Section):
    learn: bool = False
    is_conditioned: bool = False
    use_gmm: bool = False
    gmm_num_modes: Count = 10
    gmm_learn_weights: bool = False
    use_categorical: bool = False
    categorical_dim: Count = 10
    categorical_gumbel_softmax_hard: bool = False
    categorical_init_temp: float = Field(1.0, gt=0)
    categorical_temp_anneal_step: float = 0.001
    categorical_min_temp: float = Field(0.3, gt=0)

    def temperature(self, epoch: int) -> float:
        annealed = self.categorical_init_temp - epoch * self.categorical_temp_anneal_step
        return max(annealed, self.categorical_min_temp)


class VAEConfig(Section):
    enabled: bool = False
    latent_dim: Count = 14
    latent_clip: float | None = Field(None, gt=0)
    kl_weight: float = Field(1.0, ge=0)
    decoder: VAEDecoderConfig = VAEDecoderConfig()
    prior: VAEPriorConfig = VAEPriorConfig()
    encoder_layer_dims: list[Count] = [300, 400]
    decoder_layer_dims: list[Count] = [300, 400]
    prior_layer_dims: list[Count] = [300, 400]


class RNNConfig(Section):
    enabled: bool = False
    horizon: Steps = 10
    hidden_dim: Count = 400
    rnn_type: Literal["LSTM", "GRU"] = "LSTM"
    num_layers: Count = 2
    open_loop: bool = False
    kwargs: FreeMap = Map(bidirectional=False)

    @field_validator("kwargs")
    @classmethod
    def _known(cls, kwargs: dict[str, Any]) -> dict[str, Any]:
        for key, value in kwargs.items():
            if key not in ("bidirectional", "dropout", "bias"):
                raise ValueError(f"takes no {shown(key)}; it takes bidirectional, dropout, bias")
            is_share = type(value) in (int, float) and 0 <= value <= 1
            if not (is_share if key == "dropout" else isinstance(value, bool)):
                kind = "a number from 0 to 1" if key == "dropout" else "true or false"
                raise ValueError(f"{key} takes {kind}, not {shown(value)}")
        return kwargs


class TransformerConfig(Section):
    enabled: bool = False
    context_length: Steps = 10
    embed_dim: Count = 512
    num_layers: Count = 6
    num_heads: Count = 8
    emb_dropout: Share = 0.1
    attn_dropout: Share = 0.1
    block_output_dropout: Share = 0.1
    sinusoidal_embedding: bool = False
    activation: Literal["gelu", "geglu"] = "gelu"
    supervise_all_steps: bool = False
    nn_parameter_for_timesteps: bool = True
    pred_future_acs: bool = False
    # Of some of robomimic's revisions.
    causal: Annotated[bool, only(True, "a step sees itself and those before it")] = Field(
        True, exclude=True
    )


# -- actors and critics ---------------------------------------------------------------------------


class CommonNetConfig(Section):
    std_activation: Literal["softplus", "exp"] = "softplus"
    low_noise_eval: bool = True
    use_tanh: bool = False


class GaussianNetConfig(Section):
    init_last_fc_weight: float = Field(0.001, ge=0)
    init_std: float = Field(0.3, gt=0)
    fixed_std: bool = False


class GMMNetConfig(Section):
    num_modes: Count = 5
    min_std: float = Field(1e-4, ge=0)


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
    value_bounds: Bounds | None = None  # the least and the largest that the networks can say


class WeightedEnsembleConfig(EnsembleConfig):
    weight: Share = 1.0  # of the least value in a target; the rest: the largest


class WeightedCriticConfig(CriticConfig):
    ensemble: WeightedEnsembleConfig = WeightedEnsembleConfig()


class DistributionalConfig(Section):
    enabled: bool = False  # one critic, whatever ensemble.n says; robomimic's as well
    num_atoms: int = Field(51, ge=2)


class DistributionalCriticConfig(CriticConfig):
    distributional: DistributionalConfig = DistributionalConfig()

    @model_validator(mode="after")
    def _is_bounded(self) -> "DistributionalCriticConfig":
        if self.distributional.enabled and self.value_bounds is None:
            raise ValueError(
                "value_bounds: a distributional critic needs the least and the largest possible "
                "return, e.g. [0, 1]"
            )
        return self


class TDConfig(AlgoConfig):
    """Base of the ``algo`` sections of what learns by temporal differences."""

    discount: Share = 0.99
    n_step: Steps = 1  # rewards summed before a value is bootstrapped
    infinite_horizon: bool = False  # the last reward of an episode is received for ever
    target_tau: Share = 0.005
    critic: CriticConfig = CriticConfig()
