"""A simulator's process: what runs in it, and the parent's end. It never imports torch.

The parent sends ``env_args`` and its level of logging once and then, one after the other, an
``EpisodeRequest``, whether the policy needs a goal, and its ``obs_keys``. For each, the worker
sends a ``Turn`` per step, to be answered with an action and the ``Subgoal`` that this follows, and
at last an ``EpisodeResult``. A ``Failure`` is the last that it says; a ``Notice`` may come at any
time.
"""

import logging
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from offrl.acting.episode import (
    ACTION_MASK,
    EpisodeRequest,
    EpisodeResult,
    Misfit,
    Obs,
    Subgoal,
    check_obs,
    describe,
    run_episode,
)
from offrl.envs import make_env, observe_only
from offrl.kernels.allocator import FreedMemory
from offrl.processes import end_with, exit_status, program

# Signals get a handler, as what an environment starts would go on ignoring what is ignored here.
START = """
import signal
from offrl.processes import FOR_THE_PARENT
for number in FOR_THE_PARENT:
    signal.signal(number, lambda *_: None)
from offrl.envs.workers.worker import serve
serve({descriptor}, {parent})
"""
LAST_WORDS = 4096  # bytes of a worker's output that are looked at


class Turn(NamedTuple):
    """The policy's turn: what it is asked for an action with, as in ``run_episode``."""

    obs: Any
    goal: Any
    reward: float


class Notice(NamedTuple):
    """What offrl logs in a worker, for the parent's log."""

    level: int
    message: str


class Failure(NamedTuple):
    """Why an episode ended before its end."""

    reason: str
    is_final: bool = False  # would be the same in any worker


def failure(error: Exception) -> Failure:
    return Failure(describe(error), isinstance(error, Misfit))


class Notices(logging.Handler):
    """What offrl logs in this process from now on, at this level at least, is given to ``give``."""

    def __init__(self, level: int, give: Callable[[Notice], None]):
        super().__init__()
        self._give = give
        log = logging.getLogger("offrl")
        log.setLevel(level)
        log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self._give(Notice(record.levelno, record.getMessage()))


class Simulator:
    """An environment in this process, and the memory that it takes. ``Misfit`` if ``env_args`` make
    none."""

    def __init__(self, env_args: Mapping[str, Any]):
        keeps = os.environ.get("OFFRL_FAST_SIM") != "0"
        # Of models: resets compile one after the other.
        self._memory = FreedMemory() if keeps else None
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
        if self._memory is not None:
            self._memory.limit()
        return result


def what_is_read(obs: Obs, keys: Sequence[str]) -> Obs:
    """The observations of ``keys``, which no policy can act on if they are not finite; all, so that
    the policy can say what there is instead, if any is missing."""
    check_obs(obs, keys)
    if keys and all(key in obs for key in keys):
        return {key: obs[key] for key in (*keys, ACTION_MASK) if key in obs}
    return obs


def serve(file_descriptor: int, parent: int) -> None:
    """A worker's life: build the environment, run episodes on request, end with the parent."""
    end_with(parent)
    connection = Connection(file_descriptor)
    try:
        _serve(connection)
    except Exception as error:
        with suppress(OSError):  # the parent is gone, or wants no more
            connection.send(failure(error))


class _Parent:
    """The policy, which is in the parent."""

    def __init__(self, connection: Connection, obs_keys: Sequence[str]):
        self._connection, self._obs_keys = connection, obs_keys
        self._subgoal: Subgoal | None = None

    def __call__(self, obs: Obs, goal: Obs | None, reward: float) -> np.ndarray:
        self._connection.send(Turn(what_is_read(obs, self._obs_keys), goal, reward))
        action, self._subgoal = self._connection.recv()
        return action

    def subgoal(self) -> Subgoal | None:
        return self._subgoal


def _serve(connection: Connection) -> None:
    env_args, level = connection.recv()
    Notices(level, connection.send)
    simulator = Simulator(env_args)
    while True:
        request, needs_goal, obs_keys = connection.recv()
        policy = _Parent(connection, obs_keys)
        connection.send(simulator.play(request, policy, needs_goal, obs_keys))


class Worker:
    """A process that serves, in a session of its own, and the connection to it."""

    def __init__(self, env_args: Mapping[str, Any], environ: Mapping[str, str]):
        self.connection, child_end = Pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)
        descriptor = child_end.fileno()
        script = START.format(descriptor=descriptor, parent=os.getpid())
        try:
            self._process = subprocess.Popen(
                program(script),
                pass_fds=[descriptor],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,  # out of reach of a terminal's Ctrl-C
            )
        except OSError as error:
            raise OSError(
                f"no process could be started for a simulator ({error.strerror}); use fewer "
                "(experiment.rollout.num_workers, --workers)"
            ) from None
        child_end.close()
        self.send((dict(env_args), logging.getLogger("offrl").getEffectiveLevel()))

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def start_episode(self, *job: Any) -> None:
        """Ask for an episode. What the worker printed during the last one is forgotten: its file
        would grow for as long as a training goes on."""
        self._log.seek(0)
        self._log.truncate()
        self.send(job)

    def send(self, message: Any) -> None:
        self.last_heard = time.monotonic()
        try:
            self.connection.send(message)
        except OSError:
            pass  # it died; reading from it will say so

    def receive(self) -> Turn | EpisodeResult | Failure | Notice:
        self.last_heard = time.monotonic()
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            return Failure(f"worker ended ({self._exit_status()}){self._last_words()}")

    def _last_words(self) -> str:
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - LAST_WORDS))
        lines = [x for x in self._log.read().decode(errors="replace").splitlines() if x.strip()]
        return f": {lines[-1]}" if lines else ""

    def _exit_status(self) -> str:
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return "does not exit"
        return exit_status(code)

    def kill(self) -> None:
        """End the process, and what it started itself."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # it may be stuck in the system
            self._process.wait(timeout=10)
        self.connection.close()
        self._log.close()
