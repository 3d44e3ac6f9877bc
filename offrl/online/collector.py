"""The half of a training that acts: an agent in its environments, and what comes of its steps."""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from offrl.assembly.acting import ActingExperiment
from offrl.online.agent import Agent, PolicyAgent
from offrl.online.apprentice import Apprentice
from offrl.online.own_agent import OwnAgent
from offrl.online.statistics import RunningStatistics
from offrl.tree import as_arrays, as_tensors

# The return and length of episodes, and whether one succeeded at some step: 1, 0, or -1 where
# nothing was said of that.
Ended = list[tuple[float, int, int]]
START = {"returns": 0.0, "lengths": 0, "succeeded": -1}  # what these are when an episode begins


class Collector:
    """Holds an agent and environments, and puts the steps that it takes there into a buffer.

    buffer: takes them in, with ``begin``, ``record`` and ``take``.
    """

    def __init__(self, experiment: ActingExperiment, buffer: Any):
        self.experiment, self.buffer = experiment, buffer
        self.config, self.device = experiment.config, experiment.device
        self.envs, self.env_args = experiment.envs, experiment.env_args
        self.alg = experiment.alg
        self.agent = agent_of(experiment)
        self.statistics = statistics_of(experiment)
        self.step = 0  #: Of the training: steps in all environments.
        self._obs: Any = None  # what the environments show now
        self._begins = np.ones(self.envs.num_envs, dtype=bool)  # where episodes begin with it
        # Of the running episodes, [N] each.
        self._running = {name: np.full(self.envs.num_envs, x) for name, x in START.items()}
        last = self.config.train.online.solved_episodes
        self._last_returns: deque[float] = deque(maxlen=last)
        self._memory: Any = None  # of the policy, when the round began
        self.num_restarts = 0  #: How often environments hung and began anew.
        self.num_hung = 0  #: How often in this round.

    @property
    def smoothed_return(self) -> float:
        """The mean return of the last ``train.online.solved_episodes`` episodes."""
        return float(np.mean(self._last_returns)) if self._last_returns else math.nan

    def close(self) -> None:
        """End the environments."""
        self.envs.close()

    def _collect(self, num_steps: int) -> Ended:
        """Make so many steps in every environment. Returns the episodes that ended."""
        if self._obs is None:
            self._begin(self.envs.reset())
        if self.alg.ON_POLICY and len(self.buffer):
            self.buffer.forget()  # a round that was not learned from
        self._memory = self.agent.remembered(self._begins)
        ended: Ended = []
        before = self.envs.num_restarts
        with self.alg.at_rest():  # once, and not for each step
            for _ in range(num_steps):
                actions, raw = self._act()
                self._take_in(actions, self.envs.step(raw), ended)
        self.num_hung = self.envs.num_restarts - before
        self.num_restarts += self.num_hung
        return ended

    def _act(self) -> tuple[np.ndarray, np.ndarray]:
        """Actions in all environments: as they are learned from, ``[N, A]``, and as environments
        take them."""
        if isinstance(self.agent, PolicyAgent):
            is_early = self.step < self.config.train.online.random_steps
            at_random = is_early and not self.alg.ON_POLICY
            return self.agent.explore(self._obs, self._begins, at_random)
        raw = self.agent.sample(self.alg.seen(self._obs))  # of a user's own roles
        return self.alg.learned_action(torch.as_tensor(raw)).cpu().numpy(), raw

    def _begin(self, obs: Any) -> None:
        """Take in what the environments show first."""
        self._obs = obs
        self.buffer.begin(obs)

    def _take_in(self, actions: Any, stepped: Any, ended: Ended) -> None:
        """Take in a step in all environments, and what episodes ended with it."""
        learned = self.experiment.as_learned(self.agent.rewarded(stepped))
        self.buffer.record(actions, learned)
        self.statistics.see(self._obs, learned)
        self._count(stepped, ended)
        self._obs, self._begins = stepped.obs, stepped.begins

    def _count(self, stepped: Any, ended: Ended) -> None:
        self.step += int(np.count_nonzero(stepped.is_step))
        running = self._running
        running["returns"] += stepped.rewards
        running["lengths"] += stepped.is_step
        running["succeeded"] = np.maximum(running["succeeded"], stepped.successes)
        ends = stepped.terminated | stepped.truncated
        over = ends | ~stepped.is_step  # of what hung, the episode is lost
        if over.any():
            for env in np.flatnonzero(ends):
                ended.append(tuple(x[env].item() for x in running.values()))
                self._last_returns.append(ended[-1][0])
            for name, start in START.items():
                running[name][over] = start

    def _take_rollout(self) -> dict[str, Any]:
        """The steps of the round (``Rollout.take``), and what the policy remembered before it."""
        rollout = self.buffer.take() | {"state": self._memory}
        rollout["rewards"] = self.statistics.rewards(rollout["rewards"])
        return rollout

    def state(self) -> dict[str, Any]:
        """Give what acting goes on from, beside weights, buffer and random state."""
        return {
            "agent": self.agent.serialize(),
            "envs": None if self._obs is None else as_tensors(self.envs.state()),
            "begins": torch.from_numpy(self._begins.copy()),
            **{name: torch.from_numpy(x.copy()) for name, x in self._running.items()},
            "num_restarts": self.num_restarts,
            "last_returns": list(self._last_returns),
            "statistics": self.statistics.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` returned."""
        self.agent.deserialize(state["agent"])
        self._begins = state["begins"].numpy().copy()
        self._running = {name: state[name].numpy().copy() for name in START}
        self.num_restarts = state["num_restarts"]
        self._last_returns = deque(state["last_returns"], self._last_returns.maxlen)
        self.statistics.restore(state["statistics"])
        if state["envs"] is not None:
            self._obs = self.envs.restore(as_arrays(state["envs"]))


def agent_of(experiment: ActingExperiment) -> Agent:
    """Make the agent that carries the algorithm of an experiment."""
    alg = experiment.alg
    if hasattr(alg, "AGENT"):  # of a user's own roles
        return alg.AGENT(alg.written)
    if experiment.config.train.online.agent is not None:
        return OwnAgent(alg, experiment.envs)
    if alg.ASKS_EXPERT:
        return Apprentice(alg, experiment.envs)
    return PolicyAgent(alg, experiment.envs.action_space)


def statistics_of(experiment: ActingExperiment) -> RunningStatistics:
    """Make the running normalisation of an experiment, which goes on from a checkpoint's."""
    config = experiment.config
    spec = experiment.alg.obs_spec.groups["obs"].items()
    vectors = [key for key, obs in spec if not obs.is_image]
    discount = getattr(config.algo, "discount", 1.0)
    num_envs = experiment.envs.num_envs
    statistics = RunningStatistics(config.train.online, vectors, num_envs, discount)
    statistics.go_on_from(experiment.moments)
    return statistics
