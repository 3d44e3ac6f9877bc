"""REINFORCE (Williams, 1992, doi:10.1007/BF00992696) with a learned baseline: actions become
likelier by how much better than expected they turned out.

Advantages are those of Schulman et al. (2016, arXiv:1506.02438). With ``gae_lambda`` 1, which is
the default, they are the rewards of the rest of the episode, less the baseline. A round makes one
step of the optimizer.
"""

from typing import Any

from torch import Tensor

from offrl.algos.base import register_algo
from offrl.algos.shared.policy_gradient import (
    AdvantageConfig,
    PolicyGradient,
    collecting,
    one_optimizer,
)
from offrl.config import OptimConfig, Share


class ReinforceConfig(AdvantageConfig):
    ALGO_NAME = "reinforce"
    DEFAULTS = collecting(2048)

    optim_params: dict[str, OptimConfig] = one_optimizer(3e-3)
    gae_lambda: Share = 1.0


@register_algo(ReinforceConfig)
class Reinforce(PolicyGradient):
    algo_config: ReinforceConfig

    def update(self, batch: dict[str, Any]) -> dict[str, Tensor | None]:
        log_probs, entropy, values = self.evaluate(batch)
        actor_loss = -(self.advantages(batch) * log_probs).mean()
        value_loss = (values - batch["returns"]).square().mean()
        return self.descend(actor_loss, value_loss, entropy.mean(), batch)
