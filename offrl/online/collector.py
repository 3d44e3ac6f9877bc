"""The acting half of a training: an agent in its environments, and the results of its steps."""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from offrl.assembly.acting import ActingExperiment
from offrl.envs.vector import Stepped
from offrl.online.agent import BaseAgent, Observations, PolicyAgent
from offrl.online.apprentice import Apprentice
from offrl.online.own_agent import OwnAgent
from offrl.online.statistics import RunningStatistics
from offrl.tree import as_arrays, as_tensors

# Return, length and success of ended episodes; success at some step is 1, 0, or -1 if unknown.
EndedEpisodes = list[tuple[float, int, int]]
START = {"returns": 0.0, "lengths": 0, "succeeded": -1}  # values at the start of an episode


class Collector:
    """Holds an agent and environments, and puts the steps that it takes there into a buffer.

    buffer: stores the steps, by ``begin``, ``record`` and ``take``.
    """

    def __init__(self, experiment: ActingExperiment, buffer: Any):
        self.experiment, self.buffer = experiment, buffer
        self.config, self.device, self.envs = experiment.config, experiment.device, experiment.envs
        self.env_args, self.alg = experiment.env_args, experiment.alg
        self.agent = _agent_of(experiment)
        self.statistics = RunningStatistics(experiment)
        self.step = 0  #: Training steps so far, in all environments.
        self.obs: Any = None  #: The observations to act on next, ``{key: [N, ...]}``.
        #: ``[N]``, true where episodes begin with these observations.
        self.begins = np.ones(self.envs.num_envs, dtype=bool)
        #: The recurrent state of the policy when the round began.
        self.round_memory: Any = None
        # Numbers of the running episodes, [N] each.
        self._running = {name: np.full(self.envs.num_envs, x) for name, x in START.items()}
        last = self.config.train.online.solved_episodes
        self._last_returns: deque[float] = deque(maxlen=last)
        self.num_restarts = 0  #: The number of environments that hung and were restarted.
        self.num_hung = 0  #: The same in this round.

    @property
    def smoothed_return(self) -> float:
        """The mean return of the last ``train.online.solved_episodes`` episodes."""
        return float(np.mean(self._last_returns)) if self._last_returns else math.nan

    def close(self) -> None:
        """End the environments."""
        self.envs.close()

    def make_steps(self, num_steps: int) -> EndedEpisodes:
        """Make so many steps in every environment. Returns the episodes that ended."""
        if self.obs is None:
            self.take_in_first(self.envs.reset())
        if self.alg.ON_POLICY and len(self.buffer):
            self.buffer.forget()  # a round that was never taken
        self.round_memory = self.agent.remembered(self.begins)
        ended: EndedEpisodes = []
        before = self.envs.num_restarts
        with self.alg.at_rest():  # once instead of for each step
            for _ in range(num_steps):
                actions, raw = self.choose_actions()
                ended += self.take_in(actions, self.envs.step(raw))
        self.num_hung = self.envs.num_restarts - before
        self.num_restarts += self.num_hung
        return ended

    def take_in_first(self, obs: Observations) -> None:
        """Store the first observations, ``{key: [N, ...]}``."""
        self.obs = obs
        self.buffer.begin(obs)

    def choose_actions(self) -> tuple[np.ndarray, np.ndarray]:
        """Choose actions in all environments. Returns them as they are learned from, ``[N, A]``,
        and as the environments take them."""
        if isinstance(self.agent, PolicyAgent):
            is_early = self.step < self.config.train.online.random_steps
            at_random = is_early and not self.alg.ON_POLICY
            return self.agent.explore(self.obs, self.begins, at_random)
        raw = self.agent.sample(self.alg.seen(self.obs))  # of a user's own roles
        return self.alg.learned_action(torch.as_tensor(raw)).cpu().numpy(), raw

    def take_in(self, actions: np.ndarray, stepped: Stepped) -> EndedEpisodes:
        """Store a step in all environments. Returns the episodes that ended with it.

        actions: as they are learned from, ``[N, A]``.
        """
        learned = self.experiment.as_learned(self.agent.rewarded(stepped))
        self.buffer.record(actions, learned)
        self.statistics.see(self.obs, learned)
        self.obs, self.begins = stepped.obs, stepped.begins
        self.step += int(np.count_nonzero(stepped.is_step))
        running, ended = self._running, []
        running["returns"] += stepped.rewards
        running["lengths"] += stepped.is_step
        running["succeeded"] = np.maximum(running["succeeded"], stepped.successes)
        ends = stepped.terminated | stepped.truncated
        over = ends | ~stepped.is_step  # episodes of hung environments are lost
        if over.any():
            for env in np.flatnonzero(ends):
                ended.append(tuple(x[env].item() for x in running.values()))
                self._last_returns.append(ended[-1][0])
            for name, start in START.items():
                running[name][over] = start
        return ended

    def take_rollout(self) -> dict[str, Any]:
        """Take the round (``Rollout.take``) out of the buffer, with the recurrent state before."""
        rollout = self.buffer.take() | {"state": self.round_memory}
        rollout["rewards"] = self.statistics.rewards(rollout["rewards"])
        return rollout

    def state(self, with_buffer: bool = True) -> dict[str, Any]:
        """Return the state of acting, apart from weights and random state."""
        return {
            "agent": self.agent.serialize(),
            "envs": None if self.obs is None else as_tensors(self.envs.state()),
            "begins": torch.from_numpy(self.begins.copy()),
            **{name: torch.from_numpy(x.copy()) for name, x in self._running.items()},
            "num_restarts": self.num_restarts,
            "last_returns": list(self._last_returns),
            "statistics": self.statistics.state(),
            "buffer": self.buffer.state() if with_buffer else None,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        self.agent.deserialize(state["agent"])
        self.begins = state["begins"].numpy().copy()
        self._running = {name: state[name].numpy().copy() for name in START}
        self.num_restarts = state["num_restarts"]
        self._last_returns = deque(state["last_returns"], self._last_returns.maxlen)
        self.statistics.restore(state["statistics"])
        if state["envs"] is not None:
            self.obs = self.envs.restore(as_arrays(state["envs"]))
        if state["buffer"] is not None:
            self.buffer.restore(state["buffer"])


def _agent_of(experiment: ActingExperiment) -> BaseAgent:
    """Make the agent that acts by the algorithm of an experiment."""
    alg, envs = experiment.alg, experiment.envs
    if hasattr(alg, "AGENT"):  # of a user's own roles
        return alg.AGENT(alg.written)
    if experiment.config.train.online.agent is not None:
        return OwnAgent(alg, envs)
    return Apprentice(alg, envs) if alg.ASKS_EXPERT else PolicyAgent(alg, envs.action_space)
