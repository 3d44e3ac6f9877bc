"""Environments in processes, in which every episode has a seed of its own."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from offrl.envs.rendering import needed_backend, renders_observations
from offrl.envs.vector.episodes import EpisodicVector, SeededEnvs, Setup
from offrl.envs.vector.form import Stepped
from offrl.kernels.allocator import FreedMemory
from offrl.processes import Child, answer, wait

log = logging.getLogger(__name__)

START_S = 60.0  # seconds for a process to start, at least
HOPELESS = 5
RESTART_OFFSET = 10**9  # between the numbers of episodes before and after a restart
WORDING = "steps environments", "use fewer environments"


class ProcessVector(EpisodicVector):
    """Environments in as many processes as there are cores: a step is one message to each process.

    A process without an answer for ``timeout`` seconds is ended, and its environments begin new
    episodes in another one, without a step. ``ChildProcessError`` if one of them is restarted
    ``HOPELESS`` times without ending an episode.
    """

    def __init__(self, setup: Setup, num_processes: int | None = None, timeout: float = 300.0):
        super().__init__(setup)
        count = min(self.num_envs, num_processes or len(os.sched_getaffinity(0)))
        self._parts = [part.tolist() for part in np.array_split(np.arange(self.num_envs), count)]
        self._timeout = timeout
        self._children: list[Child] = []
        self._is_asking = False
        self._num_hung = np.zeros(self.num_envs, dtype=np.int64)  # since an episode's end
        self._backend = "disabled"
        try:
            if renders_observations(self.env_args):
                self._backend = needed_backend(f"{self.env_args['env_name']} observes images")
            self._children += map(self._start, self._parts)
            self._learn_spaces()
        except BaseException:
            self.close()
            raise

    def _start(self, part: Sequence[int]) -> Child:
        first = RESTART_OFFSET * self.num_restarts  # far from the numbers of earlier episodes
        work = _make_answer, (self._setup._replace(seed=self._seed), part, None, first)
        return Child("spawn", answer, work, *WORDING, {"MUJOCO_GL": self._backend})

    def _ask(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        if self._is_asking:  # their next answers belong to an earlier call
            raise ValueError(
                f"{self.env_args['env_name']}: a step was left in its middle; make the "
                "environments anew and restore their last state"
            )
        self._is_asking = True
        for child, own in zip(self._children, arguments, strict=True):
            child.send((method, own))
        seconds = self._timeout
        if method == "spaces":
            seconds = max(seconds, START_S)
        elif method == "restore":  # episodes are repeated one after the other
            seconds *= max(map(len, self._parts))
        until, answers = time.monotonic() + seconds, []
        for number in range(len(self._parts)):
            result = self._answer(number, until - time.monotonic())
            if result is None:
                result = self._begin_anew(number, method, seconds)
            answers.append(result)
        self._is_asking = False
        return answers

    def _answer(self, number: int, seconds: float) -> Any:
        """Return the answer of a process; ``None`` if it comes too late."""
        child = self._children[number]
        if not wait([child], max(0.0, seconds)):
            return None
        result = child.receive()
        if isinstance(result, ChildProcessError):
            raise ChildProcessError(f"{self._named(number)}: {result}")
        if isinstance(result, Exception):
            raise result
        return result

    def _named(self, number: int) -> str:
        which = ", ".join(map(str, self._parts[number]))
        return f"{self.env_args['env_name']}, environments {which}"

    def _begin_anew(self, number: int, method: str, seconds: float) -> Any:
        """Replace a hung process by another one with new episodes, and return its answer."""
        part, obs = self._parts[number], None
        said = f"{self._named(number)}: no answer for {seconds:g} s"
        while obs is None:
            self._num_hung[part] += 1
            if method == "spaces" or self._num_hung[part].max() == HOPELESS:
                times = f", {HOPELESS} times in a row" * (method != "spaces")
                raise ChildProcessError(f"{said}{times}; mend it, or raise train.online.timeout")
            log.warning(f"{said}; their process is ended, and they begin new episodes in another")
            self.num_restarts += 1
            self._children[number].close()
            self._children[number] = self._start(part)
            self._children[number].send(("reset", ()))
            obs = self._answer(number, max(self._timeout, START_S))
        if method != "step":
            return obs
        no = np.zeros(len(part), dtype=bool)
        return Stepped(obs, no.astype(float), no, no, np.full(len(part), -1, dtype=np.int8), no, {})

    def step(self, actions: Any) -> Stepped:
        stepped = super().step(actions)
        self._num_hung[[*stepped.final_obs]] = 0
        return stepped

    def close(self) -> None:
        for child in self._children:
            child.close()


def _make_answer(*arguments: Any) -> Callable[[tuple[str, tuple[Any, ...]]], Any]:
    memory = FreedMemory()  # of models, which resets compile
    episodes = SeededEnvs(*arguments)

    def respond(message: tuple[str, tuple[Any, ...]]) -> Any:
        method, own = message
        result = getattr(episodes, method)(*own)
        if isinstance(result, Stepped) and result.final_obs:
            memory.limit()
        return result

    return respond
