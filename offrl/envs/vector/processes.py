"""Environments of which every episode has a seed of its own, in processes."""

import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from offrl.envs import check_modules
from offrl.envs.rendering import INSTALL_HINT, renders_observations, working_backend
from offrl.envs.vector.episodes import Episodes, EpisodicVector
from offrl.envs.vector.form import Stepped
from offrl.kernels.allocator import FreedMemory
from offrl.processes import ONE_THREAD, Child, answer, changed_environ


class ProcessVector(EpisodicVector):
    """Environments in processes, as many as there are cores, each with its share: one message to
    each process for a step of all."""

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
    ):
        check_modules(env_args)
        super().__init__(env_args, num_envs, seed)
        count = min(num_envs, num_processes or len(os.sched_getaffinity(0)))
        self._parts = [part.tolist() for part in np.array_split(np.arange(num_envs), count)]
        rest = seed, horizon, obs_keys, terminate_on_success
        self._children: list[Child] = []
        self._is_asking = False
        try:
            environ = {**ONE_THREAD, "MUJOCO_GL": _backend(env_args)}
            with changed_environ(environ), _without_main():
                for part in self._parts:
                    arguments = _make_answer, (self.env_args, part, *rest)
                    self._children.append(Child("spawn", answer, arguments, *WORDING))
            self._learn_spaces(obs_keys)
        except BaseException:
            self.close()
            raise

    def _ask(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        name = self.env_args["env_name"]
        if self._is_asking:  # what they answer now would be taken for the answer to this
            raise ValueError(
                f"{name}: a step was left in its middle; make the environments anew and restore "
                "their last state"
            )
        self._is_asking = True
        for child, own in zip(self._children, arguments, strict=True):
            child.send((method, own))
        answers = []
        for child, part in zip(self._children, self._parts, strict=True):
            result = child.receive()
            if isinstance(result, ChildProcessError):
                which = ", ".join(map(str, part))
                raise ChildProcessError(f"{name}, environments {which}: {result}")
            if isinstance(result, Exception):
                raise result
            answers.append(result)
        self._is_asking = False
        return answers

    def close(self) -> None:
        for child in self._children:
            child.close()


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
