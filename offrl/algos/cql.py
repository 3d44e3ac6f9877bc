"""Conservative Q-learning (Kumar et al., 2020, arXiv:2006.04779): soft actor-critic whose critics
are pushed down on actions that the policy or chance proposes and up on those of the data."""

import math
from typing import Any, Literal

from pydantic import model_validator

from offrl import models
from offrl.algos.base import Batch, Info, register_algo
from offrl.algos.sac_n import SACN, SACActorConfig, SACCriticConfig
from offrl.config import Count, NonNegative
from offrl.config.algo import TDConfig, learning_rates
from offrl.lazy import Tensor, torch


class CQLCriticConfig(SACCriticConfig):
    num_action_samples: Count = 1
    """Number of the policy's actions in a target, of which the best counts."""
    target_action: Literal["sample", "mean"] = "sample"
    """The policy's action in a target, where num_action_samples is 1: one that is drawn, as
    robomimic's, or the tanh of its mean, as d3rlpy's."""
    cql_weight: NonNegative = 1.0
    """Weight of the gap between values of proposed and of the data's actions, if not tuned."""
    deterministic_backup: bool = True
    min_q_weight: NonNegative = 1.0
    """Factor on the gap."""
    target_q_gap: float | None = 5.0
    """Gap that the weight is tuned to hold. null or a negative number: cql_weight is the weight."""
    num_random_actions: Count = 10
    """Number of proposed actions per state, of each of three kinds: uniform ones, actions of the
    policy, and actions of the policy in the next state."""

    @model_validator(mode="after")
    def _has_one_target(self) -> "CQLCriticConfig":
        if self.target_action == "mean" and self.num_action_samples > 1:
            raise ValueError(
                f"target_action: mean, but num_action_samples: {self.num_action_samples} are drawn;"
                " set one of the two"
            )
        if self.target_action == "mean" and not self.deterministic_backup:
            raise ValueError(
                "target_action: mean, which has no entropy, but deterministic_backup is false"
            )
        return self


class CQLConfig(TDConfig):
    ALGO_NAME = "cql"
    DEFAULTS = {"train": {"batch_size": 1024}}
    OPTIMIZERS = learning_rates(critic=1e-3, actor=3e-4, decay_factor=0.0)
    critic: CQLCriticConfig = CQLCriticConfig()
    actor: SACActorConfig = SACActorConfig()
    """The policy."""


@register_algo(CQLConfig)
class CQL(SACN):
    """SAC-N with penalised critics; ``cql`` is the log of the weight of the gap, if tuned."""

    algo_config: CQLConfig  # type: ignore[assignment]
    NUMBERS = SACN.NUMBERS | {"cql": "critic"}

    def _create_networks(self) -> None:
        super()._create_networks()
        gap = self.algo_config.critic.target_q_gap
        if gap is not None and gap >= 0:
            self.nets["cql"] = models.Scalar(0.0)

    def next_value(self, batch: Batch, next_pi: Any) -> Tensor:
        num, config = self.algo_config.critic.num_action_samples, self.algo_config.critic
        if num == 1 and config.target_action == "sample":
            return super().next_value(batch, next_pi)
        actions = next_pi.mode() if num == 1 else next_pi.rsample(num)[0]
        q = self.nets["critic_target"](batch["next_obs"], actions)
        return q.amax(-1, keepdim=True).amin(0)

    def q_losses(self, batch: Batch, target: Tensor, next_pi: Any) -> tuple[Tensor, Info]:
        """Add the gap between a soft maximum of ``Q`` and the data's ``Q`` (equation 4)."""
        config, obs = self.algo_config.critic, batch["obs"]
        with torch.no_grad():
            proposals, log_mu = self.proposals(self.nets["actor"](obs)[0], next_pi)
        # The data's action and all proposals of a state in one pass: [N, B, 1 + 3M].
        q = self.nets["critic"](obs, torch.cat([batch["actions"], proposals], dim=1))
        q_data, q_proposed = q[..., :1], self.calibrated(q[..., 1:], batch)
        soft_maximum = torch.logsumexp(q_proposed - log_mu, dim=-1).mean(1)
        gap = config.min_q_weight * (soft_maximum - q_data.mean((1, 2)))
        td_losses = self.td_losses(q_data, target, batch.get("weights"))
        if "cql" not in self.nets:
            return td_losses + config.cql_weight * gap, {}
        gap = gap - config.target_q_gap
        weight = self.nets["cql"]().exp().clamp(max=1e6)
        logs = {"Critic/CQL_Weight": weight.squeeze()}
        logs["Critic/CQL_Weight_Loss"] = -(weight * gap.detach()).mean()
        return td_losses + weight.detach() * gap, logs

    def proposals(self, pi: Any, next_pi: Any) -> tuple[Tensor, Tensor]:
        """Draw random actions and the policy's, of the next state and this one, ``[B, 3M, A]``,
        with their log densities ``[B, 3M]`` (appendix F)."""
        num = self.algo_config.critic.num_random_actions
        size, ac_dim = len(pi.mean), self.ac_dim
        random = 2 * torch.rand((num, size, ac_dim), device=self.device) - 1
        actions, log_pi = pi.rsample(num)
        next_actions, next_log_pi = next_pi.rsample(num)
        uniform = log_pi.new_full((size, num), ac_dim * math.log(0.5))
        proposals = torch.cat([random.movedim(0, 1), next_actions, actions], dim=1)
        return proposals, torch.cat([uniform, next_log_pi, log_pi], dim=1)

    def calibrated(self, q: Tensor, batch: Batch) -> Tensor:
        """Return the proposals' values ``[N, B, 3M]`` that enter the soft maximum."""
        return q

    def _train_critics(self, batch: Batch) -> Info:
        info = super()._train_critics(batch)
        if "cql" in self.nets:
            info["Critic/CQL_Grad_Norms"] = self.optimize("cql", info["Critic/CQL_Weight_Loss"])
        return info
