"""Episodes in worker processes that step and reset environments on their own.

The parent answers all waiting workers with one call of the policy; an episode depends only on its
seed, so results do not depend on the number of workers. A worker never imports torch.

The parent sends, one after the other, an ``EpisodeRequest``, whether the policy needs a goal, and
its ``obs_keys``. For each request, the worker sends a request per step, which is answered with an
action and its ``Subgoal``, and finally an ``EpisodeResult``. After a ``Failure`` it sends nothing
more. Each message carries the log messages since the last one.
"""

import logging
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from offrl.acting.episode import (
    ACTION_MASK,
    EpisodeRequest,
    EpisodeResult,
    Misfit,
    Obs,
    Policy,
    Subgoal,
    as_policy,
    check_obs,
    describe,
    run_episode,
)
from offrl.envs import check_modules, make_env, observe_only, say_once
from offrl.kernels.allocator import FreedMemory
from offrl.processes import Channel, Child, wait

log = logging.getLogger(__name__)

ATTEMPTS = 3  # attempts at an episode, each in a new worker
HOPELESS = 5  # successive lost episodes after which the rest are skipped


class ActionRequest(NamedTuple):
    """A request for an action, with the arguments of ``answer`` in ``run_episode``."""

    obs: Any
    goal: Any
    reward: float


class Failure(NamedTuple):
    """The reason why an episode could not be run to its end."""

    reason: str
    is_final: bool = False  # would fail in any worker


def failure(error: Exception) -> Failure:
    return Failure(describe(error), isinstance(error, Misfit))


class LogBuffer(logging.Handler):
    """Collects offrl's log messages of at least this level in this process."""

    def __init__(self, level: int):
        super().__init__()
        self._noted: list[tuple[int, str]] = []
        log = logging.getLogger("offrl")
        log.setLevel(level)
        log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self._noted.append((record.levelno, record.getMessage()))

    def take(self) -> list[tuple[int, str]]:
        """Return the messages since the last call, as arguments of ``say_once``."""
        noted, self._noted = self._noted, []
        return noted


class Simulator:
    """An environment in this process. Raises ``Misfit`` if ``env_args`` are invalid."""

    def __init__(self, env_args: Mapping[str, Any]):
        self._memory = FreedMemory()  # of models, which resets compile
        try:
            self._env = make_env(env_args)
        except (ValueError, ImportError) as error:
            raise Misfit(describe(error)) from None

    def play(
        self,
        request: EpisodeRequest,
        answer: Callable[[Any, Any, float], np.ndarray],
        needs_goal: bool,
        obs_keys: Sequence[str],
    ) -> EpisodeResult:
        """Run an episode, for a policy that reads ``obs_keys`` (``run_episode``)."""
        observe_only(self._env, None if request.record else obs_keys)
        result = run_episode(self._env, request, answer, needs_goal)
        self._memory.limit()
        return result


def select_finite(obs: Obs, keys: Sequence[str]) -> Obs:
    """Select the observations of ``keys``, and raise an error unless they are finite. If one is
    missing, keep all, so that the policy's error can list them."""
    check_obs(obs, keys)
    if keys and all(key in obs for key in keys):
        return {key: obs[key] for key in (*keys, ACTION_MASK) if key in obs}
    return obs


class _Parent:
    """The worker's end of the channel to the parent, which has the policy."""

    def __init__(self, channel: Channel, level: int):
        self._channel, self._notices = channel, LogBuffer(level)
        self.obs_keys: Sequence[str] = ()
        self._subgoal: Subgoal | None = None

    def tell(self, message: ActionRequest | EpisodeResult | Failure) -> None:
        self._channel.send((self._notices.take(), message))

    def __call__(self, obs: Obs, goal: Obs | None, reward: float) -> np.ndarray:
        self.tell(ActionRequest(select_finite(obs, self.obs_keys), goal, reward))
        action, self._subgoal = self._channel.receive()
        return action

    def subgoal(self) -> Subgoal | None:
        return self._subgoal


def _serve(channel: Channel, env_args: Mapping[str, Any], level: int) -> None:
    """Build the environment, and run episodes on request."""
    parent = _Parent(channel, level)
    try:
        simulator = Simulator(env_args)
        while True:
            request, needs_goal, parent.obs_keys = channel.receive()
            parent.tell(simulator.play(request, parent, needs_goal, parent.obs_keys))
    except Exception as error:
        parent.tell(failure(error))


class Worker(Child):
    """The parent's end of a process that runs episodes."""

    def __init__(self, env_args: Mapping[str, Any], environ: Mapping[str, str]):
        level = logging.getLogger("offrl").getEffectiveLevel()
        wording = "simulates", "use fewer (experiment.rollout.num_workers, --workers)"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)
        super().__init__("spawn", _serve, (env_args, level), *wording, environ, self._log)
        self.last_heard = time.monotonic()

    def start_episode(self, *job: Any) -> None:
        """Ask for an episode, and clear the last one's output, whose file would grow forever."""
        self._log.seek(0)
        self._log.truncate()
        self.send(job)

    def send(self, message: Any) -> None:
        self.last_heard = time.monotonic()
        super().send(message)

    def receive(self) -> ActionRequest | EpisodeResult | Failure:
        self.last_heard = time.monotonic()
        said = super().receive()
        if isinstance(said, Exception):
            return Failure(str(said))
        notices, message = said
        for notice in notices:
            say_once(*notice)
        return message


