"""A simulator's process: what runs in it, and the parent's end. It never imports torch.

The parent sends ``env_args`` once and then, one after the other, an ``EpisodeRequest`` and whether
the policy needs a goal. For each, the worker sends a ``Turn`` per step, to be answered with an
action, and at last an ``EpisodeResult`` or a ``Failure``.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from offrl.acting.episode import EpisodeResult, describe, run_episode
from offrl.envs import make_env


class Turn(NamedTuple):
    """The policy's turn: what it is asked for an action with, as in ``run_episode``."""

    obs: Any
    goal: Any
    reward: float


class Failure(NamedTuple):
    """Why an episode ended before its end."""

    reason: str
    worker_is_lost: bool = False  # and can run no other


def serve(file_descriptor: int) -> None:
    """A worker's life: build the environment, run episodes on request, end with the parent."""
    connection = Connection(file_descriptor)

    def ask(obs: Any, goal: Any, reward: float) -> np.ndarray:
        connection.send(Turn(obs, goal, reward))
        return connection.recv()

    try:
        env = make_env(connection.recv())
        while True:
            request, needs_goal = connection.recv()
            try:
                connection.send(run_episode(env, request, ask, needs_goal))
            except (EOFError, BrokenPipeError):
                return
            except Exception as error:
                connection.send(Failure(describe(error)))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except Exception as error:
        connection.send(Failure(describe(error), worker_is_lost=True))


class Worker:
    """A process that serves, and the connection to it."""

    def __init__(self, env_args: Mapping[str, Any], environ: Mapping[str, str]):
        self.connection, child_end = Pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)
        descriptor = child_end.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve({descriptor})"],
            pass_fds=[descriptor],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        child_end.close()
        self.send(dict(env_args))

    def send(self, message: Any) -> None:
        self.last_heard = time.monotonic()
        try:
            self.connection.send(message)
        except OSError:
            pass  # it died; reading from it will say so

    def receive(self) -> Turn | EpisodeResult | Failure:
        self.last_heard = time.monotonic()
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            reason = f"worker ended ({self._exit_status()}){self._last_words()}"
            return Failure(reason, worker_is_lost=True)

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [x for x in self._log.read().decode(errors="replace").splitlines() if x.strip()]
        return f": {lines[-1]}" if lines else ""

    def _exit_status(self) -> str:
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return "does not exit"
        return f"killed by signal {-code}" if code < 0 else f"exit status {code}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self.connection.close()
        self._log.close()
