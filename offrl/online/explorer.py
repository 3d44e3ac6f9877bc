"""Explorers, which act for a Learner, and the weights and trajectories that they exchange."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from offrl.assembly.acting import assemble
from offrl.config import Config
from offrl.envs.vector import Stepped
from offrl.online.collector import Collector, EndedEpisodes
from offrl.online.frames import packed
from offrl.tree import as_arrays, as_tensors, map_leaves


class Weights(NamedTuple):
    """The message of the Learner to explorers: a policy, and the position of its training."""

    version: int
    step: int  #: Training steps so far, in all environments of all explorers.
    num_actions: int  #: Actions that were chosen until then.
    nets: Mapping[str, np.ndarray]
    normalization: Mapping[str, Any] | None  #: ``None`` if it does not change.
    moments: Mapping[str, Any]  #: Those of the running normalisation.


class Trajectory(NamedTuple):
    """Steps of an explorer, equally many in each of its environments. It is identified by the
    explorer, the explorer's life (replacements have another one) and its number in that life.
    ``data`` is the round as the algorithm learns from it (``packed``), or the steps for a replay;
    all leaves are arrays."""

    explorer: int
    life: int
    number: int
    version: int  #: The version of the weights that made it.
    data: Any
    num_steps: int
    num_actions: int
    ended: EndedEpisodes
    moments: Mapping[str, Any]  #: Moments of its observations and rewards.
    ready: float  #: The time when it was complete (``time.time``).
    num_hung: int = 0  #: The number of environments that hung in it and were restarted.


class StepRecorder:
    """Records steps in order, for a replay in another process."""

    def __init__(self) -> None:
        self._first: Any = None
        self._steps: list[tuple[np.ndarray, Any]] = []

    def begin(self, obs: Mapping[str, np.ndarray]) -> None:
        self._first = obs

    def record(self, actions: np.ndarray, stepped: Any) -> None:
        self._steps.append((actions, stepped))

    def take(self) -> dict[str, Any]:
        """Return the first observation, if the steps begin with one, and pairs of actions
        ``[N, A]`` and their results."""
        taken = {"first": self._first, "steps": self._steps}
        self._first, self._steps = None, []
        return taken

    def state(self) -> None:
        """Return ``None``: no step is kept between two trajectories."""


class Explorer(Collector):
    """Acts in environments of its own with a copy of the policy.

    known: the content of the Learner's checkpoint, without weights.
    number: that of the explorer, from 0 on. The first one has the seed of the config, the others
        seeds that follow from it.
    life: the number of earlier explorers with this number.
    """

    acted: Callable[[], None] = staticmethod(lambda: None)  #: Called after each step.

    def __init__(self, config: Config, known: Mapping[str, Any], number: int, life: int):
        config = config.model_copy(deep=True)
        config.train.cuda = False
        if number or life:
            sequence = np.random.SeedSequence(config.train.seed, spawn_key=(number, life))
            config.train.seed = int(sequence.generate_state(1)[0]) % 2**31
        experiment = assemble(config, None, known)
        buffer = experiment.make_buffer() if experiment.alg.ON_POLICY else StepRecorder()
        super().__init__(experiment, buffer)
        self.number, self.life = number, life
        self._version = -1
        self._num_given = 0

    def load(self, weights: Weights) -> None:
        """Act with these weights from now on. ``ValueError`` if they do not fit."""
        if weights.version == self._version:
            return
        state: dict[str, Any] = {"nets": as_tensors(weights.nets)}
        if weights.normalization is not None:
            state["normalization"] = as_tensors(weights.normalization)
        self.alg.deserialize(state)
        self.statistics.go_on_from(as_tensors(weights.moments))
        self.step, self.agent.num_steps = weights.step, weights.num_actions
        self._version = weights.version

    def take_in(self, actions: np.ndarray, stepped: Stepped) -> EndedEpisodes:
        ended = super().take_in(actions, stepped)
        self.acted()
        return ended

    def explore(self) -> Trajectory:
        """Make the steps of a trajectory in every environment."""
        step, num_actions = self.step, self.agent.num_steps
        ended = self.make_steps(trajectory_length(self.config, self.alg.ON_POLICY))
        moments = self.statistics.take()
        self.statistics.end_round()
        if self.alg.ON_POLICY:
            rollout = self.take_rollout()
            data = packed(self.alg, rollout, self.alg.process_batch_for_training(rollout))
        else:
            data = self.buffer.take()
        known = self.number, self.life, self._num_given, self._version
        made = self.step - step, self.agent.num_steps - num_actions
        self._num_given += 1
        when = time.time()
        return Trajectory(*known, as_arrays(data), *made, ended, moments, when, self.num_hung)


def trajectory_length(config: Config, on_policy: bool) -> int:
    """Return the number of steps that each environment makes in a trajectory: whole rounds of
    ``train.online.collect_steps``."""
    steps = config.train.online.collect_steps
    return steps if on_policy else steps * math.ceil(config.distributed.trajectory_steps / steps)


def join_rounds(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join processed rounds (``process_batch_for_training``) to one. Segments are padded at their
    ends; numbers are averaged."""
    if len(rounds) == 1:
        return rounds[0]
    states = [data.pop("state", None) for data in rounds]
    length = max(data["mask"].shape[1] if "mask" in data else 0 for data in rounds)

    def filled(x: Tensor, data: Mapping[str, Any]) -> Tensor:
        if "mask" not in data or x.shape[:2] != data["mask"].shape:
            return x
        return torch.cat([x, x.new_zeros(len(x), length - x.shape[1], *x.shape[2:])], dim=1)

    parts = [map_leaves(lambda x, data=data: filled(x, data), data) for data in rounds]
    whole = map_leaves(lambda *x: torch.cat(x) if x[0].ndim else torch.stack(x).mean(), *parts)
    known = next((state for state in states if state is not None), None)
    if known is not None:
        for i, data in enumerate(rounds):
            if states[i] is None:  # a new explorer has no memory
                num = len(data["mask"])
                states[i] = map_leaves(lambda x, num=num: x.new_zeros(num, *x.shape[1:]), known)
        whole["state"] = map_leaves(lambda *x: torch.cat(x), *states)
    elif "mask" in whole:
        whole["state"] = None
    return whole