class EnvPool(AbstractContextManager):
    """Runs episodes in worker processes, which it keeps between calls. A context manager.

    env_args: the environment, see ``make_env``.
    num_workers: the number of processes; ``None``: one for each CPU core.
    timeout: seconds without an answer before a worker counts as hung.
    gl_backend: MuJoCo's rendering back end in workers (see ``rendering``); ``None``: none.
    """

    def __init__(
        self,
        env_args: Mapping[str, Any],
        num_workers: int | None = None,
        timeout: float = 300.0,
        gl_backend: str | None = None,
    ):
        check_modules(env_args)
        self.env_args, self.timeout, self.gl_backend = dict(env_args), timeout, gl_backend
        self.num_workers = self._at_once(num_workers)
        self._workers: dict[int, Worker] = {}
        self._jobs: dict[int, tuple[EpisodeRequest, int]] = {}  # of busy workers; attempts
        self._environ = {"MUJOCO_GL": gl_backend or "disabled"}

    @staticmethod
    def _at_once(num_workers: int | None) -> int:
        """Return the number of workers for the requested number."""
        return num_workers or len(os.sched_getaffinity(0))

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes."""
        self._kill(*self._workers)

    def check(self, policy: Policy, num_episodes: int = 1) -> None:
        """Take one step, and raise ``ValueError`` if environment and policy do not fit together.
        Meanwhile the workers for the coming episodes start."""
        policy = as_policy(policy)
        for slot in self._slots(policy, num_episodes):
            self._start(slot)
        for result in self.run([EpisodeRequest(seed=0, horizon=1)], policy):
            if result.error:
                name = self.env_args.get("env_name")
                raise ValueError(f"the environment {name!r}: {result.error}")

    def run(self, requests: Sequence[EpisodeRequest], policy: Policy) -> Iterator[EpisodeResult]:
        """Run episodes, and yield results as they end, with an ``error`` after three failures."""
        policy = as_policy(policy)
        slots = self._slots(policy, len(requests))
        todo = deque(requests)
        lost_in_a_row = 0
        self._kill(*self._jobs)  # left in mid-episode by another run that was never closed
        jobs: dict[int, tuple[EpisodeRequest, int]] = {}
        self._jobs = jobs
        try:
            while todo or self._jobs:
                for slot in slots:
                    if todo and slot not in self._jobs:
                        self._assign(slot, todo.popleft(), 1, policy)
                turns: dict[int, ActionRequest] = {}
                for slot, message in self._messages():
                    if isinstance(message, ActionRequest):
                        turns[slot] = message
                        continue
                    request, attempt = self._jobs[slot]
                    if isinstance(message, EpisodeResult):
                        del self._jobs[slot]
                        lost_in_a_row = 0
                        yield message
                        continue
                    self._kill(slot)
                    if attempt < ATTEMPTS and not message.is_final:
                        log.warning(
                            f"seed {request.seed}: {message.reason}; it is run again in a new "
                            f"worker (attempt {attempt + 1} of {ATTEMPTS})"
                        )
                        self._assign(slot, request, attempt + 1, policy)
                        continue
                    yield EpisodeResult(request, error=message.reason)
                    lost_in_a_row += 1
                    if lost_in_a_row >= HOPELESS:
                        reason = f"not tried, as {HOPELESS} in a row were lost: {message.reason}"
                        yield from (EpisodeResult(request, error=reason) for request in todo)
                        todo.clear()
                if turns:
                    self._answer(turns, policy)
        finally:
            if self._jobs is jobs:  # the caller stopped early, and workers wait in mid-episode
                self._kill(*jobs)

    def _slots(self, policy: Policy, num_episodes: int) -> Sequence[int]:
        """Return the numbers of the workers to use for so many episodes."""
        limit = policy.num_environments or self.num_workers
        if limit < self.num_workers:
            serves = "it serves no more environments at a time"
            say_once(logging.INFO, f"{policy}: workers reduced to {limit}; {serves}")
        return range(min(limit, self.num_workers, num_episodes))

    def _assign(self, slot: int, request: EpisodeRequest, attempt: int, policy: Policy) -> None:
        self._start(slot)
        self._jobs[slot] = request, attempt
        self._workers[slot].start_episode(request, policy.needs_goal, policy.obs_keys)
        policy.start_episode(env=slot, seed=request.seed)

    def _start(self, slot: int) -> None:
        if slot in self._workers and not self._workers[slot].is_alive:  # it ended while idle
            self._kill(slot)
        if slot not in self._workers:
            self._workers[slot] = Worker(self.env_args, self._environ)

    def _answer(self, turns: Mapping[int, ActionRequest], policy: Policy) -> None:
        obs = {slot: turn.obs for slot, turn in turns.items()}
        goals = {slot: turn.goal for slot, turn in turns.items()} if policy.needs_goal else None
        rewards = {slot: turn.reward for slot, turn in turns.items()}
        for slot, action in policy.act(obs, goals, rewards).items():
            self._workers[slot].send((action, policy.subgoal(slot)))

    def _messages(self) -> Iterator[tuple[int, ActionRequest | EpisodeResult | Failure]]:
        """Wait for messages of busy workers, and yield all that have arrived."""
        busy = {slot: self._workers[slot] for slot in self._jobs}
        oldest = min(worker.last_heard for worker in busy.values())
        ready = wait(busy.values(), max(0.0, oldest + self.timeout - time.monotonic()))
        now = time.monotonic()
        for slot, worker in busy.items():
            if worker in ready:
                yield slot, worker.receive()
            elif now - worker.last_heard >= self.timeout:
                yield slot, Failure(f"worker silent for {self.timeout:g} s")

    def _kill(self, *slots: int) -> None:
        for slot in slots:
            self._workers[slot].close()
            self._jobs.pop(slot, None)
            del self._workers[slot]
