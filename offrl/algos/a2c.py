"""Advantage actor-critic (Mnih et al., 2016, arXiv:1602.01783), with environments that act in step
instead of the paper's threads: REINFORCE with a baseline that does not wait for episodes to end.

Every few steps, policy and value make one optimizer step on these. The return ``R`` is the sum of
their rewards and the value of the state that they led to; with ``gae_lambda`` 1, the advantage is
``R - V(s)``. The defaults are those of Stable-Baselines3.
"""

from offrl.algos.base import register_algo
from offrl.algos.reinforce import Reinforce
from offrl.algos.shared.policy_gradient import GAEConfig, collecting, one_optimizer
from offrl.config import Share


class A2CConfig(GAEConfig):
    ALGO_NAME = "a2c"
    DEFAULTS = collecting(5)

    OPTIMIZERS = one_optimizer(7e-4, "rmsprop")
    gae_lambda: Share = 1.0
    normalize_advantage: bool = False


@register_algo(A2CConfig)
class A2C(Reinforce):
    algo_config: A2CConfig  # type: ignore[assignment]
