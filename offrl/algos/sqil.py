"""SQIL (Reddy et al., 2020, arXiv:1905.11108): soft actor-critic that is rewarded for the steps of
demonstrations, by 1, and not for its own. Half of each batch are demonstrations
(``train.online.replay.demo_share``), so that the policy returns to what they show.

A termination by the environment says nothing of later rewards, but would stop their sum. So the
last reward of an episode that terminated is received for ever (``infinite_horizon``): to end as
demonstrations do is as good as to go on like them.
"""

from collections.abc import Mapping
from typing import Any

from offrl.algos.base import register_algo
from offrl.algos.sac import SAC, SACConfig
from offrl.algos.shared.td import TDLearner


class SQILConfig(SACConfig):
    ALGO_NAME = "sqil"

    infinite_horizon: bool = True


class RewardedDemos(TDLearner):
    """Gives the steps of demonstrations the reward 1, and all others 0. ``is_demo`` ``[B, 1]`` of a
    batch says which these are."""

    NEEDS_DEMOS = True

    def process_batch_for_training(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        rewards = batch["is_demo"].expand(batch["rewards"].flatten(1).shape)
        return super().process_batch_for_training({**batch, "rewards": rewards})


@register_algo(SQILConfig)
class SQIL(RewardedDemos, SAC):
    algo_config: SQILConfig
