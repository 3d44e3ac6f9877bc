"""An environment that breaks gymnasium's contract in one way, by name ``faulty_env:Faulty-v0``."""

import os
import subprocess
from pathlib import Path

import gymnasium
import numpy as np
from toy_env import ToyEnv


class FaultyEnv(ToyEnv):
    """``fault`` names what is wrong; ``diary`` is a folder where each episode leaves its process's
    id, ``fails`` how many attempts at an episode raise, ``chatty`` how much a step prints.
    ``starts`` is a program of its own, as some simulators have; ``says`` what a step says instead
    of the truth."""

    def __init__(self, fault=None, diary=None, fails=0, chatty=0, starts=None, says=(), **kwargs):
        super().__init__(**kwargs)
        if starts:
            self.program = subprocess.Popen(starts)
        self.says = dict(says)
        self.fault, self.diary, self.fails, self.chatty = fault, diary, fails, chatty

    def reset(self, seed=None, options=None):
        obs, info = super().reset(seed, options)
        if self.diary:
            with open(Path(self.diary) / str(seed), "a") as file:
                file.write(f"{os.getpid()}\n")
            if len((Path(self.diary) / str(seed)).read_text().split()) <= self.fails:
                raise RuntimeError("the table is gone")
        return obs if self.fault == "reset returns obs alone" else (obs, info)

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        print("bla " * (self.chatty // 4), flush=True)
        if self.fault == "step returns four":
            return obs, reward, terminated, info
        if self.fault == "reward is NaN":
            reward = np.nan
        if self.fault == "success is text":
            info["success"] = "no"
        if self.fault == "success is NaN":
            info["success"] = np.nan
        if self.fault == "position is NaN":
            obs["position"][0] = np.nan
        if self.fault == "position is text":
            obs["position"] = "near the door"
        if self.fault == "speed, which nobody looks at, is NaN":
            obs["speed"][:] = np.nan
        said = {"reward": reward, "terminated": terminated, "truncated": truncated} | self.says
        return obs, *said.values(), info

    def render(self):
        return "an image" if self.fault == "render gives text" else super().render()


gymnasium.register("Faulty-v0", entry_point=FaultyEnv)


def faulty_args(fault=None, **kwargs):
    env_kwargs = {"fault": fault, **kwargs}
    return {"env_name": "faulty_env:Faulty-v0", "type": 2, "env_kwargs": env_kwargs}
