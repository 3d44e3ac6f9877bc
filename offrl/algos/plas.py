"""PLAS (Zhou et al., 2020, arXiv:2011.07213): the actor chooses latents of a VAE of the data's
actions, so that its actions stay near the data's; a perturbation may lead a little beyond."""

from typing import Annotated, Any

from pydantic import Field

from offrl import models
from offrl.algos.base import Batch, Info, register_algo
from offrl.algos.bc import vae_loss
from offrl.algos.bcq import PerturbationConfig
from offrl.algos.shared.actor_critic import ActorCritic
from offrl.config import Count, MustBe, Positive, Section
from offrl.config.algo import TDConfig, WeightedCriticConfig, WeightedEnsembleConfig
from offrl.config.networks import VAEConfig
from offrl.lazy import Tensor, torch


class PLASVAEConfig(VAEConfig):
    enabled: Annotated[bool, MustBe(True, "PLAS is built on a VAE")] = True
    """Must be true: PLAS is built on a VAE."""
    latent_clip: None = None
    """Must be null: the actor limits latents by max_latent_action."""


class SamplerConfig(Section):
    vae: PLASVAEConfig = PLASVAEConfig(
        # The authors' is of the mean over the 14 latents, not of their sum.
        kl_weight=0.5 / 14,
        encoder_layer_dims=[750, 750],
        decoder_layer_dims=[750, 750],
    )
    """A VAE."""


class LatentActorConfig(Section):
    layer_dims: list[Count] = [400, 300]
    """Sizes of the hidden layers of the actor."""
    perturbation: PerturbationConfig = PerturbationConfig(layer_dims=[400, 300])
    """Network that changes the decoded action a little."""
    max_latent_action: Positive = 2.0
    """Largest magnitude of latents that the actor chooses, in standard deviations of the prior."""


class PLASConfig(TDConfig):
    ALGO_NAME = "plas"

    OPTIMIZERS = {"critic": 1e-3, "action_sampler": 1e-4, "actor": 1e-4}
    warmup_steps: int = Field(500_000, ge=0)
    """First training steps, in which only the VAE learns."""
    critic: WeightedCriticConfig = WeightedCriticConfig(
        ensemble=WeightedEnsembleConfig(weight=0.75)
    )
    action_sampler: SamplerConfig = SamplerConfig()
    """Model of the data's actions."""
    actor: LatentActorConfig = LatentActorConfig()
    """The policy, which chooses latents of the VAE."""


@register_algo(PLASConfig)
class PLAS(ActorCritic):
    """``action_sampler``: the VAE; ``actor``: the policy of latents, and the perturbation."""

    algo_config: PLASConfig

    def _create_networks(self) -> None:
        config, frames = self.algo_config, self.num_frames
        self.add_critics()
        self.nets["action_sampler"] = vae = models.vae_from_config(
            config.action_sampler, self.obs_spec, self.ac_dim, frames
        )
        sizes = self.obs_spec, vae.prior.latent_size, config.actor.layer_dims
        parts = {"latent": models.mlp_actor(*sizes, num_frames=frames)}
        change = config.actor.perturbation
        if change.enabled:
            sizes = self.obs_spec, self.ac_dim, change.layer_dims
            parts["perturbation"] = models.PerturbationActor(
                *sizes, change.perturbation_scale, frames
            )
        self.nets["actor"] = torch.nn.ModuleDict(parts)
        self.add_target("actor")

    def actions(self, actor: str, obs: Any) -> Tensor:
        """Decode the latent that ``actor`` chooses, and perturb the action: ``[B, 1, A]``."""
        parts = self.nets[actor]
        latent = self.algo_config.actor.max_latent_action * parts["latent"](obs)[0].mode()
        action = self.nets["action_sampler"].decoder(obs, given=latent)[0].mode()
        return parts["perturbation"](obs, action) if "perturbation" in parts else action

    def policy(self, obs: Any, state: Any = None) -> tuple[Any, Any]:
        return models.Deterministic(self.actions("actor", obs)), state

    def update(self, batch: Batch) -> Info:
        warms_up = self.num_updates < self.algo_config.warmup_steps
        self.num_updates += not self.validates
        return self._train_sampler(batch) if warms_up else self._train_actor(batch)

    def _train_sampler(self, batch: Batch) -> Info:
        net, config = self.nets["action_sampler"], self.algo_config.action_sampler.vae
        loss, _ = vae_loss(net, config, self.epoch, batch["obs"], batch["actions"])
        self.optimize("action_sampler", loss, measures=False)
        return {"loss": loss, "Action_Sampler/Loss": loss}

    def _train_actor(self, batch: Batch) -> Info:
        obs = batch["obs"]
        with torch.no_grad():
            target = self.backup(batch, self.actions("actor_target", batch["next_obs"]))
        q_losses, _ = self.critic_losses(batch, target)
        pi_loss = -self.nets["critic"].first(obs, self.actions("actor", obs)).mean()
        info = self.optimize_critics(batch, q_losses)
        self.optimize("actor", pi_loss, measures=False)
        self.update_targets()
        return info | {"loss": info["loss"] + pi_loss.detach(), "Actor/Loss": pi_loss}
