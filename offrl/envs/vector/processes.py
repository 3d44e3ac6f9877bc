"""Environments of which every episode has a seed of its own, in processes."""

import logging
import os
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

import numpy as np

from offrl.envs import check_modules
from offrl.envs.rendering import INSTALL_HINT, renders_observations, working_backend
from offrl.envs.vector.episodes import Episodes, EpisodicVector
from offrl.envs.vector.form import Batch, Stepped
from offrl.kernels.allocator import FreedMemory
from offrl.processes import ONE_THREAD, Child, answer, changed_environ

log = logging.getLogger(__name__)


class ProcessVector(EpisodicVector):
    """Environments in processes, as many as there are cores, each with its share: one message to
    each process for a step of all.

    A process that is silent for ``timeout`` seconds is ended, and its environments begin new
    episodes in another one: they make no step then. ``ChildProcessError`` if this happens
    ``HOPELESS`` times before each of them has come to the end of an episode.
    """

    kind = "processes"

    def __init__(
        self,
        env_args: Mapping[str, Any],
        num_envs: int,
        seed: int,
        horizon: int | None = None,
        obs_keys: Sequence[str] | None = None,
        terminate_on_success: bool = False,
        num_processes: int | None = None,
        timeout: float = 300.0,
    ):
        check_modules(env_args)
        super().__init__(env_args, num_envs, seed)
        count = min(num_envs, num_processes or len(os.sched_getaffinity(0)))
        self._parts = [part.tolist() for part in np.array_split(np.arange(num_envs), count)]
        self._rest = seed, horizon, obs_keys, terminate_on_success
        self._timeout, self.restarts = timeout, []
        self._children: list[Child] = []
        self._is_asking = False
        self._begun = np.full(num_envs, -1)  # the number of the running episode
        self._has_ended = np.zeros(num_envs, dtype=bool)  # an episode, since a process last hung
        self._num_hung = [0] * count  # times in a row
        try:
            self._environ = {**ONE_THREAD, "MUJOCO_GL": _backend(env_args)}
            self._children += map(self._start, self._parts)
            self._learn_spaces(obs_keys)
        except BaseException:
            self.close()
            raise

    def _start(self, part: Sequence[int]) -> Child:
        arguments = _make_answer, (self.env_args, part, *self._rest)
        with changed_environ(self._environ), _without_main():
            return Child("spawn", answer, arguments, *WORDING)

    def _ask(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        if self._is_asking:  # what they answer now would be taken for the answer to this
            raise ValueError(
                f"{self.env_args['env_name']}: a step was left in its middle; make the "
                "environments anew and restore their last state"
            )
        self._is_asking = True
        for child, own in zip(self._children, arguments, strict=True):
            child.send((method, own))
        until, answers = time.monotonic() + self._limit(method), []
        for number in range(len(self._parts)):
            if self._answers(number, until - time.monotonic()):
                answers.append(self._receive(number))
                continue
            obs = self._begin_anew(number)
            num = len(self._parts[number])
            no = np.zeros(num, dtype=bool)
            nothing = np.zeros(num), no, no, np.full(num, -1, dtype=np.int8), no, {}
            answers.append(Stepped(obs, *nothing) if method == "step" else obs)
        self._is_asking = False
        return answers

    def reset(self) -> Batch:
        self._begun += 1
        return super().reset()

    def step(self, actions: Any) -> Stepped:
        stepped = super().step(actions)
        if ended := [*stepped.final_obs]:
            self._begun[ended] += 1
            self._has_ended[ended] = True
            for number, part in enumerate(self._parts):
                if self._has_ended[part].all():
                    self._num_hung[number] = 0
        return stepped

    def restore(self, state: Mapping[str, Any]) -> Batch:
        self._begun = np.array(state["episodes"])
        self._rest = int(state["seed"]), *self._rest[1:]
        return super().restore(state)

    def _limit(self, method: str) -> float:
        """The seconds that an answer may take."""
        if method == "spaces":  # libraries are imported and environments made
            return max(self._timeout, START_S)
        # One episode after the other is acted once more.
        return self._timeout * (max(map(len, self._parts)) if method == "restore" else 1)

    def _answers(self, number: int, seconds: float) -> bool:
        return bool(wait([self._children[number]], max(0.0, seconds)))

    def _receive(self, number: int) -> Any:
        result = self._children[number].receive()
        if isinstance(result, ChildProcessError):
            raise ChildProcessError(f"{self._named(number)}: {result}")
        if isinstance(result, Exception):
            raise result
        return result

    def _named(self, number: int) -> str:
        which = ", ".join(map(str, self._parts[number]))
        return f"{self.env_args['env_name']}, environments {which}"

    def _begin_anew(self, number: int) -> Batch:
        """What environments show whose process hung, once they have begun new episodes in another
        one."""
        part = self._parts[number]
        while True:
            said = f"{self._named(number)}: no answer for {self._timeout:g} s"
            self._num_hung[number] += 1
            if self._num_hung[number] == HOPELESS:
                raise ChildProcessError(
                    f"{said}, {HOPELESS} times in a row; mend the environment, or allow it more "
                    "time (train.online.timeout)"
                )
            log.warning(f"{said}; their process is ended, and they begin new episodes in another")
            self.restarts = [*self.restarts, part]
            self._has_ended[part] = False
            self._begun[part] += 2  # the next one may be what hung
            self._children[number].close()
            self._children[number] = child = self._start(part)
            actions = np.zeros((0, *self.action_space.shape), self.action_space.dtype)
            lengths = np.zeros(len(part), dtype=np.int64)
            new = {"episodes": self._begun[part], "lengths": lengths, "actions": actions}
            for method, own in ("spaces", ()), ("restore", (self._rest[0], new)):
                child.send((method, own))
                if not self._answers(number, self._limit(method)):
                    break
                result = self._receive(number)
            else:
                return result

    def close(self) -> None:
        for child in self._children:
            child.close()


START_S = 60.0  # that a process may take to start, and longer if answers may
HOPELESS = 5
WORDING = "steps environments", "use fewer environments"


def _make_answer(*arguments: Any) -> Callable[[tuple[str, tuple[Any, ...]]], Any]:
    memory = FreedMemory()  # of models: resets compile one after the other
    episodes = Episodes(*arguments)

    def respond(message: tuple[str, tuple[Any, ...]]) -> Any:
        method, own = message
        result = getattr(episodes, method)(*own)
        if isinstance(result, Stepped) and result.final_obs:
            memory.limit()
        return result

    return respond


def _backend(env_args: Mapping[str, Any]) -> str:
    """What MuJoCo renders with."""
    if not renders_observations(env_args):
        return "disabled"
    backend = working_backend()
    if backend is None:
        raise ValueError(
            f"{env_args['env_name']} observes images, and no rendering back end works here; "
            f"{INSTALL_HINT}"
        )
    return backend


@contextmanager
def _without_main() -> Iterator[None]:
    """Processes that start inside do not run the user's script once more, to know what is in it: it
    may be one that trains as soon as it is run."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
