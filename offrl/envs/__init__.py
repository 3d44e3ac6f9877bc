"""Environments: ``gymnasium.Env`` with robomimic's extras. Nothing in here imports torch."""

import importlib
import logging
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import gymnasium
from gymnasium import registry  # by its name, as a file in here is called gymnasium, too

from offrl.acting.episode import describe
from offrl.modules import allow_names, check_allowed
from offrl.registry import ENVS, shown

log = logging.getLogger(__name__)

# What robomimic's `env_args["type"]` numbers mean. A name, also one of a user's own module that
# registers in ENVS, serves as well.
ROBOMIMIC_TYPES = {1: "robosuite", 2: "gymnasium"}
# What a task of robosuite is made with where nothing says otherwise: robomimic's settings.
ROBOSUITE_KWARGS = {
    "robots": "Panda",
    "control_freq": 20,
    "ignore_done": True,
    "has_renderer": False,
    "has_offscreen_renderer": False,
    "use_object_obs": True,
    "use_camera_obs": False,
    "camera_depths": False,
    "reward_shaping": False,
}


def make_env(env_args: Mapping[str, Any], obs_keys: Sequence[str] | None = None) -> gymnasium.Env:
    """Make the environment that ``env_args`` (``env_name``, ``type``, ``env_kwargs``) describe.

    Observations are dicts of arrays; ``step`` returns five values, ``reset(seed=...)`` two.
    Beside gymnasium's methods there are ``is_success() -> {"task": bool}`` (``None`` where no
    success is reported), ``serialize()`` (the ``env_args`` again) and, where the simulator can,
    ``get_state()``, ``reset_to(state)``, ``render()``, ``mark(positions)``, which shows positions
    ``[3]`` in what is rendered, and ``get_goal()``, the goal ``{key: [...]}`` of the episode.
    Raises ``ValueError`` for what makes no environment.

    env_args: as they stand in data and checkpoints. Some have ``wrappers``, see
        ``offrl.envs.wrappers.wrapped``.
    obs_keys: the observations that are needed; a simulator (``observe_only(keys)``) may leave out
        others, and what they cost. ``None`` for all.
    """
    check_modules(env_args)
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
    from offrl.envs.wrappers import wrapped  # which imports this file

    try:
        env = make(env_name, dict(env_kwargs))
        env = wrapped(env, env_args.get("wrappers") or [])
        observe_only(env, obs_keys)
        return env
    except (ValueError, ImportError, OSError):
        raise
    except Exception as error:
        if isinstance(error, TypeError) and "argument" in str(error):
            raise ValueError(
                f"env_args of {env_name!r}: {error}; mend env_kwargs in the data, or with "
                "experiment.env_meta_update_dict"
            ) from None
        raise ValueError(f"{env_name} cannot be made: {describe(error)}") from error


def check_modules(env_args: Mapping[str, Any]) -> None:
    """``ValueError`` for an environment that a module makes which is not allowed
    (``offrl.modules``)."""
    if not isinstance(env_args, Mapping):
        raise ValueError(f"env_args must be an object with env_name, not {env_args!r}")
    name = env_args.get("env_name")
    check_allowed(env_args.get("type"), f"the environment type {shown(env_args.get('type'))}")
    check_allowed(name if ":" in str(name) else None, f"the environment {shown(name)}")
    wrappers = env_args.get("wrappers") or []
    for said in wrappers if isinstance(wrappers, list) else [None]:
        path = said.get("wrapper") if isinstance(said, Mapping) else said
        if not isinstance(path, str):
            raise ValueError(
                f"env_args of {name!r}: wrappers is {shown(wrappers)}, and no list of import paths"
            )
        check_allowed(path, f"a wrapper of the environment {shown(name)} ({shown(path)})")


def env_args_named(env_name: str, simulator: str | None = None) -> dict[str, Any]:
    """``env_args`` of an environment of which the name alone is known: one of gymnasium's, of
    Atari's games (``"ALE/Pong-v5"``), of Meta-World's tasks (``"push-v3"``) or of robosuite's
    (``"Lift"``).

    simulator: ``"metaworld"`` or ``"robosuite"``; ``None``: the one that has it.
    """
    allow_names(env_name)
    known = {*registry, *(name.partition("-v")[0] for name in registry)}
    if simulator is None and env_name.startswith("ALE/"):
        simulator = "atari"
    elif simulator is None and env_name not in known and not {*":/"} & {*env_name}:
        simulators = ("metaworld", "robosuite")
        simulator = next((s for s in simulators if env_name in tasks_of(s)), None)
    if simulator != "robosuite":
        return {"env_name": env_name, "type": simulator or 2, "env_kwargs": {}}
    robots = ["Panda", "Panda"] if env_name.startswith("TwoArm") else "Panda"
    return {"env_name": env_name, "type": 1, "env_kwargs": ROBOSUITE_KWARGS | {"robots": robots}}


def close(env: Any, name: str) -> None:
    """Close an environment. Where that fails, a warning is all: what was done there stands."""
    try:
        env.close()
    except Exception as error:
        log.warning(f"{name} could not be closed: {describe(error)}")


def tasks_of(simulator: str) -> list[str]:
    """The names of the tasks of ``"metaworld"`` or ``"robosuite"``; none where it is missing."""
    try:
        return [*importlib.import_module(f"offrl.envs.{simulator}").tasks()]
    except ImportError:
        return []


def maybe_metaworlds(name: str) -> str:
    """A sentence for a name like those of Meta-World's tasks, where that is missing."""
    is_like_them = re.fullmatch(r"[a-z]+(-[a-z]+)*-v3", name)
    if is_like_them and not tasks_of("metaworld"):
        return " If it is a task of Meta-World: pip install 'offrl[metaworld]'."
    return ""


def observe_only(env: gymnasium.Env, keys: Sequence[str] | None) -> None:
    """Tell a simulator that knows what to do with it which observations are needed. One inside of
    a wrapper is not told: the wrapper may read others."""
    if hasattr(type(env), "observe_only"):
        env.observe_only(keys)


@cache
def say_once(level: int, message: str) -> None:
    """Log what every worker and every episode would say again."""
    log.log(level, message)
