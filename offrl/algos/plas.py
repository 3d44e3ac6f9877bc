"""PLAS (Zhou et al., 2020, arXiv:2011.07213): the actor moves in the latent space of a VAE of the
data's actions, so whatever it does the data has seen; a perturbation may lead a little beyond."""

from typing import Annotated, Any

from pydantic import Field

from offrl import models
from offrl.algos.base import register_algo
from offrl.algos.bcq import PerturbationConfig
from offrl.algos.shared.actor_critic import ActorCritic
from offrl.config import Count, MustBe, Section
from offrl.config.algo import (
    TDConfig,
    WeightedCriticConfig,
    WeightedEnsembleConfig,
)
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
    max_latent_action: float = Field(2.0, gt=0)
    """Largest magnitude of each latent that the actor chooses, in standard deviations of the
    prior."""


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
    algo_config: PLASConfig

    def _create_networks(self) -> None:
        config = self.algo_config
        self.add_critics()
        self.nets["action_sampler"] = vae = models.vae_from_config(
            config.action_sampler, self.obs_spec, self.ac_dim, self.num_frames
        )
        parts = {
            "latent": models.mlp_actor(
                self.obs_spec,
                vae.prior.latent_size,
                config.actor.layer_dims,
                num_frames=self.num_frames,
            )
        }
        if config.actor.perturbation.enabled:
            parts["perturbation"] = models.PerturbationActor(
                self.obs_spec,
                self.ac_dim,
                config.actor.perturbation.layer_dims,
                config.actor.perturbation.perturbation_scale,
                self.num_frames,
            )
        self.nets["actor"] = torch.nn.ModuleDict(parts)
        self.add_target("actor")

    def update(self, batch: dict[str, Any]) -> dict[str, Tensor | None]:
        warms_up = self.num_updates < self.algo_config.warmup_steps
        self.num_updates += not self.validates
        if warms_up:
            return self._train_sampler(batch)

        obs = batch["obs"]
        with torch.no_grad():
            next_actions = self._decode("actor_target", batch["next_obs"])
            target = self.backup(batch, next_actions)
        q_losses, _ = self.critic_losses(batch, target)
        actor_loss = -self.nets["critic"].first(obs, self._decode("actor", obs)).mean()
        info = self.optimize_critics(batch, q_losses)
        self.optimize("actor", actor_loss, measures=False)
        self.update_targets()
        return info | {"loss": info["loss"] + actor_loss.detach(), "Actor/Loss": actor_loss}

    def _train_sampler(self, batch: dict[str, Any]) -> dict[str, Tensor | None]:
        vae = self.algo_config.action_sampler.vae
        temperature = vae.prior.temperature(self.epoch)
        terms = self.nets["action_sampler"].losses(batch["obs"], batch["actions"], temperature)
        loss = terms["reconstruction"].mean() + vae.kl_weight * terms["kl"].mean()
        self.optimize("action_sampler", loss, measures=False)
        return {"loss": loss, "Action_Sampler/Loss": loss}

    def _decode(self, actor: str, obs: Any) -> Tensor:
        """The action ``[B, 1, A]`` of the actor's latent, perturbed."""
        parts = self.nets[actor]
        latent = self.algo_config.actor.max_latent_action * parts["latent"](obs)[0].mode()
        action = self.nets["action_sampler"].decoder(obs, given=latent)[0].mode()
        return parts["perturbation"](obs, action) if "perturbation" in parts else action

    def policy(self, obs: Any, state: Any = None) -> tuple[Any, Any]:
        return models.Deterministic(self._decode("actor", obs)), state
