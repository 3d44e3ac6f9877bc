"""Cal-QL (Nakamoto et al., 2023, arXiv:2303.05479): CQL that pushes the values of the policy's
actions down no further than the return that the data's behaviour reached."""

from collections.abc import Mapping
from typing import Any

from offrl.algos.base import Batch, register_algo
from offrl.algos.cql import CQL, CQLConfig, CQLCriticConfig
from offrl.lazy import Tensor, torch


class CalQLConfig(CQLConfig):
    ALGO_NAME = "cal_ql"
    DEFAULTS = {"train": {"batch_size": 256}}

    OPTIMIZERS = {"critic": 3e-4, "actor": 1e-4}  # type: ignore[dict-item]
    critic: CQLCriticConfig = CQLCriticConfig(
        cql_weight=5.0, num_action_samples=10, target_q_gap=None
    )


@register_algo(CalQLConfig)
class CalQL(CQL):
    NEEDS = (*CQL.NEEDS, "returns")

    algo_config: CalQLConfig

    def process_batch_for_training(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        now = self.num_frames - 1
        returns = self.to_device(self.needed(batch, "returns")).flatten(1)[:, now : now + 1]
        return super().process_batch_for_training(batch) | {"returns": returns}

    def calibrated(self, q: Tensor, batch: Batch) -> Tensor:
        """Compute ``max(Q(s, a), V^mu(s))`` for the policy's actions (equation 5.1)."""
        random, policy = q.tensor_split([self.algo_config.critic.num_random_actions], dim=-1)
        return torch.cat([random, torch.maximum(policy, batch["returns"])], dim=-1)
