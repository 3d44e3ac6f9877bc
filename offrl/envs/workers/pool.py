"""Episodes in worker processes that step and reset environments on their own.

A worker never imports torch. The parent answers whichever workers wait, with one call of the
policy; an episode depends on its seed alone, so results do not depend on the number of workers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import Any

from offrl.acting.episode import EpisodeRequest, EpisodeResult, Policy

SERVE = "from offrl.envs.workers.worker import serve"
ATTEMPTS = 2  # an episode whose worker was lost is rerun once


class _Worker:
    """A process and the connection to it."""

    def __init__(self, env_args: Mapping[str, Any], environ: Mapping[str, str]):
        self.connection, child_end = Pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)
        descriptor = child_end.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"{SERVE}; serve({descriptor})"],
            pass_fds=[descriptor],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        child_end.close()
        self.connection.send(dict(env_args))
        self.job: int | None = None  # the number of the request it works on
        self.goal: Any = None  # of its episode
        self.last_heard = time.monotonic()

    def send(self, message: Any) -> None:
        self.last_heard = time.monotonic()
        try:
            self.connection.send(message)
        except OSError:
            pass  # it died; reading from it will say so

    def last_words(self) -> str:
        self._log.seek(0)
        lines = [x for x in self._log.read().decode(errors="replace").splitlines() if x.strip()]
        return f": {lines[-1]}" if lines else ""

    def exit_status(self) -> str:
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


class EnvPool:
    """Simulators in worker processes, kept between evaluations. A context manager.

    timeout: seconds without a word before a worker counts as hung.
    gl_backend: what MuJoCo renders with in the workers (see ``rendering``); ``None`` for none.
    """

    def __init__(
        self,
        env_args: Mapping[str, Any],
        num_workers: int | None = None,
        timeout: float = 300.0,
        gl_backend: str | None = None,
    ):
        self.env_args = dict(env_args)
        self.timeout = timeout
        self.gl_backend = gl_backend
        self.num_workers = num_workers or len(os.sched_getaffinity(0))
        self._workers: dict[int, _Worker] = {}
        self._environ = os.environ | {
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "MUJOCO_GL": gl_backend or "disabled",
            # Many processes of one thread each.
            **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")},
        }

    def __enter__(self) -> EnvPool:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        for slot in list(self._workers):
            self._kill(slot)

    def check(self, policy: Policy) -> None:
        """Take one step; ``ValueError`` if environment and policy do not go together."""
        for result in self.run([EpisodeRequest(seed=0, horizon=1)], policy):
            if result.error:
                name = self.env_args.get("env_name")
                raise ValueError(f"the environment {name!r}: {result.error}")

    def run(self, requests: Sequence[EpisodeRequest], policy: Policy) -> Iterator[EpisodeResult]:
        """Results in the order in which episodes end."""
        todo = deque(range(len(requests)))
        attempts = [0] * len(requests)
        try:
            while todo or self._busy():
                for slot in range(min(self.num_workers, len(requests))):
                    if todo and (slot not in self._workers or self._workers[slot].job is None):
                        self._assign(slot, todo.popleft(), requests, attempts, policy)
                waiting: dict[int, Any] = {}
                rewards: dict[int, float] = {}
                for slot, (kind, content) in self._messages():
                    worker = self._workers[slot]
                    if kind == "obs":
                        waiting[slot], rewards[slot] = content
                        continue
                    if kind == "goal":
                        worker.goal = content
                        continue
                    job, worker.job = worker.job, None
                    assert job is not None
                    if kind == "done":
                        yield content
                        continue
                    if kind != "error":  # nothing is left to work with
                        self._kill(slot)
                    if attempts[job] < ATTEMPTS:
                        todo.appendleft(job)
                    else:
                        yield EpisodeResult(requests[job], error=content)
                if waiting:
                    goals = None
                    if _needs_goal(policy):
                        goals = {slot: self._workers[slot].goal for slot in waiting}
                    last = (rewards,) if getattr(policy, "counts_rewards", False) else ()
                    for slot, action in policy.act(waiting, goals, *last).items():
                        self._workers[slot].send(action)
        finally:
            for slot in self._busy():  # the caller stopped early: these wait in mid-episode
                self._kill(slot)

    def _assign(
        self,
        slot: int,
        job: int,
        requests: Sequence[EpisodeRequest],
        attempts: list[int],
        policy: Policy,
    ) -> None:
        if slot not in self._workers:
            self._workers[slot] = _Worker(self.env_args, self._environ)
        attempts[job] += 1
        self._workers[slot].job = job
        self._workers[slot].send((requests[job], _needs_goal(policy)))
        policy.start_episode(env=slot, seed=requests[job].seed)

    def _busy(self) -> list[int]:
        return [slot for slot, worker in self._workers.items() if worker.job is not None]

    def _messages(self) -> Iterator[tuple[int, tuple[str, Any]]]:
        """What the busy workers say, waiting for the first; a lost worker's is ``"lost"``."""
        slots = {self._workers[slot].connection: slot for slot in self._busy()}
        oldest = min(self._workers[slot].last_heard for slot in slots.values())
        ready = wait(list(slots), timeout=max(0.0, oldest + self.timeout - time.monotonic()))
        for connection in ready:
            slot = slots[connection]  # type: ignore[index]
            worker = self._workers[slot]
            worker.last_heard = time.monotonic()
            try:
                yield slot, worker.connection.recv()
            except (EOFError, OSError):
                yield slot, ("lost", f"worker ended ({worker.exit_status()}){worker.last_words()}")
        now = time.monotonic()
        for connection, slot in slots.items():
            if connection not in ready and now - self._workers[slot].last_heard >= self.timeout:
                yield slot, ("lost", f"worker silent for {self.timeout:g} s")

    def _kill(self, slot: int) -> None:
        self._workers.pop(slot).kill()


def _needs_goal(policy: Policy) -> bool:
    return getattr(policy, "needs_goal", False)
