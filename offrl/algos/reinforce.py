"""REINFORCE (Williams, 1992, doi:10.1007/BF00992696) with a learned baseline: actions become
likelier by how much better than expected they turned out.

Advantages are those of Schulman et al. (2016, arXiv:1506.02438). With ``gae_lambda`` 1, the
default, they are the rest of the episode's rewards, less the baseline. A round makes one step.
"""

from collections.abc import Mapping
from typing import Any

from offrl.algos.base import Batch, Info, register_algo
from offrl.algos.shared.policy_gradient import GAEConfig, PolicyGradient, collecting, one_optimizer
from offrl.config import Share
from offrl.lazy import Tensor


class ReinforceConfig(GAEConfig):
    ALGO_NAME = "reinforce"
    DEFAULTS = collecting(2048)

    OPTIMIZERS = one_optimizer(3e-3)
    gae_lambda: Share = 1.0


@register_algo(ReinforceConfig)
class Reinforce(PolicyGradient):
    algo_config: ReinforceConfig

    OF_STEPS = ()
    learns_segments = True  # one pass, whose values are those before it: advantages are of these

    def estimates(
        self, batch: Mapping[str, Any], mask: Tensor, rows: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        return self.received(batch, mask)

    def update(self, batch: Batch) -> Info:
        pi, values = self.policy_and_values(batch)
        log_probs, entropy = pi.log_prob(batch["actions"])[:, 0], pi.entropy()[:, 0]
        mask, shape = batch["mask"], batch["starts"].shape
        received = (batch[key].view(shape) for key in ("rewards", "terminated", "mask"))
        found = self.gae(values.detach(), *received)
        advantages = self.normalized(found["advantages"], mask)

        gains, errors = advantages * log_probs, (values - found["returns"]).square()
        gain, value_loss, entropy = self.means(mask, gains, errors, entropy)
        return self.descend(-gain, value_loss, entropy, found)
