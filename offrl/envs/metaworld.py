"""Meta-World's 50 tasks of a Sawyer arm (Yu et al., 2019, arXiv:1910.10897)."""

import warnings
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np

from offrl.acting.episode import Obs
from offrl.envs.experts import DemonstratedGoals
from offrl.envs.gymnasium import GymnasiumEnv, StepValues
from offrl.lazy import needed
from offrl.registry import ENVS, did_you_mean

GOAL = 3  # numbers at the end of an observation: the goal of the object or the hand


class MetaworldExpert:
    """Meta-World's scripted expert of a task: an action ``[4]`` in [-1, 1] for an observation."""

    horizon = 500  # length of Meta-World's episodes

    def __init__(self, task: str):
        self._policy = find_task(import_metaworld("metaworld.policies").ENV_POLICY_MAP, task)()

    def __call__(self, obs: Obs) -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about actions beyond the range, on which it relies
            return np.clip(self._policy.get_action(obs["flat"]), -1.0, 1.0)


@ENVS.register("metaworld")
class MetaworldEnv(DemonstratedGoals, GymnasiumEnv):
    """A task by its name, e.g. ``push-v3``; other ``env_kwargs`` are passed to its class.

    The observation ``flat`` ``[39]`` holds hand, gripper and objects, now ``[18]`` and one step ago
    ``[18]``, and the goal ``[3]``; ``state`` ``[36]`` is the same without the goal. The reward is 1
    in each step that succeeds, else 0, or with ``reward_shaping`` Meta-World's own, 0 to 10. An
    action ``[4]`` moves the hand and closes the fingers; after 500 steps an episode is truncated.
    The same seed gives the same scene, goal included, to the last bit.
    """

    kind = "metaworld"
    expert_of = MetaworldExpert

    def __init__(self, env_name: str, env_kwargs: dict[str, Any]):
        super().__init__(env_name, env_kwargs)
        self._given = env_name, env_kwargs
        self._success = False
        flat: Any = self.env.observation_space
        state = gymnasium.spaces.Box(flat.low[:-GOAL], flat.high[:-GOAL], dtype=flat.dtype)
        self.observation_space = gymnasium.spaces.Dict({"flat": flat, "state": state})

    def _make(self, env_name: str, reward_shaping: bool = False, **kwargs: Any) -> gymnasium.Env:
        self._reward_shaping = reward_shaping
        env = find_task(tasks(), env_name)(**({"render_mode": "rgb_array"} | kwargs))
        # By default its tasks hide the goal and expect a fixed scene; these switches, which its own
        # variants use, show the goal and draw scenes by the seed.
        env._partially_observable = False
        env._set_task_called = True
        env._freeze_rand_vec = False
        env.seeded_rand_vec = True
        del env.sawyer_observation_space  # computed anew, with the goal
        env.observation_space = env.sawyer_observation_space
        return env

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # type: ignore[override]
        if seed is not None:
            self.get_wrapper_attr("seed")(seed)  # its reset ignores seeds
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> StepValues:
        obs, reward, terminated, truncated, info = super().step(action)
        reward = reward if self._reward_shaping else float(bool(self._success))
        return obs, reward, terminated, truncated, info

    def stand_still(self, last: np.ndarray | None) -> np.ndarray:
        """Return an action ``[A]`` that keeps the hand in place and the fingers as in ``last``."""
        return np.array([0.0, 0.0, 0.0, 0.0 if last is None else last[3]])

    def serialize(self) -> dict[str, Any]:
        return super().serialize() | {"env_version": version("metaworld")}

    def _as_dict(self, obs: np.ndarray) -> dict[str, np.ndarray]:
        return {"flat": obs, "state": obs[:-GOAL].copy()}


def find_task(table: Mapping[str, Any], name: str) -> Any:
    if name not in table:
        hint = did_you_mean(name, table)
        raise ValueError(f"unknown Meta-World task {name!r}.{hint} Known: {', '.join(table)}.")
    return table[name]


def import_metaworld(module: str) -> Any:
    return needed(module, "metaworld", "Meta-World is missing")


def tasks() -> Mapping[str, Any]:
    """Return the class of each task, by its name."""
    return import_metaworld("metaworld.env_dict").ALL_V3_ENVIRONMENTS
