"""What every policy is, to those that run episodes with it."""

from collections.abc import Mapping
from typing import Any

import numpy as np


class Policy:
    """Answers observations with actions, of several environments at once: trained policies
    (``RolloutPolicy``), scripted experts, and policies of a user's own, which derive from it:

        class Still(Policy):
            def act(self, obs_by_env, goal_by_env=None, reward_by_env=None):
                return {env: np.zeros(7) for env in obs_by_env}

    ``EnvPool.run``, ``evaluate`` and ``rollout`` take any of them.
    """

    needs_goal: bool = False  # whether it is given each episode's goal (``env.get_goal()``)
    counts_rewards: bool = False  # whether it must be told the reward of each action
    num_environments: int | None = None  # that it can serve at a time; None: any number

    def start_episode(self, env: int = 0, seed: int | None = None) -> None:
        """Forget the last episode of ``env``. What is drawn at random in the coming one depends
        on ``seed`` alone, if there is one."""

    def act(
        self,
        obs_by_env: Mapping[int, Any],
        goal_by_env: Mapping[int, Any] | None = None,
        reward_by_env: Mapping[int, float] | None = None,
    ) -> dict[int, np.ndarray]:
        """The next action of each environment that has an observation here. Rewards are those of
        the last actions, 0 before the first."""
        raise NotImplementedError(type(self).__name__)

    def __call__(self, obs: Any, goal: Any = None, reward: float | None = None) -> np.ndarray:
        """The next action in one environment, environment 0."""
        goals = None if goal is None else {0: goal}
        rewards = None if reward is None else {0: reward}
        return self.act({0: obs}, goals, rewards)[0]


def check_policy(policy: Any) -> None:
    if not isinstance(policy, Policy):
        name = type(policy).__name__
        raise ValueError(f"{name} is no policy: derive it from offrl.acting.Policy")
