"""Episodes in Ray actors, on one machine or many. An actor has the environment and the policy, and
plays whole episodes without messages per step. It calls the policy as ``EnvPool`` does, so that
results are bit-identical."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np

from offrl import cluster
from offrl.acting.episode import EpisodeRequest, EpisodeResult, Obs, Policy, Subgoal, as_policy
from offrl.envs import say_once
from offrl.envs.workers.pool import EnvPool, Failure, LogBuffer, Simulator, failure, select_finite
from offrl.processes import as_explained

log = logging.getLogger(__name__)

START_S = 120.0  # seconds for an actor to start, which may wait for a CPU


@contextmanager
def pools(address: str | None) -> Iterator[type[EnvPool]]:
    """Yield the class of pools to use: ``EnvPool``, with processes of this machine, or, with an
    address (``cluster.connected``), ``RayPool``, with a connection to Ray for the block."""
    if address is None:
        yield EnvPool
        return
    with cluster.connected(address):
        yield RayPool


class RayPool(EnvPool):
    """An ``EnvPool`` of Ray actors (``cluster.connected``), each with one CPU and the policy.

    num_workers: the number of actors; ``None``: one for each CPU of the cluster, which is also the
        maximum. Actors that find no free CPU are not used.
    """

    _workers: dict[int, tuple[Any, Future]]  # type: ignore[assignment]  # actors, their reports
    _episodes: dict[int, Future]  # the last episode of each worker
    _policy: Any  # Ray's reference to the policy

    @staticmethod
    def _at_once(num_workers: int | None) -> int:
        num_cpus = cluster.num_cpus()
        return min(num_workers or num_cpus, num_cpus)

    def run(self, requests: Sequence[EpisodeRequest], policy: Policy) -> Iterator[EpisodeResult]:
        try:
            self._policy = cluster.put(as_policy(policy))
        except TypeError as error:
            why = error.__cause__ or error  # Ray's own text is a page
            raise ValueError(f"the policy cannot be sent to Ray's actors: {why}") from None
        return super().run(requests, policy)

    def _slots(self, policy: Policy, num_episodes: int) -> Sequence[int]:
        for slot in range(min(self.num_workers, num_episodes)):  # each actor has a policy
            self._start(slot)
        wait([report for _, report in self._workers.values()], START_S)
        waiting = [slot for slot, (_, report) in self._workers.items() if not report.done()]
        self._kill(*waiting)
        self._workers, self._episodes = dict(enumerate(self._workers.values())), {}
        if not self._workers:
            raise ValueError(f"Ray started no worker in {START_S:g} s; free CPUs (see ray status)")
        if waiting:
            self.num_workers = len(self._workers)
            log.warning(f"workers reduced to {self.num_workers}: the cluster has no more free CPUs")
        for _, report in self._workers.values():
            if not report.exception():  # else its episode reports why
                cluster.check_versions(report.result())
        return range(min(len(self._workers), num_episodes))

    def _start(self, slot: int) -> None:
        if slot not in self._workers:
            level = logging.getLogger("offrl").getEffectiveLevel()
            arguments = self.env_args, self.timeout, level
            actor = cluster.start_actor(EpisodeActor, *arguments, environ=self._environ)
            self._workers[slot] = actor, actor.report.remote().future()

    def _assign(self, slot: int, request: EpisodeRequest, attempt: int, policy: Policy) -> None:
        self._start(slot)
        self._jobs[slot] = request, attempt
        # In a list, so that Ray does not load the policy for each episode.
        self._episodes[slot] = self._workers[slot][0].play.remote(request, [self._policy]).future()

    def _messages(self) -> Iterator[tuple[int, EpisodeResult | Failure]]:
        slots = {self._episodes[slot]: slot for slot in self._jobs}
        for episode in wait(slots, return_when=FIRST_COMPLETED).done:
            slot = slots[episode]
            if error := episode.exception():
                why = f"worker lost: {cluster.reason_of(error):.300}"
                if "Worker exit" in str(error):  # Ray's message has no details
                    silent = f"silent for {self.timeout:g} s"
                    why = f"worker ended (killed, out of memory or {silent})"
                yield slot, Failure(why)
                continue
            notices, outcome = episode.result()
            for notice in notices:
                say_once(*notice)
            if isinstance(outcome, Exception):
                raise outcome
            # A replacement actor is not checked yet.
            cluster.check_versions(self._workers[slot][1].result())
            yield slot, outcome

    def _kill(self, *slots: int) -> None:
        for slot in slots:
            self._jobs.pop(slot, None)
            cluster.import_ray().kill(self._workers.pop(slot)[0])


class EpisodeActor(cluster.RayActor):
    """Plays episodes with a policy in its own process. The policy gets and returns copies."""

    _policy: Policy

    def __init__(self, env_args: Mapping[str, Any], timeout: float, level: int):
        super().__init__(timeout)
        self._reference: Any = None  # to the policy
        self._notices = LogBuffer(level)
        self._problem: Failure | None = None
        try:
            with self.alarm:
                self._simulator = Simulator(env_args)
        except Exception as error:
            self._problem = failure(error)

    def play(
        self, request: EpisodeRequest, policy: list[Any]
    ) -> tuple[list[tuple[int, str]], EpisodeResult | Failure | Exception]:
        """Return log messages and the result, or an exception that the policy raised."""
        outcome = self._problem or self._play(request, policy[0])
        return self._notices.take(), outcome

    def _play(self, request: EpisodeRequest, reference: Any) -> EpisodeResult | Failure | Exception:
        try:
            if reference != self._reference:
                self._policy = cluster.import_ray().get(reference)
                self._reference = reference
            policy = self._policy
            with self.alarm:
                self._ask(policy.start_episode, 0, request.seed)
                return self._simulator.play(request, self, policy.needs_goal, policy.obs_keys)
        except _PolicyError as error:
            return as_explained(error.__cause__ or error, "in an actor")
        except Exception as error:
            return failure(error)

    def __call__(self, obs: Obs, goal: Obs | None, reward: float) -> np.ndarray:
        self.alarm.put_off()
        obs, goal = deepcopy((select_finite(obs, self._policy.obs_keys), goal))
        goals = {0: goal} if goal is not None else None
        return deepcopy(self._ask(self._policy.act, {0: obs}, goals, {0: reward})[0])

    def subgoal(self) -> Subgoal | None:
        return self._policy.subgoal()

    def _ask(self, method: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return method(*arguments)
        except Exception as error:
            raise _PolicyError from error


class _PolicyError(Exception):
    """Raised if the policy fails, which it would do in any actor."""
