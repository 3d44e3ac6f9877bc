"""Sections about policy networks that several algorithms share, with robomimic's key names."""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, field_validator

from offrl.config.section import Count, FreeMap, Map, Section, Share, Steps
from offrl.registry import shown


class GaussianConfig(Section):
    enabled: bool = False
    """Let the policy be a Gaussian instead of one action per state."""
    fixed_std: bool = False
    """Keep the standard deviation at init_std instead of learning it."""
    use_tanh: bool = False
    """Squash the whole distribution by a tanh, not only its mean."""
    init_std: float = Field(0.1, gt=0)
    """Standard deviation at the start, with std_activation "softplus"."""
    min_std: float = Field(0.01, ge=0)
    """Least standard deviation."""
    std_activation: Literal["softplus", "exp"] = "softplus"
    """Function that makes the network's output a standard deviation."""
    low_noise_eval: bool = True
    """Take the mean in evaluation. If false, actions are drawn at random."""


class GMMConfig(Section):
    enabled: bool = False
    """Let the policy be a mixture of Gaussians (GMM), for data that shows several ways to act."""
    num_modes: Count = 5
    """Number of Gaussians in the mixture."""
    min_std: float = Field(1e-4, ge=0)
    """Least standard deviation of each Gaussian."""
    std_activation: Literal["softplus", "exp"] = "softplus"
    """Function that makes the network's output a standard deviation."""
    low_noise_eval: bool = True
    """Act next to the mean of a random Gaussian in evaluation. If false, draw from that."""


class VAEDecoderConfig(Section):
    is_conditioned: bool = True
    """Let the decoder see the observations, too."""
    reconstruction_sum_across_elements: bool = False
    """Sum the squared errors of an action's or a subgoal's dimensions. If false: their mean."""


class VAEPriorConfig(Section):
    learn: bool = False
    """Learn the prior. If false, it is N(0, 1), or uniform over classes."""
    is_conditioned: bool = False
    """Let the prior depend on the observations. Needs learn."""
    use_gmm: bool = False
    """Let the prior be a mixture of Gaussians. Needs learn."""
    gmm_num_modes: Count = 10
    """Number of Gaussians in the prior."""
    gmm_learn_weights: bool = False
    """Learn the weights of these Gaussians. If false, they are equal."""
    use_categorical: bool = False
    """Let each latent be one of some classes, instead of a real number."""
    categorical_dim: Count = 10
    """Number of classes of each latent."""
    categorical_gumbel_softmax_hard: bool = False
    """Give the decoder one class exactly in training. If false, a mixture, by the temperature."""
    categorical_init_temp: float = Field(1.0, gt=0)
    """Temperature of that mixture in the first epoch."""
    categorical_temp_anneal_step: float = 0.001
    """Amount by which the temperature falls in each epoch."""
    categorical_min_temp: float = Field(0.3, gt=0)
    """Least temperature."""

    def temperature(self, epoch: int) -> float:
        annealed = self.categorical_init_temp - epoch * self.categorical_temp_anneal_step
        return max(annealed, self.categorical_min_temp)


class VAEConfig(Section):
    enabled: bool = False
    """Let the network be a conditional variational autoencoder (VAE) of actions or subgoals."""
    latent_dim: Count = 14
    """Number of latents."""
    latent_clip: float | None = Field(None, gt=0)
    """Clip drawn latents to plus and minus this number. null: do not."""
    kl_weight: float = Field(1.0, ge=0)
    """Weight of the KL divergence against the reconstruction error."""
    decoder: VAEDecoderConfig = VAEDecoderConfig()
    """Network from latents to an action or a subgoal."""
    prior: VAEPriorConfig = VAEPriorConfig()
    """Distribution that latents are drawn from while acting."""
    encoder_layer_dims: list[Count] = [300, 400]
    """Sizes of the hidden layers of the encoder."""
    decoder_layer_dims: list[Count] = [300, 400]
    """Sizes of the hidden layers of the decoder."""
    prior_layer_dims: list[Count] = [300, 400]
    """Sizes of the hidden layers of a prior that is_conditioned."""

    def temperature(self, epoch: int) -> float | None:
        """Return the temperature of latents in an epoch, or ``None`` if they have none."""
        has_one = self.enabled and self.prior.use_categorical
        return self.prior.temperature(epoch) if has_one else None

    def check(self, place: str = "algo.vae") -> None:
        """Raise ``ValueError`` if its switches, which stand at ``place``, contradict each other."""
        prior = self.prior
        for switch in ("is_conditioned", "use_gmm"):
            if prior[switch] and not prior.learn:
                raise ValueError(f"{place}.prior.{switch}: needs {place}.prior.learn")
        if prior.use_gmm and prior.use_categorical:
            raise ValueError(f"{place}.prior.use_gmm and use_categorical are both true; drop one")
        if self.enabled and not (self.decoder.is_conditioned or prior.is_conditioned):
            raise ValueError(
                f"{place}: neither decoder nor prior is conditioned, so the policy would see "
                f"nothing; set {place}.decoder.is_conditioned to true"
            )


