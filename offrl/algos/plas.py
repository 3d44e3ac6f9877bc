"""PLAS (Zhou et al., 2020, arXiv:2011.07213): the actor moves in the latent space of a VAE of the
data's actions, so whatever it does the data has seen; a perturbation may lead a little beyond."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field

from offrl import models
from offrl.algos.base import register_algo_factory_func
from offrl.algos.bcq import BCQEnsembleConfig, PerturbationConfig
from offrl.algos.shared.actor_critic import ActorCritic
from offrl.config import Count, OptimConfig, Section
from offrl.config.algo import ActorCriticConfig, BoundedCriticConfig, VAEConfig, learning_rate


class PLASCriticConfig(BoundedCriticConfig):
    ensemble: BCQEnsembleConfig = BCQEnsembleConfig()


class PLASVAEConfig(VAEConfig):
    enabled: Literal[True] = True
    latent_clip: None = None  # the prior's; the actor has its own, max_latent_action
    kl_weight: float = 0.5 / 14  # the authors' is of the mean over the 14 latents, not of their sum
    encoder_layer_dims: list[Count] = [750, 750]
    decoder_layer_dims: list[Count] = [750, 750]


class SamplerConfig(Section):
    vae: PLASVAEConfig = PLASVAEConfig()


class LatentActorConfig(Section):
    layer_dims: list[Count] = [400, 300]
    perturbation: PerturbationConfig = PerturbationConfig(layer_dims=[400, 300])
    max_latent_action: float = Field(2.0, gt=0)  # of each latent, in standard deviations


class PLASConfig(ActorCriticConfig):
    ALGO_NAME: ClassVar[str] = "plas"
    DEFAULTS: ClassVar[dict[str, Any]] = {"train": {"hdf5_load_next_obs": True}}

    optim_params: dict[str, OptimConfig] = {
        "critic": learning_rate(1e-3),
        "action_sampler": learning_rate(1e-4),
        "actor": learning_rate(1e-4),
    }
    warmup_steps: int = Field(500_000, ge=0)  # updates of the VAE alone, before the rest
    critic: PLASCriticConfig = PLASCriticConfig()
    action_sampler: SamplerConfig = SamplerConfig()
    actor: LatentActorConfig = LatentActorConfig()


@register_algo_factory_func("plas")
def algo_config_to_class(algo_config: PLASConfig) -> tuple[type[PLAS], dict[str, Any]]:
    return PLAS, {}


class PLAS(ActorCritic):
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

    def train_on_batch(
        self, batch: dict[str, Any], epoch: int, validate: bool = False
    ) -> dict[str, torch.Tensor]:
        warms_up = self.num_updates < self.algo_config.warmup_steps
        if not validate:
            self.num_updates += 1
        if warms_up:
            return self._train_sampler(batch, epoch, validate)

        nets, obs, goal = self.nets, batch["obs"], batch["goal_obs"]
        with torch.no_grad():
            next_actions = self._decode("actor_target", batch["next_obs"], goal)
            q = nets["critic_target"](batch["next_obs"], next_actions, goal)
            target = batch["rewards"] + batch["discounts"] * self.pessimistic(q)
        with torch.set_grad_enabled(not validate):
            q_losses, _ = self.critic_losses(batch, target)
            actor_loss = -nets["critic"].first(obs, self._decode("actor", obs, goal), goal).mean()
        info = self.critic_info(batch, q_losses)
        if not validate:
            info |= self.optimize_critics(q_losses)
            self.optimize("actor", actor_loss)
            self.update_targets()
        actor_loss = actor_loss.detach()
        return info | {"loss": info["loss"] + actor_loss, "Actor/Loss": actor_loss}

    def _train_sampler(
        self, batch: dict[str, Any], epoch: int, validate: bool
    ) -> dict[str, torch.Tensor]:
        vae = self.algo_config.action_sampler.vae
        with torch.set_grad_enabled(not validate):
            terms = self.nets["action_sampler"].losses(
                batch["obs"], batch["goal_obs"], batch["actions"], vae.prior.temperature(epoch)
            )
            loss = terms["reconstruction"].mean() + vae.kl_weight * terms["kl"].mean()
        if not validate:
            self.optimize("action_sampler", loss)
        return {"loss": loss.detach(), "Action_Sampler/Loss": loss.detach()}

    def _decode(self, actor: str, obs: Any, goal: Any) -> torch.Tensor:
        """The action ``[B, 1, A]`` of the actor's latent, perturbed."""
        parts = self.nets[actor]
        latent = self.algo_config.actor.max_latent_action * parts["latent"](obs, goal)[0].mode()
        action = self.nets["action_sampler"].decoder(obs, goal, given=latent)[0].mode()
        return parts["perturbation"](obs, action, goal) if "perturbation" in parts else action

    def best_guess(self, obs: Any, goal: Any) -> torch.Tensor:
        return self._decode("actor", obs, goal)

    def action_distribution(self, obs: Any, goal: Any = None, state: Any = None) -> Any:
        raise ValueError("plas: a decoded latent has no density in closed form")

    def act(
        self, obs: Any, goal: Any = None, state: Any = None, generators: Any = None
    ) -> tuple[torch.Tensor, Any]:
        obs, goal = self.prepare_obs(obs), self.prepare_obs(goal, "goal")
        return self.best_guess(obs, goal)[:, 0], state
