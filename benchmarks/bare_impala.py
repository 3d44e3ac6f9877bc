"""IMPALA in plain PyTorch, written down as directly as can be: an explorer and a learner, which are
two processes on one core, and a pipe for trajectories and weights.

Each message of weights asks for a trajectory, and ``AHEAD`` of them are on their way at any time.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import deque
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from bare_parts import Learner, PolicyAndValue
from torch.nn import functional as F

AHEAD = 2
Arrays = dict[str, np.ndarray]  # of a trajectory: ``obs`` [T + 1, N, O], and the rest [T, N]


def explore(connection: Connection, settings: dict[str, Any], core: int) -> None:
    """Answer each message of weights with a trajectory, in a process of its own."""
    import gymnasium as gym

    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    num_steps, num_envs = settings["collect_steps"], settings["num_envs"]
    envs = gym.make_vec(settings["env_id"], num_envs, vectorization_mode="vector_entry_point")
    shown = envs.reset(seed=1)[0]
    num_actions = int(envs.single_action_space.n)
    net = PolicyAndValue(shown.shape[1], num_actions)
    flat = Learner(net.parameters(), 0.0).flat.detach()
    over, sums = np.zeros(num_envs, dtype=bool), np.zeros(num_envs)
    returns: deque[float] = deque(maxlen=20)
    with torch.no_grad():
        while True:
            try:
                flat.copy_(torch.from_numpy(connection.recv()))
            except (EOFError, OSError):  # the learner has gone
                return
            obs = torch.zeros(num_steps + 1, num_envs, shown.shape[1])
            actions = torch.zeros(num_steps, num_envs, dtype=torch.int64)
            rewards = np.zeros((num_steps, num_envs), dtype=np.float32)
            is_step, goes_on, terminated = np.zeros((3, num_steps, num_envs), dtype=bool)
            # The largest of logits and Gumbel noise is a sample of their softmax.
            noise = torch.from_numpy(rng.gumbel(size=(*actions.shape, num_actions))).float()
            obs[0] = torch.from_numpy(shown)
            for t in range(num_steps):
                actions[t] = (net(obs[t])[0] + noise[t]).argmax(-1)
                is_step[t] = ~over  # where an episode ended, this is the reset of the next one
                shown, rewards[t], terminated[t], truncated, _ = envs.step(actions[t].numpy())
                obs[t + 1] = torch.from_numpy(shown)
                over = terminated[t] | truncated
                goes_on[t] = ~over
                sums += rewards[t]
                if over.any():
                    returns.extend(sums[over].tolist())
                    sums[over] = 0
            logits, _ = net(obs[:-1].flatten(0, 1))
            log_probs = -F.cross_entropy(logits, actions.flatten(), reduction="none")
            trajectory = {"obs": obs, "actions": actions, "log_probs": log_probs}
            arrays = {name: x.numpy() for name, x in trajectory.items()}
            arrays |= {"rewards": rewards, "is_step": is_step, "goes_on": goes_on}
            arrays |= {"terminated": terminated, "returns": np.array(returns)}
            connection.send(arrays)


class Impala:
    """The learner. ``go_on`` gives the number of steps and the seconds that they took."""

    def __init__(self, settings: dict[str, Any]):
        self.settings, self.returns = settings, np.zeros(0)
        self.core = min(os.sched_getaffinity(0))
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        arguments = theirs, settings, self.core
        context.Process(target=explore, args=arguments, daemon=True).start()
        theirs.close()
        torch.manual_seed(0)
        self.net = PolicyAndValue(settings["obs_dim"], settings["num_actions"])
        self.learner = Learner(self.net.parameters(), settings["lr"], rms_prop=True)
        for _ in range(AHEAD):
            self._publish()

    def go_on(self, seconds: float) -> tuple[int, float]:
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self.core})
        begun, num_steps = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            trajectory = self.connection.recv()
            self._learn(trajectory)
            self._publish()
            num_steps += int(trajectory["is_step"].sum())
            self.returns = trajectory["returns"]
        took = time.perf_counter() - begun
        os.sched_setaffinity(0, cores)
        return num_steps, took

    def _publish(self) -> None:
        self.connection.send(self.learner.flat.detach().numpy())

    def _learn(self, trajectory: Arrays) -> None:
        settings = self.settings
        actions, obs = (torch.from_numpy(trajectory[key]) for key in ("actions", "obs"))
        logits, values = self.net(obs.flatten(0, 1))
        num = actions.numel()
        all_log_probs = logits[:num].log_softmax(-1)
        log_probs = all_log_probs.gather(1, actions.view(-1, 1)).squeeze(1)
        targets, advantages = self._vtrace(trajectory, log_probs, values)
        share = torch.from_numpy(trajectory["is_step"].ravel()).float()
        share = share / share.sum()
        entropy = -(all_log_probs.exp() * all_log_probs).sum(-1)
        loss = -share @ (advantages * log_probs + settings["ent_coef"] * entropy)
        loss = loss + settings["vf_coef"] * (share @ (targets - values[:num]).square())
        self.learner.descend(loss, settings["max_norm"])

    def _vtrace(self, trajectory: Arrays, *outputs: torch.Tensor) -> list[torch.Tensor]:
        """Targets of the values, and advantages, ``[T N]`` each."""
        log_probs, v = (x.detach().numpy() for x in outputs)
        shape = trajectory["actions"].shape
        v = v.reshape(shape[0] + 1, -1)
        rho = np.exp(log_probs - trajectory["log_probs"]).reshape(shape).clip(max=1)
        discount = np.float32(self.settings["discount"]) * ~trajectory["terminated"]
        deltas = rho * (trajectory["rewards"] + discount * v[1:] - v[:-1]) * trajectory["is_step"]
        decay = discount * trajectory["goes_on"] * rho
        errors = np.zeros_like(v)
        for t in reversed(range(shape[0])):
            errors[t] = deltas[t] + decay[t] * errors[t + 1]
        errors[:-1] *= trajectory["is_step"]
        targets = v + errors
        advantages = rho * (trajectory["rewards"] + discount * targets[1:] - v[:-1])
        return [torch.from_numpy(x.ravel()) for x in (targets[:-1], advantages)]
