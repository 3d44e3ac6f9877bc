"""Learning from the trajectories of explorers."""

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from offrl.assembly.acting import ActingExperiment
from offrl.online.collector import EndedEpisodes
from offrl.online.explorer import Explorer, Trajectory, Weights, join_rounds, trajectory_length
from offrl.online.frames import unpacked
from offrl.online.ray import broker_at
from offrl.online.trainer import ActingTrainer
from offrl.tree import as_arrays, as_tensors, map_leaves

NO_WAITS = {"Wait_Time": 0.0, "Transport_Time": 0.0}


class Learner(ActingTrainer):
    """A trainer whose steps are made by explorers (``distributed``), each with a copy of the policy
    and environments of its own. A broker carries their trajectories here, and weights to them.

    Explorers act in turn in this process, or while it learns on Ray (``distributed.address``).
    """

    NUM_ENVS = 1  # as explorers act

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        if getattr(self.alg, "TRAINER", ActingTrainer) is not ActingTrainer:
            raise ValueError(
                f"distributed.explorers: {self.config.algo_name} has a Trainer of its own, whose "
                "rounds would not be those of explorers; set it to 0"
            )
        self.version = 0  #: The version of the weights: how often they were published.
        self._received: dict[tuple[int, int], int] = {}  # counts by explorer and life
        self._data: list[dict[str, Any]] = []  # of the round
        self._staleness: list[int] = []  # that of trajectories since the last ``traffic``
        self._num_refused = 0
        self._waits = dict(NO_WAITS)
        described = self.describe()
        described["model"] = {"normalization": described["model"]["normalization"]}
        make_explorer = partial(Explorer, self.config, described)
        distributed, timeout = self.config.distributed, self.config.train.online.timeout
        self.broker = broker_at(
            distributed.address, make_explorer, distributed.explorers, timeout=timeout
        )

    def _make_buffer(self, experiment: ActingExperiment) -> Any:
        if experiment.alg.ON_POLICY:
            return experiment.make_buffer()
        config = experiment.config
        return experiment.make_buffer(config.distributed.explorers * config.train.online.num_envs)

    def close(self) -> None:
        self.broker.close()
        super().close()

    # -- acting, elsewhere ------------------------------------------------------------------------

    def make_steps(self, num_steps: int) -> EndedEpisodes:
        """Publish the weights, and receive the trajectories of a round. On-policy algorithms refuse
        those that are too old."""
        distributed, on_policy = self.config.distributed, self.alg.ON_POLICY
        max_staleness = distributed.max_staleness or 10 * distributed.explorers
        num_left = distributed.num_trajectories if on_policy else 1
        self._publish()
        self._data, self.num_hung = [], 0
        ended: EndedEpisodes = []
        while num_left:
            trajectory = self._receive()
            ended += trajectory.ended
            if on_policy and self.version - trajectory.version > max_staleness:
                self._num_refused += 1
                continue
            num_left -= 1
            if on_policy:
                self._data.append(as_tensors(trajectory.data))
            else:
                self._record(trajectory)
        return ended

    def _publish(self) -> None:
        self.version += 1
        alg, normalization = self.alg, None
        with alg.trained_weights():  # copies, as training changes these
            nets = {name: np.array(x) for name, x in as_arrays(alg.nets.state_dict()).items()}
        if self.config.train.online.normalize_obs:
            stats = {"obs": alg.obs_normalizer.stats, "actions": alg.action_normalizer.stats}
            normalization = as_arrays(stats)
        moments = as_arrays(self.statistics.moments())
        position = self.version, self.step, self.agent.num_steps
        self.broker.publish(Weights(*position, nets, normalization, moments))

    def _receive(self) -> Trajectory:
        """Wait for a trajectory, and count its steps. Raises ``RuntimeError`` if one comes twice or
        is missing."""
        begun = time.time()
        trajectory = self.broker.receive()
        now, known = time.time(), (trajectory.explorer, trajectory.life)
        self._waits["Wait_Time"] += now - begun
        self._waits["Transport_Time"] += max(0.0, now - max(begun, trajectory.ready))
        self._staleness.append(self.version - trajectory.version)
        expected = self._received.get(known, 0)
        if trajectory.number != expected:
            raise RuntimeError(
                f"trajectory {trajectory.number} of explorer {known[0]} came instead of {expected}"
            )
        self._received[known] = expected + 1
        self.step += trajectory.num_steps
        self.agent.num_steps += trajectory.num_actions
        self.statistics.join(trajectory.moments)
        self.num_hung += trajectory.num_hung
        self.num_restarts += trajectory.num_hung
        self._last_returns.extend(x[0] for x in trajectory.ended)
        return trajectory

    def _record(self, trajectory: Trajectory) -> None:
        """Put the steps into the explorer's part of the replay."""
        num_envs = self.config.train.online.num_envs
        envs = trajectory.explorer * num_envs + np.arange(num_envs)
        if trajectory.data["first"] is not None:
            self.buffer.begin(trajectory.data["first"], envs)
        for actions, stepped in trajectory.data["steps"]:
            self.buffer.record(actions, stepped, envs)

    def _take_round(self) -> dict[str, Any]:
        here = [map_leaves(lambda x: x.to(self.device), data) for data in self._data]
        self._data = []
        return join_rounds([unpacked(self.alg, data) for data in here])

    def _num_due(self) -> int:
        due, online = super()._num_due(), self.config.train.online
        if self.alg.ON_POLICY or online.num_updates is None:
            return due
        return due * trajectory_length(self.config, False) // online.collect_steps

    # -- what is logged of the traffic ------------------------------------------------------------

    @property
    def problems(self) -> list[str]:
        return super().problems + self.broker.problems

    def traffic(self) -> dict[str, float]:
        """Return, since the last call, the number of trajectories, how many were too old, and the
        mean and largest number of versions by which their weights were behind; and the number of
        explorers that were given up so far."""
        logs: dict[str, float] = {"Trajectories": len(self._staleness)}
        if self._staleness:
            logs["Staleness"] = float(np.mean(self._staleness))
            logs["Staleness_Max"] = max(self._staleness)
        logs |= {"Refused": self._num_refused, "Lost_Explorers": len(self.broker.lost)}
        self._staleness, self._num_refused = [], 0
        return logs

    def waits(self) -> dict[str, float]:
        """Return the seconds of waiting for trajectories since the last call, and the part of these
        in which one was complete and on its way."""
        waits, self._waits = self._waits, dict(NO_WAITS)
        return waits

    # -- going on ---------------------------------------------------------------------------------

    def state(self, with_buffer: bool = True) -> dict[str, Any]:
        state, broker = super().state(with_buffer), self.broker.state()
        if state["buffer"] is None:  # without the replay, explorers restart
            broker.pop("explorers", None)
        traffic = {"staleness": [*self._staleness], "num_refused": self._num_refused}
        return state | {"version": self.version, "broker": broker} | traffic

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.version = state["version"]
        self._staleness, self._num_refused = list(state["staleness"]), state["num_refused"]
        self.broker.restore(state["broker"])
