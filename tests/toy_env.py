"""A small gymnasium environment whose episodes can be told to fail, by name ``toy_env:Toy-v0``."""

import logging
import os
import signal
import time
from pathlib import Path

import gymnasium
import numpy as np

from offrl.acting import Policy


class ToyEnv(gymnasium.Env):
    """Walk to the origin. ``trouble`` maps a seed to what happens at step 2 of its episode:
    ``kill``, ``hang`` or ``raise``, always or (with ``scratch``, a folder) the first time only."""

    observation_space = gymnasium.spaces.Dict(
        {
            "position": gymnasium.spaces.Box(-9, 9, (3,), np.float64),
            "speed": gymnasium.spaces.Box(-9, 9, (2,), np.float64),
        }
    )
    action_space = gymnasium.spaces.Box(-1, 1, (2,))
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(
        self,
        trouble=None,
        scratch=None,
        broken=False,
        blind=False,
        slow=0.0,
        says=None,
        render_mode=None,
    ):
        if says:
            logging.getLogger("offrl.toy").warning(says)
        self.blind, self.slow = blind, slow
        if broken:
            raise RuntimeError("the simulator is not installed")
        self.render_mode = render_mode
        self.trouble = {int(seed): kind for seed, kind in (trouble or {}).items()}
        self.scratch = scratch

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.steps = seed, 0
        self.position = self.np_random.uniform(-1, 1, 2)
        return self._observe(), {}

    def step(self, action):
        self.steps += 1
        time.sleep(self.slow)
        if self.steps == 2:
            self._have_trouble()
        self.position = self.position + 0.1 * np.asarray(action, dtype=np.float64)
        near = bool(np.abs(self.position).max() < 0.3)
        return self._observe(), float(-np.abs(self.position).sum()), False, False, {"success": near}

    def render(self):
        if self.blind:
            raise RuntimeError("no camera here")
        return np.full((32, 32, 3), self.steps, dtype=np.uint8)

    def _observe(self):
        return {"position": np.array([*self.position, 1.0]), "speed": np.zeros(2)}

    def _have_trouble(self):
        kind = self.trouble.get(self.seed)
        if self.scratch and kind:
            mark = Path(self.scratch) / f"{self.seed}"
            kind = None if mark.exists() else kind
            mark.touch()
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "hang":
            time.sleep(1000)
        if kind == "raise":
            raise FloatingPointError("physics exploded")


class HandToyEnv(ToyEnv):
    """What walks is a hand. A picture's first pixel has the ``x`` of the first mark."""

    observation_space = gymnasium.spaces.Dict(
        {**ToyEnv.observation_space.spaces, "hand_eef_pos": ToyEnv.observation_space["position"]}
    )
    marks = ()

    def mark(self, positions):
        self.marks = positions

    def render(self):
        picture = super().render()
        picture[0, 0, 0] = self.marks[0][0] if self.marks else 255
        return picture

    def _observe(self):
        return super()._observe() | {"hand_eef_pos": np.array([*self.position, 1.0])}


class GoalToyEnv(ToyEnv):
    """With a goal of each episode's own."""

    def get_goal(self):
        return {"position": np.array([*self.np_random.uniform(-1, 1, 2), 1.0])}


class WithGoal(gymnasium.Wrapper):
    def get_goal(self):
        return {"position": np.zeros(3)}


gymnasium.register("WrappedGoalToy-v0", entry_point=lambda **kwargs: WithGoal(ToyEnv(**kwargs)))
gymnasium.register("Toy-v0", entry_point=ToyEnv)
gymnasium.register("HandToy-v0", entry_point=HandToyEnv)
gymnasium.register("GoalToy-v0", entry_point=GoalToyEnv)


def toy_args(**kwargs):
    return {"env_name": "toy_env:Toy-v0", "type": 2, "env_kwargs": kwargs}


class WalkHome(Policy):
    """Towards the origin, with each episode's own noise."""

    def __init__(self):
        self.generators = {}

    def start_episode(self, env=0, seed=None):
        self.generators[env] = np.random.default_rng(seed)

    def act(self, obs_by_env, goal_by_env=None, reward_by_env=None):
        return {
            env: np.clip(
                -obs["position"][:2] + 0.3 * self.generators[env].standard_normal(2), -1, 1
            )
            for env, obs in obs_by_env.items()
        }
