"""Conservative Q-learning for discrete actions, CQL(H) (Kumar et al., 2020, arXiv:2006.04779):
values are pushed down where they are high and up on the data's actions.

On double DQN; the paper's is on quantile regression.
"""

from offrl.algos.base import Batch, register_algo
from offrl.algos.ddqn import DDQN, DDQNConfig
from offrl.config import NonNegative
from offrl.lazy import Tensor, torch


class DiscreteCQLConfig(DDQNConfig):
    ALGO_NAME = "discrete_cql"

    alpha: NonNegative = 1.0
    """Weight of the gap between values of all actions and of the data's; larger with less data."""


@register_algo(DiscreteCQLConfig)
class DiscreteCQL(DDQN):
    algo_config: DiscreteCQLConfig

    def critic_losses(self, batch: Batch, target: Tensor) -> tuple[Tensor, Tensor]:
        """Compute alpha (log sum_a exp Q(s, a) - Q(s, a_data)) and the temporal differences."""
        q = self.nets["critic"].values(batch["obs"])
        q_data = (q * batch["actions"].squeeze(1)).sum(-1, keepdim=True)
        gap = (torch.logsumexp(q, dim=-1, keepdim=True) - q_data).mean((1, 2))
        weights = batch.get("weights")
        return self.algo_config.alpha * gap + self.td_losses(q_data, target, weights), q_data
