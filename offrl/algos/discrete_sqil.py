"""SQIL with discrete actions (Reddy et al., 2020, arXiv:1905.11108): as ``sqil``, but deep
Q-learning, whose maximum is a hard one."""

from offrl.algos.base import register_algo_factory_func
from offrl.algos.dqn import DQN, DistributionalDQN, DQNConfig
from offrl.algos.sqil import RewardedDemos


class DiscreteSQILConfig(DQNConfig):
    ALGO_NAME = "discrete_sqil"

    infinite_horizon: bool = True


class DiscreteSQIL(RewardedDemos, DQN):
    algo_config: DiscreteSQILConfig


class DistributionalDiscreteSQIL(RewardedDemos, DistributionalDQN):
    algo_config: DiscreteSQILConfig


@register_algo_factory_func(DiscreteSQILConfig.ALGO_NAME)
def _discrete_sqil(algo_config: DiscreteSQILConfig) -> tuple[type[RewardedDemos], dict]:
    enabled = algo_config.critic.distributional.enabled
    return (DistributionalDiscreteSQIL if enabled else DiscreteSQIL), {}
