"""SQIL with discrete actions (Reddy et al., 2020, arXiv:1905.11108): as ``sqil``, but deep
Q-learning, whose maximum is a hard one."""

from offrl.algos.dqn import DQN, DistributionalDQN, DQNConfig
from offrl.algos.shared.distributional import register_distributional
from offrl.algos.sqil import RewardedDemos


class DiscreteSQILConfig(DQNConfig):
    ALGO_NAME = "discrete_sqil"

    infinite_horizon: bool = True


class DiscreteSQIL(RewardedDemos, DQN):
    algo_config: DiscreteSQILConfig


@register_distributional(DiscreteSQILConfig, plain=DiscreteSQIL)
class DistributionalDiscreteSQIL(RewardedDemos, DistributionalDQN):
    algo_config: DiscreteSQILConfig
