"""DDPG (Lillicrap et al., 2016, arXiv:1509.02971): a deterministic actor maximises a critic.

It is TD3 without its three remedies. Networks, learning rates and exploration noise are TD3's, not
the paper's, so that a comparison shows what the remedies are worth.
"""

from offrl.algos.base import register_algo
from offrl.algos.td3 import TD3, TD3ActorConfig, TD3Config
from offrl.config.algo import WeightedCriticConfig, WeightedEnsembleConfig


class DDPGConfig(TD3Config):
    ALGO_NAME = "ddpg"

    critic: WeightedCriticConfig = WeightedCriticConfig(
        layer_dims=[256, 256], ensemble=WeightedEnsembleConfig(n=1)
    )
    actor: TD3ActorConfig = TD3ActorConfig(update_freq=1, noise_std=0.0)


@register_algo(DDPGConfig)
class DDPG(TD3):
    algo_config: DDPGConfig
