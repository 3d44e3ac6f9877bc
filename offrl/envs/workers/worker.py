"""A simulator's process: the work in it, and the parent's end. It never imports torch.

The parent sends, one after the other, an ``EpisodeRequest``, whether the policy needs a goal, and
its ``obs_keys``. For each, the worker sends a ``Turn`` per step, to be answered with an action and
the ``Subgoal`` that this follows, and at last an ``EpisodeResult``. A ``Failure`` is the last that
it says. What was logged since goes with each of these.
"""

import logging
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
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
from offrl.envs import make_env, observe_only, say_once
from offrl.kernels.allocator import FreedMemory
from offrl.processes import Channel, Child


class Turn(NamedTuple):
    """The policy's turn: what it is asked for an action with, as in ``run_episode``."""

    obs: Any
    goal: Any
    reward: float


class Failure(NamedTuple):
    """The reason why an episode could not be run to its end."""

    reason: str
    is_final: bool = False  # would be the same in any worker


def failure(error: Exception) -> Failure:
    return Failure(describe(error), isinstance(error, Misfit))


class Notices(logging.Handler):
    """Notes what offrl logs in this process from now on, at this level at least."""

    def __init__(self, level: int):
        super().__init__()
        self._noted: list[tuple[int, str]] = []
        log = logging.getLogger("offrl")
        log.setLevel(level)
        log.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self._noted.append((record.levelno, record.getMessage()))

    def take(self) -> list[tuple[int, str]]:
        """Return what was noted since the last call, as arguments of ``say_once``."""
        noted, self._noted = self._noted, []
        return noted


class Simulator:
    """An environment in this process, and the memory that it takes. ``Misfit`` if ``env_args`` make
    none."""

    def __init__(self, env_args: Mapping[str, Any]):
        self._memory = FreedMemory()  # of models: resets compile one after the other
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


def what_is_read(obs: Obs, keys: Sequence[str]) -> Obs:
    """Select the observations of ``keys``, which must be finite for a policy to act on. If one is
    missing, keep all, so that the policy can say what there is instead."""
    check_obs(obs, keys)
    if keys and all(key in obs for key in keys):
        return {key: obs[key] for key in (*keys, ACTION_MASK) if key in obs}
    return obs


class _Parent:
    """The parent, which has the policy."""

    def __init__(self, channel: Channel, level: int):
        self._channel, self._notices = channel, Notices(level)
        self.obs_keys: Sequence[str] = ()
        self._subgoal: Subgoal | None = None

    def tell(self, message: Turn | EpisodeResult | Failure) -> None:
        self._channel.send((self._notices.take(), message))

    def __call__(self, obs: Obs, goal: Obs | None, reward: float) -> np.ndarray:
        self.tell(Turn(what_is_read(obs, self.obs_keys), goal, reward))
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
        """Ask for an episode. The output of the last one is forgotten: its file would grow for as
        long as a training goes on."""
        self._log.seek(0)
        self._log.truncate()
        self.send(job)

    def send(self, message: Any) -> None:
        self.last_heard = time.monotonic()
        super().send(message)

    def receive(self) -> Turn | EpisodeResult | Failure:
        self.last_heard = time.monotonic()
        said = super().receive()
        if isinstance(said, Exception):
            return Failure(str(said))
        notices, message = said
        for notice in notices:
            say_once(*notice)
        return message
