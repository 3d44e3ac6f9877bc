"""Scripted demonstrators: functions from an observation to an action, without memory.

Memoryless experts make data that a memoryless policy can learn. ``offrl collect`` runs them,
and the goals of their tasks are where they get (``offrl.envs.demonstrated``).

A new one is a function ``obs -> action`` in the file of its family of tasks, registered under the
name of its task, ``@EXPERTS.register("Stack")``; a new family is a file that is imported here.
Simulators that bring experts, as Meta-World does, have a function from a task's name to its expert.
``ExpertPolicy(expert)`` is the policy that ``EnvPool.run`` takes, also of a function of your own.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from offrl.acting.episode import Obs, Policy
from offrl.envs.experts.lift import lift
from offrl.envs.experts.metaworld import metaworld_expert
from offrl.registry import EXPERTS

__all__ = ["ExpertPolicy", "lift", "metaworld_expert", "scripted_expert"]


def scripted_expert(env_args: Mapping[str, Any]) -> Callable[[Obs], np.ndarray]:
    """The demonstrator of the task that ``env_args`` describes (``make_env``). ``ValueError`` says
    which there are."""
    name = env_args["env_name"]
    if env_args.get("type") == "metaworld":
        return metaworld_expert(name)
    if name not in EXPERTS.names():
        known = ", ".join(EXPERTS.names())
        raise ValueError(
            f"{name} has no scripted expert; there are those of {known} and of Meta-World's tasks"
        )
    return EXPERTS[name]


class ExpertPolicy(Policy):
    """An expert as an evaluation policy, with Gaussian noise on the arm's motion.

    ``noise`` is the standard deviation, in the units of the action, or several of which episodes
    take one each, in turn by their seeds; the last component (the gripper) stays clean. Each
    episode's noise comes from its seed.
    """

    def __init__(self, expert: Callable[[Obs], np.ndarray], noise: float | Sequence[float] = 0.0):
        self.expert = expert
        self.levels = [noise] if isinstance(noise, (int, float)) else list(noise)
        self._episodes: dict[int, tuple[float, np.random.Generator]] = {}

    def start_episode(self, env: int = 0, seed: int | None = None) -> None:
        level = self.levels[(seed or 0) % len(self.levels)]
        self._episodes[env] = level, np.random.default_rng(seed)

    def act(
        self,
        obs_by_env: Mapping[int, Obs],
        goal_by_env: Mapping[int, Obs] | None = None,
        reward_by_env: Mapping[int, float] | None = None,
    ) -> dict[int, np.ndarray]:
        return {env: self._act(env, obs) for env, obs in obs_by_env.items()}

    def _act(self, env: int, obs: Obs) -> np.ndarray:
        action = self.expert(obs)
        level, generator = self._episodes[env]
        action[:-1] += level * generator.standard_normal(len(action) - 1)
        return np.clip(action, -1.0, 1.0).astype(np.float32)
