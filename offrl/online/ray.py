"""Explorers on Ray: its object store carries trajectories and weights, its actors explore; and the
choice between this broker and that of one process."""

import logging
import os
import time
from collections import deque
from contextlib import ExitStack, suppress
from typing import Any

from offrl import cluster
from offrl.online.broker import Broker, LocalBroker, MakeExplorer
from offrl.online.explorer import Explorer, Trajectory, Weights
from offrl.processes import Alarm

log = logging.getLogger(__name__)

# Trajectories requested of an explorer at a time, so that it need not wait for the Learner.
AHEAD = 2
START_S = 60.0  # seconds for making an explorer, or its timeout if that is longer
PATIENCE_S = 60.0  # seconds without a trajectory before a warning


class RayBroker(Broker):
    """Explorers that are Ray actors, each with one CPU. The weights are put into the object store
    once per version, and a trajectory is one message.

    address: see ``cluster.connected``.
    timeout: seconds without a step after which an explorer counts as hung, and is replaced.
    """

    def __init__(
        self, address: str, timeout: float, make_explorer: MakeExplorer, num: int, life: int = 0
    ):
        super().__init__(make_explorer, num, life)
        self._timeout = timeout
        self._connection = ExitStack()
        # A private Ray also has CPUs for evaluations.
        num_cpus = num + len(os.sched_getaffinity(0))
        self._connection.enter_context(cluster.connected(address, num_cpus))
        self._ray = cluster.import_ray()
        self._make = cluster.put(make_explorer)
        self._weights: Any = None
        self._actors: dict[int, Any] = {}
        # Requests to each explorer, with its life, in order, which Ray's wait does not keep.
        self._asked: dict[int, deque[tuple[Any, int]]] = {n: deque() for n in self._lives}
        self._ready: deque[int] = deque()  # explorers whose first answer has arrived

    def publish(self, weights: Weights) -> None:
        self._weights = cluster.put(weights)

    def receive(self) -> Trajectory:
        while True:
            self._ask()
            if not self._ready:
                self._wait()
                continue
            number = self._ready.popleft()
            ref, life = self._asked[number].popleft()
            is_current = life == self._lives.get(number)
            try:
                answer = self._ray.get(ref)
            except self._ray.exceptions.RayError as error:
                if is_current:  # else the explorer was replaced already
                    silent = f", or it made no step for {self._timeout:g} s"
                    is_gone = isinstance(error, self._ray.exceptions.RayActorError)
                    self._ray.kill(self._actors.pop(number))
                    self._note_failure(number, cluster.reason_of(error) + silent * is_gone)
                continue
            if isinstance(answer, cluster.Report):
                cluster.check_versions(answer)
                continue
            if not is_current:  # a failed actor still answers its requests
                continue
            self._failures[number] = 0
            return answer  # the next request waits for newer weights

    def _wait(self) -> None:
        """Wait for an answer. All explorers with answers get a turn before the next wait, as Ray
        prefers some of them."""
        first = {asked[0][0]: number for number, asked in self._asked.items() if asked}
        ready, _ = self._ray.wait([*first], num_returns=len(first), timeout=0)
        begun = time.monotonic()
        while not ready:
            ready, _ = self._ray.wait([*first], timeout=1.0)
            if not ready:
                self.waiting()
            if time.monotonic() - begun > PATIENCE_S:
                begun, free = time.monotonic(), self._ray.available_resources().get("CPU", 0)
                log.warning(
                    f"no trajectory came in {PATIENCE_S:g} s: explorers may wait for a CPU each, "
                    f"of which {free:g} are free (ray status), or their environments are slow"
                )
        self._ready.extend(first[ref] for ref in ready)

    def _ask(self) -> None:
        """Send requests to explorers that have too few."""
        for number, life in self._lives.items():
            asked = self._asked[number]
            if number not in self._actors:
                made = self._make, number, life, self._timeout
                self._actors[number] = cluster.start_actor(ExplorerActor, *made)
                asked.append((self._actors[number].report.remote(), life))
            for _ in range(AHEAD - sum(asked_life == life for _, asked_life in asked)):
                asked.append((self._actors[number].explore.remote(self._weights), life))

    def close(self) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors, self._asked = {}, {}
        self._connection.close()


class ExplorerActor(cluster.RayActor):
    """An explorer in its own process, which is made at the first request."""

    def __init__(self, make_explorer: MakeExplorer, number: int, life: int, timeout: float):
        super().__init__(timeout)
        # Batch processes get equal shares of the cores, but yield to waiting ones, as a Learner.
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        self._make = make_explorer, number, life
        self._explorer: Explorer | None = None

    def explore(self, weights: Weights) -> Trajectory:
        if self._explorer is None:
            make_explorer, number, life = self._make
            with Alarm(max(START_S, self.alarm.seconds)):
                self._explorer = make_explorer(number, life)
            self._explorer.acted = self.alarm.put_off
        with self.alarm:
            self._explorer.load(weights)
            return self._explorer.explore()


def broker_at(
    address: str | None,
    make_explorer: MakeExplorer,
    num_explorers: int,
    life: int = 0,
    timeout: float = 300.0,
) -> Broker:
    """Make the broker for explorers in this process or, with an address, on Ray, where an explorer
    without a step for ``timeout`` seconds is replaced."""
    if address is None:
        return LocalBroker(make_explorer, num_explorers, life)
    return RayBroker(address, timeout, make_explorer, num_explorers, life)
