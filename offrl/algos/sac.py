"""Soft actor-critic with a tuned temperature (Haarnoja et al., 2018, arXiv:1812.05905): a policy of
high values and high entropy. It is SAC-N with two critics.

Standard deviations before the tanh are from 0.007 to 7.5, logarithms from -5 to 2. The usual lower
limit of -20 would also allow almost no noise, far from any target entropy.
"""

from offrl.algos.base import register_algo
from offrl.algos.sac_n import SACN, SACActorConfig, SACCriticConfig, SACNConfig
from offrl.config.algo import while_acting


class SACConfig(SACNConfig):
    ALGO_NAME = "sac"
    DEFAULTS = while_acting({"random_steps": 10_000}, batch_size=256)

    critic: SACCriticConfig = SACCriticConfig(layer_dims=[256, 256])
    actor: SACActorConfig = SACActorConfig(layer_dims=[256, 256])


@register_algo(SACConfig)
class SAC(SACN):
    algo_config: SACConfig

    LOGS_GRADIENTS = False
