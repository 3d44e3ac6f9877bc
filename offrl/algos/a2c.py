"""Advantage actor-critic (Mnih et al., 2016, arXiv:1602.01783), with environments that act in step
instead of the paper's threads.

Every few steps the policy and the value learn from the rewards of these and the value of where they
led, in one step of the optimizer. The defaults are those of Stable-Baselines3.
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


class A2CConfig(AdvantageConfig):
    ALGO_NAME = "a2c"
    DEFAULTS = collecting(5)

    optim_params: dict[str, OptimConfig] = one_optimizer(7e-4, "rmsprop")
    gae_lambda: Share = 1.0
    normalize_advantage: bool = False


@register_algo(A2CConfig)
class A2C(PolicyGradient):
    algo_config: A2CConfig

    def update(self, batch: dict[str, Any]) -> dict[str, Tensor | None]:
        log_probs, entropy, values = self.evaluate(batch)
        # R - V(s), where R are rewards of up to collect_steps steps and V of the state behind.
        actor_loss = -(self.advantages(batch) * log_probs).mean()
        value_loss = (batch["returns"] - values).square().mean()
        return self.descend(actor_loss, value_loss, entropy.mean(), batch)
