"""What every policy is, to those that run episodes with it."""

from collections.abc import Mapping
from inspect import signature
from typing import Any

import numpy as np

Obs = Mapping[str, np.ndarray]


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
        obs_by_env: Mapping[int, Obs],
        goal_by_env: Mapping[int, Obs] | None = None,
        reward_by_env: Mapping[int, float] | None = None,
    ) -> dict[int, np.ndarray]:
        """The next action of each environment that has an observation here. Rewards are those of
        the last actions, 0 before the first."""
        raise NotImplementedError(type(self).__name__)

    def __call__(
        self, obs: Obs, goal: Obs | None = None, reward: float | None = None
    ) -> np.ndarray:
        """The next action in one environment, environment 0."""
        goals = None if goal is None else {0: goal}
        rewards = None if reward is None else {0: reward}
        return self.act({0: obs}, goals, rewards)[0]


class _Wrapped(Policy):
    """A policy of a class that is not derived from ``Policy``."""

    def __init__(self, policy: Any):
        for name in ("needs_goal", "counts_rewards", "start_episode"):
            setattr(self, name, getattr(policy, name, getattr(self, name)))
        self._act = policy.act
        self._num_taken = (
            3 if self.counts_rewards else min(2, len(signature(policy.act).parameters))
        )

    def act(self, *arguments: Any) -> dict[int, np.ndarray]:  # type: ignore[override]
        return self._act(*arguments[: self._num_taken])


def as_policy(policy: Any) -> Policy:
    """Take any object with ``act`` for a policy; it is given those arguments that it has."""
    if isinstance(policy, Policy):
        return policy
    if not callable(getattr(policy, "act", None)):
        name = type(policy).__name__
        raise ValueError(f"{name} has no act, so is no policy: derive it from offrl.acting.Policy")
    return _Wrapped(policy)
