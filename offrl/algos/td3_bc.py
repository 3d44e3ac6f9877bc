"""TD3+BC (Fujimoto & Gu, 2021, arXiv:2106.06860): TD3, its actor held to the data's actions."""

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from offrl import models
from offrl.algos.base import register_algo
from offrl.algos.shared.actor_critic import ActorCritic
from offrl.config import Count, Section
from offrl.config.algo import StagedOptimConfig, TDConfig, WeightedCriticConfig, learning_rates


class TD3BCActorConfig(Section):
    update_freq: Count = Field(
        2, description="Number of critic updates for each update of the actor and of the targets."
    )
    noise_std: float = Field(
        0.2, ge=0, description="Standard deviation of the noise on the next action in a target."
    )
    noise_clip: float = Field(0.5, ge=0, description="Largest magnitude of that noise.")
    layer_dims: list[Count] = Field(
        [256, 256], description="Sizes of the hidden layers of the actor."
    )


class TD3BCConfig(TDConfig):
    ALGO_NAME = "td3_bc"
    DEFAULTS = {
        "experiment": {"rollout": {"horizon": 1000, "rate": 1}},
        "train": {"hdf5_normalize_obs": True, "batch_size": 256, "num_epochs": 200},
    }

    optim_params: dict[str, StagedOptimConfig] = learning_rates(
        critic=3e-4, actor=3e-4, staged=True
    )
    alpha: float = Field(2.5, ge=0, description="Weight of the value against cloning.")
    critic: WeightedCriticConfig = WeightedCriticConfig(layer_dims=[256, 256])
    actor: TD3BCActorConfig = Field(TD3BCActorConfig(), description="The policy.")


@register_algo(TD3BCConfig)
class TD3BC(ActorCritic):
    algo_config: TD3BCConfig

    # The actor's loss is a part of "loss", and so computed at every step, as robomimic does.
    SUMS_ACTOR_LOSS: ClassVar[bool] = True

    def _create_networks(self) -> None:
        self.add_critics()
        self.nets["actor"] = models.mlp_actor(
            self.obs_spec,
            self.ac_dim,
            self.algo_config.actor.layer_dims,
            num_frames=self.num_frames,
        )
        self.add_target("actor")

    def update(self, batch: dict[str, Any]) -> dict[str, Tensor | None]:
        trains_critic, trains_actor = self.trains("critic"), self.trains("actor")
        with torch.no_grad():
            target = self._target(batch)
        with torch.set_grad_enabled(trains_critic):
            q_losses, _ = self.critic_losses(batch, target)
        info = self.optimize_critics(batch, q_losses) | {"Critic/Q_Targets": target.mean()}
        self.num_updates += trains_critic

        trains_actor &= self.num_updates % self.algo_config.actor.update_freq == 0
        if trains_actor or self.validates or self.SUMS_ACTOR_LOSS:
            with torch.set_grad_enabled(trains_actor):
                info["Actor/Loss"] = self._actor_loss(batch)
            if self.SUMS_ACTOR_LOSS:
                info["loss"] = info["loss"] + info["Actor/Loss"].detach()
        if trains_actor:
            info["Actor/Grad_Norms"] = self.optimize("actor", info["Actor/Loss"])
            self.update_targets()
        return info

    def _actor_loss(self, batch: dict[str, Any]) -> Tensor:
        obs, goal = batch["obs"], batch["goal_obs"]
        policy = self.nets["actor"](obs, goal)[0].mode()
        q = self._policy_value(obs, policy, goal)
        value = q.mean() / q.detach().abs().mean()
        return self._cloning(policy, batch["actions"]) - self.algo_config.alpha * value

    def _target(self, batch: dict[str, Any]) -> Tensor:
        config, next_obs, goal = self.algo_config, batch["next_obs"], batch["goal_obs"]
        next_actions = self.nets["actor_target"](next_obs, goal)[0].mode()
        if config.actor.noise_std:  # target policy smoothing
            limit = config.actor.noise_clip
            noise = torch.randn_like(next_actions) * config.actor.noise_std
            next_actions = (next_actions + noise.clamp(-limit, limit)).clamp(-1.0, 1.0)
        q = self.nets["critic_target"](next_obs, next_actions, goal)
        value = self.pessimistic(q) - self._penalty(batch, next_actions)
        return batch["rewards"] + batch["discounts"] * value

    def _penalty(self, batch: dict[str, Any], next_actions: Tensor) -> Tensor | float:
        """What is taken from a target for actions that the data does not have."""
        return 0.0

    def _policy_value(self, obs: Any, policy: Tensor, goal: Any) -> Tensor:
        return self.nets["critic"].first(obs, policy, goal)

    def _cloning(self, policy: Tensor, actions: Tensor) -> Tensor:
        return torch.nn.functional.mse_loss(policy, actions)


TD3_BC = TD3BC  # robomimic's name
