"""What an ``EnvPool`` and its workers say to each other.

The pool sends ``env_args`` once and then one ``Task`` after the other. For each, the worker sends a
``Turn`` per step, to be answered with an action, and at last an ``EpisodeResult`` or a ``Failure``.
"""

from typing import Any, NamedTuple

from offrl.acting.episode import EpisodeRequest


class Task(NamedTuple):
    """An episode to run."""

    request: EpisodeRequest
    needs_goal: bool


class Turn(NamedTuple):
    """The policy's turn: what it is asked for an action with, as in ``run_episode``."""

    obs: Any
    goal: Any
    reward: float


class Failure(NamedTuple):
    """Why an episode ended before its end."""

    reason: str
    worker_is_lost: bool = False  # and can run no other
