"""ACT, Action Chunking with Transformers (Zhao et al., 2023, arXiv:2304.13705): a conditional VAE
predicts long chunks, and what overlaps is averaged."""

from pydantic import Field

from offrl import models
from offrl.algos.base import Batch, Generators, Info, Obs, masked_mean, register_algo
from offrl.algos.shared.chunks import ChunkConfig, ChunkPolicy, HorizonConfig
from offrl.config import Count, NonNegative, Section
from offrl.config.algo import adamw
from offrl.lazy import Tensor, torch


class ACTTransformerConfig(Section):
    embed_dim: int = Field(512, ge=2, multiple_of=2)
    """Size of an embedding."""
    feedforward_dim: Count = 3200
    """Hidden size of the networks in layers."""
    num_heads: Count = 8
    """Number of attention heads; embed_dim is a multiple."""
    num_encoder_layers: Count = 4
    """Number of layers that observations go through, and chunks on their way to z."""
    num_decoder_layers: Count = 1
    """Number of layers of actions that attend to observations."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout of all layers."""


class ACTConfig(ChunkConfig):
    ALGO_NAME = "act"
    DEFAULTS = {
        "train": {"batch_size": 8},
        "observation": {
            "encoder": {"rgb": {"core_kwargs": {"pool_class": None, "feature_dimension": None}}}
        },
    }

    OPTIMIZERS = {"policy": adamw(1e-4, initial=1e-5)}
    horizon: HorizonConfig = HorizonConfig(
        observation_horizon=1, action_horizon=1, prediction_horizon=100
    )
    temporal_ensemble: NonNegative | None = 0.01
    transformer: ACTTransformerConfig = ACTTransformerConfig()
    """Sizes of the Transformers."""
    latent_dim: Count = 32
    """Number of latents (z), the style of a chunk."""
    draws_latent: bool = False
    """Draw z while acting. If false, it is the mean of the prior, 0."""
    kl_weight: NonNegative = 10.0
    """Weight of the KL divergence against the error of actions."""


@register_algo(ACTConfig)
class ACT(ChunkPolicy):
    """One network, ``policy``, a conditional VAE whose prior is N(0, 1)."""

    algo_config: ACTConfig

    def _create_networks(self) -> None:
        config = self.algo_config
        self.nets["policy"] = models.ActionChunkingTransformer(
            self.obs_spec,
            self.ac_dim,
            num_frames=config.horizon.observation_horizon,
            num_steps=config.horizon.prediction_horizon,
            latent_dim=config.latent_dim,
            **config.transformer.to_dict(),
        )

    def update(self, batch: Batch) -> Info:
        net, mask = self.nets["policy"], batch["pad_mask"]
        mean, logvar = net.posterior(batch["obs"], batch["actions"], mask)
        z = mean + (logvar / 2).exp() * torch.randn_like(mean)
        errors = (net(batch["obs"], z) - batch["actions"]).abs().mean(-1)
        l1 = masked_mean(errors, mask)
        kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).sum(-1).mean()
        loss = l1 + self.algo_config.kl_weight * kl
        norm = self.optimize("policy", loss)
        return {"loss": loss, "L1_Loss": l1, "KL_Loss": kl, "Policy_Grad_Norms": norm}

    def sample(self, obs: Obs, goal: Obs | None, generators: Generators) -> Tensor:
        net, config = self.nets["policy"], self.algo_config
        z = torch.zeros(len(next(iter(obs.values()))), config.latent_dim, device=self.device)
        if config.draws_latent:
            z = models.random_rows("randn", z, generators)
        return net(obs, z)
