"""Environments that break their promises, by names ``odd_envs:ID``."""

import os
import time
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple


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


class Talking(Steady):
    """Has a mission in words, which is no observation of a network; and a gauge that breaks."""

    observation_space = Dict(
        flat=Box(-1, 1, (3,)),
        mission=Text(9),
        gauge=Box(-1, 1, (1,)),
        at=Tuple((Discrete(2), Box(0, 1, (2,)))),
    )

    def _observe(self):
        gauge = np.full(1, np.nan if self.time == 5 else 0, np.float32)
        place = 1, np.ones(2, np.float32)
        return {"flat": np.zeros(3, np.float32), "mission": "go", "gauge": gauge, "at": place}


class Mute(Steady):
    observation_space = Dict(mission=Text(9))


class Empty(Steady):
    observation_space = Box(-1, 1, (0,))


class Dotted(Steady):
    observation_space = Dict({"arm.joint": Box(-1, 1, (3,))})


class Screen(Steady):
    """Shows pixels of any kind."""

    def __init__(self, shape, dtype="uint8", key=None, render_mode=None):
        high = 255 if dtype == "uint8" else 1
        self.box, self.key = Box(0, high, shape, dtype), key
        self.observation_space = Dict({key: self.box}) if key else self.box

    def _observe(self):
        rng = np.random.default_rng(self.time)
        x = (rng.random(self.box.shape) * self.box.high.max()).astype(self.box.dtype)
        return {self.key: x} if self.key else x


def __getattr__(name):
    """As modules do that import their parts when these are asked for."""
    if name == "Late":
        raise ImportError("no package for it")
    raise AttributeError(name)


class Halved(gymnasium.ObservationWrapper):
    """Halves what is observed, or all but ``factor`` of it."""

    def __init__(self, env, factor=0.5):
        super().__init__(env)
        self.factor, self.observation_space = factor, Box(0, 1, env.observation_space.shape)

    def observation(self, observation):
        return (observation * self.factor).astype(np.float32)


class Hanging(Steady):
    """Hangs at a step of an episode for so long, unless ``marker`` is a file that says that it did
    so before; and raises when it is closed, or takes another working folder, if it is to."""

    def __init__(
        self, at=None, seconds=1000, marker=None, closes=True, goes_to=None, render_mode=None
    ):
        self.at, self.seconds, self.marker = at, seconds, marker and Path(marker)
        self.closes, self.goes_to = closes, goes_to

    def reset(self, seed=None, options=None):
        if self.goes_to:
            os.chdir(self.goes_to)
        return super().reset(seed=seed)

    def step(self, action):
        stepped = super().step(action)
        if self.time == self.at:
            try:
                if self.marker:
                    self.marker.touch(exist_ok=False)  # by one of several processes
                time.sleep(self.seconds)
            except FileExistsError:
                pass
        return stepped

    def close(self):
        if not self.closes:
            raise RuntimeError("the viewer is gone already")


class NoWrapper:
    def __init__(self, env):
        raise AssertionError("it was called")


UNFIT = (Empty, Dotted, Mute, Boundless, FromFive, Matrix, Whole, Numbered, Unmade, TwoActions)
for kind in (Masked, Hanging, Talking, Screen, Passing, NaNObs, NaNReward, Grown, *UNFIT):
    gymnasium.register(f"{kind.__name__}-v0", entry_point=kind, max_episode_steps=50)
gymnasium.register("Endless-v0", entry_point=Steady)
