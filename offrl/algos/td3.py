"""TD3 (Fujimoto et al., 2018, arXiv:1802.09477): a deterministic actor that climbs a critic, with
three remedies for values that are too high: two critics, of which the least counts, an actor that
moves less often than they do, and noise on the action of a target.

The defaults are those of the authors' later code, two layers of 256 and a rate of 3e-4, and not the
paper's (400 and 300, 1e-3): SAC has the same, so that the two can be compared.
"""

from typing import Any

from pydantic import Field

from offrl import models
from offrl.algos.base import Generators, register_algo
from offrl.algos.shared.actor_critic import ActorCritic
from offrl.config import Count, Section
from offrl.config.algo import (
    StagedOptimConfig,
    TDConfig,
    WeightedCriticConfig,
    learning_rates,
    while_acting,
)
from offrl.lazy import Tensor, torch


class TD3ActorConfig(Section):
    update_freq: Count = 2
    """Number of critic updates for each update of the actor and of the targets."""
    noise_std: float = Field(0.2, ge=0)
    """Standard deviation of the noise on the next action in a target."""
    noise_clip: float = Field(0.5, ge=0)
    """Largest magnitude of that noise."""
    exploration_std: float = Field(0.1, ge=0)
    """Standard deviation of the noise on actions that are taken to learn from them
    (train.num_steps)."""
    layer_dims: list[Count] = [256, 256]
    """Sizes of the hidden layers of the actor."""


class TD3Config(TDConfig):
    ALGO_NAME = "td3"
    DEFAULTS = while_acting({"random_steps": 10_000}, batch_size=256)

    optim_params: dict[str, StagedOptimConfig] = {}
    OPTIMIZERS = learning_rates(critic=3e-4, actor=3e-4, staged=True)
    critic: WeightedCriticConfig = WeightedCriticConfig(layer_dims=[256, 256])
    actor: TD3ActorConfig = TD3ActorConfig()
    """The policy."""


@register_algo(TD3Config)
class TD3(ActorCritic):
    algo_config: TD3Config

    LOGS_GRADIENTS = False

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
        q_losses, _ = self.critic_losses(batch, target)
        info = self.optimize_critics(batch, q_losses) | {"Critic/Q_Targets": target.mean()}
        self.num_updates += trains_critic

        trains_actor &= self.num_updates % self.algo_config.actor.update_freq == 0
        if trains_actor or self.validates:
            info["Actor/Loss"] = self._actor_loss(batch)
        if trains_actor:
            info["Actor/Grad_Norms"] = self.optimize("actor", info["Actor/Loss"])
            self.update_targets()
        return info

    def _actor_loss(self, batch: dict[str, Any]) -> Tensor:
        policy = self.nets["actor"](batch["obs"])[0].mode()
        return -self._policy_value(batch["obs"], policy).mean()

    def _policy_value(self, obs: Any, policy: Tensor) -> Tensor:
        return self.nets["critic"].first(obs, policy)

    def _target(self, batch: dict[str, Any]) -> Tensor:
        config = self.algo_config.actor
        next_actions = self.nets["actor_target"](batch["next_obs"])[0].mode()
        if config.noise_std:  # target policy smoothing
            noise = torch.randn_like(next_actions) * config.noise_std
            noise = noise.clamp(-config.noise_clip, config.noise_clip)
            next_actions = (next_actions + noise).clamp(-1.0, 1.0)
        return batch["rewards"] + batch["discounts"] * self._next_value(batch, next_actions)

    def _next_value(self, batch: dict[str, Any], next_actions: Tensor) -> Tensor:
        critic = self.nets["critic_target"]
        return self.pessimistic(critic(batch["next_obs"], next_actions))

    def explored(self, action: Tensor, generators: Generators = None) -> Tensor:
        """Add noise."""
        noise = models.random_rows("randn", action, generators)
        return (action + self.algo_config.actor.exploration_std * noise).clamp(-1.0, 1.0)
