"""Environments: ``gymnasium.Env`` with robomimic's extras. Nothing in here imports torch."""

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import gymnasium

from offrl.registry import ENVS

log = logging.getLogger(__name__)

# What robomimic's `env_args["type"]` numbers mean. A name, also one of a user's own module that
# registers in ENVS, serves as well.
ROBOMIMIC_TYPES = {1: "robosuite", 2: "gymnasium"}


def make_env(env_args: Mapping[str, Any], obs_keys: Sequence[str] | None = None) -> gymnasium.Env:
    """Make the environment that ``env_args`` (``env_name``, ``type``, ``env_kwargs``) describe.

    Observations are dicts of arrays; ``step`` returns five values, ``reset(seed=...)`` two.
    Beside gymnasium's methods there are ``is_success() -> {"task": bool}``, ``serialize()`` (the
    ``env_args`` again) and, where the simulator can, ``get_state()``, ``reset_to(state)``,
    ``render()``, ``mark(positions)``, which shows positions ``[3]`` in what is rendered, and
    ``get_goal()``, the goal ``{key: [...]}`` of the episode.
    Raises ``ValueError`` for what makes no environment.

    env_args: as they stand in data and checkpoints.
    obs_keys: the observations that are needed; a simulator (``observe_only(keys)``) may leave out
        others, and what they cost. ``None`` for all.
    """
    if not isinstance(env_args, Mapping):
        raise ValueError(f"env_args must be an object with env_name, not {env_args!r}")
    kind = env_args.get("type", "gymnasium")
    name = ROBOMIMIC_TYPES.get(kind, kind) if isinstance(kind, (int, str)) else kind
    if not isinstance(name, str):
        raise ValueError(f"env_args type {kind!r}: known are {ROBOMIMIC_TYPES}")
    env_name, env_kwargs = env_args.get("env_name"), env_args.get("env_kwargs") or {}
    if not isinstance(env_name, str) or not env_name:
        raise ValueError(
            "env_args: names no environment (env_name); name it in the data, or with "
            "experiment.env (offrl train), --env (offrl rollout)"
        )
    if not isinstance(env_kwargs, Mapping) or "env_name" in env_kwargs:
        raise ValueError(
            f"env_args of {env_name!r}: env_kwargs must be an object of the arguments that it is "
            f"made with, without env_name, not {env_kwargs!r}"
        )
    make = ENVS[name]
    if hasattr(make, "kwargs_of"):  # of an earlier version of the simulator, too
        env_kwargs = make.kwargs_of(env_args)
    try:
        env = make(env_name, dict(env_kwargs))
        observe_only(env, obs_keys)
        return env
    except TypeError as error:
        if "argument" not in str(error):
            raise
        raise ValueError(
            f"env_args of {env_name!r}: {error}; mend env_kwargs in the data, or with "
            "experiment.env_meta_update_dict"
        ) from None


def env_args_named(env_name: str) -> dict[str, Any]:
    """``env_args`` of an environment of which the name alone is known: one of Atari's games
    (``"ALE/Pong-v5"``), or gymnasium's."""
    is_atari = env_name.startswith("ALE/")
    return {"env_name": env_name, "type": "atari" if is_atari else 2, "env_kwargs": {}}


def observe_only(env: gymnasium.Env, keys: Sequence[str] | None) -> None:
    """Tell a simulator that knows what to do with it which observations are needed. One inside of
    a wrapper is not told: the wrapper may read others."""
    if hasattr(type(env), "observe_only"):
        env.observe_only(keys)


@cache
def say_once(level: int, message: str) -> None:
    """Log what every worker and every episode would say again."""
    log.log(level, message)
