"""Environments that break their promises, by names ``odd_envs:ID``."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Tuple


class Steady(gymnasium.Env):
    """Nothing ever happens, until ``_observe(self.time)`` says something else."""

    observation_space = Box(-1, 1, (3,))
    action_space = Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._observe(), {}

    def step(self, action):
        self.time += 1
        return self._observe(), self._reward(), False, False, {}

    def _observe(self):
        return np.zeros(3, np.float32)

    def _reward(self):
        return 0.0


class Passing(Steady):
    """Solved at step 5 alone, of episodes of 20."""

    def step(self, action):
        *values, _, _ = super().step(action)
        return *values, self.time == 20, {"success": self.time == 5}


class NaNObs(Steady):
    def _observe(self):
        return np.full(3, np.nan if self.time == 5 else 0, np.float32)


class NaNReward(Steady):
    def _reward(self):
        return np.nan if self.time == 5 else 0.0


class Grown(Steady):
    def _observe(self):
        return np.zeros(4 if self.time == 5 else 3, np.float32)


class Boundless(Steady):
    action_space = Box(-np.inf, np.inf, (2,))


class FromFive(Steady):
    action_space = Discrete(3, start=5)


class Matrix(Steady):
    action_space = Box(-1, 1, (2, 3))


class Whole(Steady):
    action_space = Box(-3, 3, (2,), np.int64)


class Numbered(Steady):
    observation_space = Discrete(16)

    def _observe(self):
        return 3


class Unmade(Steady):
    def __init__(self, render_mode=None):
        raise RuntimeError("no such robot")


class TwoActions(Steady):
    action_space = Tuple((Discrete(2), Discrete(3)))


class Masked(Steady):
    """Allows one action of three, another one at each time, and stands no other."""

    observation_space = Dict(flat=Box(-1, 1, (3,)), action_mask=Box(0, 1, (3,), np.int8))
    action_space = Discrete(3)

    def step(self, action):
        if action != self.time % 3:
            raise RuntimeError(f"action {action} is forbidden at time {self.time}")
        return super().step(action)

    def _observe(self):
        mask = np.eye(3, dtype=np.int8)[self.time % 3]
        return {"flat": np.zeros(3, np.float32), "action_mask": mask}


UNFIT = (Boundless, FromFive, Matrix, Whole, Numbered, Unmade, TwoActions)
for kind in (Masked, Passing, NaNObs, NaNReward, Grown, *UNFIT):
    gymnasium.register(f"{kind.__name__}-v0", entry_point=kind, max_episode_steps=50)
gymnasium.register("Endless-v0", entry_point=Steady)
