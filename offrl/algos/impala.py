"""IMPALA (Espeholt et al., 2018, arXiv:1802.01561): an actor-critic whose targets, V-trace, are
right for steps that a somewhat earlier policy has taken.

Here one process acts and learns in turn. A round is learned from in several passes, and V-trace
corrects for what the policy has changed since the steps were taken. Losses are means over steps; in
the paper they are sums.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from offrl.algos.base import Batch, Info, register_algo
from offrl.algos.shared.policy_gradient import (
    PolicyGradient,
    PolicyGradientConfig,
    collecting,
    one_optimizer,
)
from offrl.algos.shared.returns import ends_of, vtrace
from offrl.config import Count, NonNegative, Positive
from offrl.lazy import Tensor, torch


class ImpalaConfig(PolicyGradientConfig):
    ALGO_NAME = "impala"
    DEFAULTS = collecting(20, batch_size=640)

    OPTIMIZERS = one_optimizer(6e-4, "rmsprop")
    ent_coef: NonNegative = 0.01
    num_passes: Count = 2
    """Number of passes over the steps of a round."""
    rho_bar: Positive = 1.0
    """Largest weight of a step by how much likelier its action has become. It decides which policy
    the values are of."""
    c_bar: Positive = 1.0
    """Largest factor of later steps in earlier targets. It decides how fast values are learned."""


@register_algo(ImpalaConfig)
class Impala(PolicyGradient):
    algo_config: ImpalaConfig  # type: ignore[assignment]

    OF_STEPS = ()
    learns_segments = True  # targets depend on the steps that follow, under the policy of now

    def estimates(
        self, batch: Mapping[str, Any], mask: Tensor, rows: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        pi = self.policy(rows)
        return {"log_probs": pi.log_prob(rows["actions"])[:, 0], **self.received(batch, mask)}

    def minibatches(self, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        return self.shuffled(data, self.algo_config.num_passes)

    def v_trace(
        self, batch: Mapping[str, Any], log_probs: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute V-trace's targets of values and advantages of all rows, ``[R]`` each."""
        config, shape = self.algo_config, batch["starts"].shape
        log_ratios = log_probs - batch["log_probs"]
        values, log_ratios = values.float(), log_ratios.float()  # NumPy has no bfloat16
        parts = batch["rewards"], values, batch["terminated"], batch["mask"], log_ratios
        rewards, v, terminated, mask, ratios = (x.view(shape).cpu().numpy() for x in parts)
        limits = config.discount, config.rho_bar, config.c_bar
        found = vtrace(rewards, v, terminated, ends_of(mask), ratios, *limits)
        targets, advantages = (torch.from_numpy(x).flatten().to(self.device) for x in found)
        return targets, advantages

    def update(self, batch: Batch) -> Info:
        pi, values = self.policy_and_values(batch)
        log_probs = pi.log_prob(batch["actions"])[:, 0]
        targets, advantages = self.v_trace(batch, log_probs.detach(), values.detach())

        gains, errors = advantages * log_probs, (targets - values).square()
        gain, value_loss, entropy = self.means(batch["mask"], gains, errors, pi.entropy()[:, 0])
        return self.descend(-gain, value_loss, entropy, batch)
