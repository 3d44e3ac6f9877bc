"""Acting for a Learner: an explorer, and what it gets and gives."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from offrl.assembly.acting import ActingExperiment
from offrl.config import Config
from offrl.envs.vector import Stepped
from offrl.online.collector import Collector, Ended
from offrl.online.frames import packed
from offrl.tree import as_arrays, as_tensors, map_leaves


class Weights(NamedTuple):
    """Holds what explorers get from the Learner: a policy, and where its training stands."""

    version: int
    step: int  #: Of the training: steps in all environments of all explorers.
    num_actions: int  #: That were chosen until then.
    nets: Mapping[str, np.ndarray]
    normalization: Mapping[str, Any] | None  #: ``None`` where it does not change.
    moments: Mapping[str, Any]  #: Of the running normalisation.


class Trajectory(NamedTuple):
    """Holds the steps of an explorer, equally many in each of its environments.

    It is known by its explorer, the explorer's life (each that replaces a lost one has another) and
    its number in that life. ``data`` is the round as the algorithm learns from it (``packed``), or
    the steps for a replay; all leaves are arrays.
    """

    explorer: int
    life: int
    number: int
    version: int  #: Of the weights that made it.
    data: Any
    num_steps: int
    num_actions: int
    ended: Ended
    moments: Mapping[str, Any]  #: Of what was seen and received in it.
    ready: float  #: When it was (``time.time``).
    num_hung: int = 0  #: How often environments hung in it and began anew.


class StepRecorder:
    """Keeps steps in the order in which they are taken, for a replay elsewhere."""

    def __init__(self) -> None:
        self._first: Any = None
        self._steps: list[tuple[np.ndarray, Any]] = []

    def begin(self, obs: Mapping[str, np.ndarray]) -> None:
        self._first = obs

    def record(self, actions: np.ndarray, stepped: Any) -> None:
        self._steps.append((actions, stepped))

    def take(self) -> dict[str, Any]:
        """Give the first observation, if the steps begin with one, and pairs of actions ``[N, A]``
        and what came of them."""
        taken = {"first": self._first, "steps": self._steps}
        self._first, self._steps = None, []
        return taken

    def state(self) -> None:
        """Give nothing, as no step is left between two trajectories."""


class Explorer(Collector):
    """Acts in environments of its own with a copy of the policy.

    known: what the Learner's checkpoint would hold, without weights.
    number: of the explorer, from 0 on. The first one acts with the seed of the config, the others
        with seeds that follow from it.
    life: how many explorers of this number there were before.
    """

    acted: Callable[[], None] = staticmethod(lambda: None)  #: Called after each step.

    def __init__(self, config: Config, known: Mapping[str, Any], number: int, life: int):
        config = config.model_copy(deep=True)
        config.train.cuda = False
        if number or life:
            sequence = np.random.SeedSequence(config.train.seed, spawn_key=(number, life))
            config.train.seed = int(sequence.generate_state(1)[0]) % 2**31
        experiment = ActingExperiment(config, None, known)
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

    def take_in(self, actions: np.ndarray, stepped: Stepped) -> Ended:
        ended = super().take_in(actions, stepped)
        self.acted()
        return ended

    def explore(self) -> Trajectory:
        """Make the steps of a trajectory in every environment."""
        step, num_actions = self.step, self.agent.num_steps
        ended = self.collect(trajectory_length(self.config, self.alg.ON_POLICY))
        moments = self.statistics.take()
        self.statistics.end_round()
        if self.alg.ON_POLICY:
            rollout = self.take_rollout()
            data = packed(self.alg, rollout, self.alg.process_batch_for_training(rollout))
        else:
            data = self.buffer.take()
        known = self.number, self.life, self._num_given, self._version
        made = self.step - step, self.agent.num_steps - num_actions
        when = time.time()
        trajectory = Trajectory(*known, as_arrays(data), *made, ended, moments, when, self.num_hung)
        self._num_given += 1
        return trajectory


def trajectory_length(config: Config, on_policy: bool) -> int:
    """Give the number of steps that each environment makes in a trajectory: whole rounds of
    ``train.online.collect_steps``."""
    steps = config.train.online.collect_steps
    return steps if on_policy else steps * math.ceil(config.distributed.trajectory_steps / steps)


def join_rounds(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Make one round of several, as the algorithm learns from them
    (``process_batch_for_training``). Segments are filled up behind their last rows; numbers are
    averaged."""
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
            if states[i] is None:  # an explorer that has just begun remembers nothing
                num = len(data["mask"])
                states[i] = map_leaves(lambda x, num=num: x.new_zeros(num, *x.shape[1:]), known)
        whole["state"] = map_leaves(lambda *x: torch.cat(x), *states)
    elif "mask" in whole:
        whole["state"] = None
    return whole
