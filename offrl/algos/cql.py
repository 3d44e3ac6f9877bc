"""Conservative Q-learning (Kumar et al., 2020, arXiv:2006.04779): soft actor-critic whose critics
are pushed down on actions that the policy or chance proposes and up on those of the data."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field

from offrl import models
from offrl.algos.actor_critic import (
    ActorCritic,
    ActorCriticConfig,
    BoundedCriticConfig,
    learning_rate,
)
from offrl.algos.base import register_algo_factory_func
from offrl.config import Count, OptimConfig, Section


class CommonNetConfig(Section):
    std_activation: Literal["softplus", "exp"] = "exp"
    use_tanh: bool = True
    low_noise_eval: bool = True


class GaussianNetConfig(Section):
    init_last_fc_weight: float = 0.001
    init_std: float = 0.3
    fixed_std: bool = False


class ActorNetConfig(Section):
    type: Literal["gaussian"] = "gaussian"
    common: CommonNetConfig = CommonNetConfig()
    gaussian: GaussianNetConfig = GaussianNetConfig()


class ActorConfig(Section):
    bc_start_steps: int = Field(0, ge=0)  # updates in which the actor clones
    target_entropy: float | Literal["default"] | None = "default"  # -A; None: entropy weight 1
    max_gradient_norm: float | None = Field(None, gt=0)
    net: ActorNetConfig = ActorNetConfig()
    layer_dims: list[Count] = [300, 400]


class CQLCriticConfig(BoundedCriticConfig):
    num_action_samples: Count = 1  # for a target, of which the best counts
    cql_weight: float = Field(1.0, ge=0)  # alpha', where it is not tuned
    deterministic_backup: bool = True  # targets without the entropy
    min_q_weight: float = Field(1.0, ge=0)  # of the gap
    target_q_gap: float | None = 5.0  # tau, to which the gap is tuned; None or negative: not tuned
    num_random_actions: Count = 10


class CQLConfig(ActorCriticConfig):
    ALGO_NAME: ClassVar[str] = "cql"
    DEFAULTS: ClassVar[dict[str, Any]] = {
        "train": {"hdf5_load_next_obs": True, "batch_size": 1024}
    }

    optim_params: dict[str, OptimConfig] = {
        "critic": learning_rate(1e-3, decay_factor=0.0),
        "actor": learning_rate(3e-4, decay_factor=0.0),
    }
    critic: CQLCriticConfig = CQLCriticConfig()
    actor: ActorConfig = ActorConfig()


@register_algo_factory_func("cql")
def algo_config_to_class(algo_config: CQLConfig) -> tuple[type[CQL], dict[str, Any]]:
    return CQL, {}


class CQL(ActorCritic):
    """``entropy`` and ``cql`` are the logarithms of the two weights that are tuned."""

    def _create_networks(self) -> None:
        config = self.algo_config
        common = config.actor.net.common.to_dict()
        self._low_noise_eval = common.pop("low_noise_eval")
        options = common | config.actor.net.gaussian.to_dict()
        self.nets["actor"] = models.mlp_actor(
            self.obs_spec,
            self.ac_dim,
            config.actor.layer_dims,
            "gaussian",
            self.num_frames,
            min_std=0.007,
            **options,
        )
        self.add_critics(value_bounds=config.critic.value_bounds)
        self.target_entropy = config.actor.target_entropy
        if self.target_entropy == "default":
            self.target_entropy = -float(self.ac_dim)
        if self.target_entropy is not None:
            self.nets["entropy"] = models.Scalar(0.0)
        if config.critic.target_q_gap is not None and config.critic.target_q_gap >= 0:
            self.nets["cql"] = models.Scalar(0.0)

    def _optim_params(self) -> dict[str, OptimConfig]:
        given = self.algo_config.optim_params
        tuned = {"entropy": given["actor"], "cql": given["critic"]}
        rates = {
            name: learning_rate(optim.learning_rate.initial)
            for name, optim in tuned.items()
            if name in self.nets
        }
        return dict(given) | rates

    def train_on_batch(
        self, batch: dict[str, Any], epoch: int, validate: bool = False
    ) -> dict[str, torch.Tensor]:
        with torch.set_grad_enabled(not validate):
            actor = self._train_actor(batch, validate)
            critics = self._train_critics(batch, validate)
        return actor | critics | {"loss": actor["Actor/Loss"] + critics["loss"]}

    def _train_actor(self, batch: dict[str, Any], validate: bool) -> dict[str, torch.Tensor]:
        """Soft policy improvement: entropy is rewarded by a weight that keeps it at its target."""
        obs, goal = batch["obs"], batch["goal_obs"]
        pi, _ = self.nets["actor"](obs, goal)
        policy, log_prob = pi.rsample(1)
        weight = self._entropy_weight()
        clones = self.num_updates < self.algo_config.actor.bc_start_steps
        if clones:
            value = pi.log_prob(batch["actions"])
        else:
            value = self.nets["critic"](obs, policy, goal).amin(0)
        actor_loss = (weight.detach() * log_prob - value).mean()
        info = {"Actor/Loss": actor_loss.detach(), "Entropy_Weight": weight.detach().squeeze()}

        entropy_loss = torch.zeros((), device=self.device)
        if "entropy" in self.nets:
            surplus = -(log_prob.detach() + self.target_entropy)
            entropy_loss = (self.nets["entropy"]() * surplus).mean()
            if not validate:
                info["Entropy_Grad_Norms"] = self.optimize("entropy", entropy_loss)
        info["Entropy_Weight_Loss"] = entropy_loss.detach()
        if not validate:
            limit = self.algo_config.actor.max_gradient_norm
            info["Actor/Grad_Norms"] = self.optimize("actor", actor_loss, limit)
            self.num_updates += 1
        return info

    def _entropy_weight(self) -> torch.Tensor:
        if "entropy" in self.nets:
            return self.nets["entropy"]().exp()
        return torch.ones(1, device=self.device)

    def _train_critics(self, batch: dict[str, Any], validate: bool) -> dict[str, torch.Tensor]:
        """Temporal differences, and the gap between a soft maximum of Q and Q of the data."""
        config, nets = self.algo_config.critic, self.nets
        obs, next_obs, goal, actions = (
            batch[key] for key in ("obs", "next_obs", "goal_obs", "actions")
        )
        with torch.no_grad():
            pi, next_pi = nets["actor"](obs, goal)[0], nets["actor"](next_obs, goal)[0]
            target = batch["rewards"] + batch["discounts"] * self._next_value(batch, next_pi)
            proposals, log_density = self._proposals(pi, next_pi)
        # The data's action and all proposals of a state in one pass.
        q = nets["critic"](obs, torch.cat([actions, proposals], dim=1), goal)  # [N, B, 1 + 3M]
        q_data, q_proposed = q[..., :1], q[..., 1:]
        soft_maximum = torch.logsumexp(q_proposed - log_density, dim=-1).mean(1)
        gap = config.min_q_weight * (soft_maximum - q_data.mean((1, 2)))
        weight = torch.tensor(config.cql_weight)
        info = {}
        if "cql" in nets:
            gap = gap - config.target_q_gap
            weight = nets["cql"]().exp().clamp(max=1e6)
            weight_loss = -(weight * gap.detach()).mean()
            if not validate:
                info = {
                    "Critic/CQL_Weight": weight.detach().squeeze(),
                    "Critic/CQL_Weight_Loss": weight_loss.detach(),
                    "Critic/CQL_Grad_Norms": self.optimize("cql", weight_loss),
                }
        losses = self.td_losses(q_data, target) + weight.detach() * gap
        info |= self.critic_info(batch, losses)
        if not validate:
            info |= self.optimize_critics(losses)
            self.update_target("critic")
        return info

    def _next_value(self, batch: dict[str, Any], next_pi: Any) -> torch.Tensor:
        config = self.algo_config.critic
        actions, log_prob = next_pi.rsample(config.num_action_samples)
        q = self.nets["critic_target"](batch["next_obs"], actions, batch["goal_obs"])
        value = q.amax(-1, keepdim=True).amin(0)
        if config.num_action_samples == 1 and not config.deterministic_backup:
            value = value - self._entropy_weight() * log_prob
        return value

    def _proposals(self, pi: Any, next_pi: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Random actions and the policy's, of the next state and this one, ``[B, 3M, A]``, and
        their log densities ``[B, 3M]`` (appendix F)."""
        num = self.algo_config.critic.num_random_actions
        size, ac_dim = len(pi.mean), self.ac_dim
        random = 2 * torch.rand((num, size, ac_dim), device=self.device) - 1
        actions, log_prob = pi.rsample(num)
        next_actions, next_log_prob = next_pi.rsample(num)
        uniform = log_prob.new_full((size, num), ac_dim * math.log(0.5))
        return (
            torch.cat([random.movedim(0, 1), next_actions, actions], dim=1),
            torch.cat([uniform, next_log_prob, log_prob], dim=1),
        )