def vaes_in(section: Section) -> Iterator[VAEConfig]:
    """Yield the sections of VAEs within a section."""
    for key in section.keys():
        if isinstance(section[key], VAEConfig):
            yield section[key]
        elif isinstance(section[key], Section):
            yield from vaes_in(section[key])


class RNNConfig(Section):
    enabled: bool = False
    """Let the policy remember earlier steps in an RNN."""
    horizon: Steps = 10
    """Number of steps after which the memory starts anew while acting. It is also the length of
    training samples, unless train.seq_length is set."""
    hidden_dim: Count = 400
    """Size of the hidden state."""
    rnn_type: Literal["LSTM", "GRU"] = "LSTM"
    """Kind of recurrent layer."""
    num_layers: Count = 2
    """Number of recurrent layers."""
    open_loop: bool = False
    """Look only at the first observation of each horizon."""
    kwargs: FreeMap = Map(bidirectional=False)
    """More options of these layers: bidirectional and bias (true or false), dropout (0 to 1)."""

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
    """Let the policy look back at earlier steps with a Transformer."""
    context_length: Steps = 10
    """Number of latest steps that it sees. train.frame_stack is the same, unless it is set."""
    embed_dim: Count = 512
    """Size of a step's embedding."""
    num_layers: Count = 6
    """Number of layers."""
    num_heads: Count = 8
    """Number of attention heads; embed_dim is a multiple."""
    emb_dropout: Share = 0.1
    """Dropout of the embeddings."""
    attn_dropout: Share = 0.1
    """Dropout of the attention."""
    block_output_dropout: Share = 0.1
    """Dropout behind each layer."""
    sinusoidal_embedding: bool = False
    """Embed positions as fixed sines instead of learning them."""
    activation: Literal["gelu", "geglu"] = "gelu"
    """Activation function."""
    supervise_all_steps: bool = False
    """Learn the action of every step of the context, not only the last one."""
    nn_parameter_for_timesteps: bool = True
    """Learn positions as a parameter, zero at first. If false, as a table, random at first."""
    pred_future_acs: bool = False
    """Predict context_length actions, from the current one on. Needs supervise_all_steps."""
    causal: bool = True
    """Let a step of the context see itself and those before it alone. If false, it sees all."""


class CommonNetConfig(Section):
    std_activation: Literal["softplus", "exp"] = "softplus"
    """Function that makes the network's output a standard deviation."""
    low_noise_eval: bool = True
    """Act without noise in evaluation (mixtures: next to a random mean). If false, at random."""
    use_tanh: bool = False
    """Squash the whole distribution by a tanh, not only its mean, or means."""


class GaussianNetConfig(Section):
    init_last_fc_weight: float = Field(0.001, ge=0)
    """The weights of the last layer start between plus and minus this number."""
    init_std: float = Field(0.3, gt=0)
    """Standard deviation at the start, with std_activation "softplus"."""
    fixed_std: bool = False
    """Keep the standard deviation at init_std instead of learning it."""


class GMMNetConfig(Section):
    num_modes: Count = 5
    """Number of Gaussians in the mixture."""
    min_std: float = Field(1e-4, ge=0)
    """Least standard deviation of each Gaussian."""


class ActorNetConfig(Section):
    type: Literal["gaussian", "gmm"] = "gaussian"
    """Distribution of the policy: a Gaussian or a mixture of Gaussians."""
    common: CommonNetConfig = CommonNetConfig()
    """Options of both types."""
    gaussian: GaussianNetConfig = GaussianNetConfig()
    """Options of the type "gaussian"."""
    gmm: GMMNetConfig = GMMNetConfig()
    """Options of the type "gmm"."""


class LayersConfig(Section):
    """A network, or each network of an ensemble of critics."""

    layer_dims: list[Count] = [300, 400]
    """Sizes of the hidden layers."""
    max_gradient_norm: float | None = Field(None, gt=0)
    """Largest norm of the network's gradient, or of each critic's. null: train.max_grad_norm."""


class ActorConfig(LayersConfig):
    net: ActorNetConfig = ActorNetConfig()
    """Distribution of the policy."""
