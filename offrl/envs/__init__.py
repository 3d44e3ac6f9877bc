"""Environments: ``gymnasium.Env`` with robomimic's extras. Nothing in here imports torch."""

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from gymnasium import Env  # imported by name, as a module here is called gymnasium, too

from offrl.acting.episode import describe
from offrl.envs.gymnasium import close  # noqa: F401 (exported from here, as the next line)
from offrl.envs.tasks import ROBOSUITE_KWARGS, env_args_named, tasks_of  # noqa: F401
from offrl.modules import check_allowed
from offrl.registry import ENVS, shown

log = logging.getLogger(__name__)

# robomimic's numbers in `env_args["type"]`; names in ENVS, also a user's own, work as well.
ROBOMIMIC_TYPES: dict[Any, str] = {1: "robosuite", 2: "gymnasium"}


def make_env(env_args: Mapping[str, Any], obs_keys: Sequence[str] | None = None) -> Env:
    """Make the environment that ``env_args`` (``env_name``, ``type``, ``env_kwargs``) describe.

    Observations are dicts of arrays; ``step`` returns five values, ``reset(seed=...)`` two. Beside
    gymnasium's methods there are ``is_success() -> {"task": bool}`` (``None`` if success is not
    reported), ``serialize()``, which returns the ``env_args``, and, if the simulator supports them,
    ``get_state()``, ``reset_to(state)``, ``render()``, ``mark(positions)``, which shows positions
    ``[3]`` in rendered images, and ``get_goal()``, the episode's goal ``{key: [...]}``. Raises
    ``ValueError`` if the environment cannot be made.

    env_args: as stored in data and checkpoints, optionally with ``wrappers``, see
        ``offrl.envs.wrappers.wrapped``.
    obs_keys: needed observations; simulators with ``observe_only`` may leave out others.
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
    if hasattr(make, "kwargs_of"):  # which also translates earlier versions'
        env_kwargs = make.kwargs_of(env_args)
    from offrl.envs.wrappers import wrapped  # which imports pydantic

    try:
        env = wrapped(make(env_name, dict(env_kwargs)), env_args.get("wrappers") or [])
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
    """Refuse environments and wrappers of modules that are not allowed (``offrl.modules``)."""
    if not isinstance(env_args, Mapping):
        raise ValueError(f"env_args must be an object with env_name, not {env_args!r}")
    name = env_args.get("env_name")
    check_allowed(env_args.get("type"), f"the environment type {shown(env_args.get('type'))}")
    check_allowed(name if ":" in str(name) else None, f"the environment {shown(name)}")
    wrappers = env_args.get("wrappers") or []
    for entry in wrappers if isinstance(wrappers, list) else [None]:
        path = entry.get("wrapper") if isinstance(entry, Mapping) else entry
        if not isinstance(path, str):
            raise ValueError(
                f"env_args of {name!r}: wrappers is {shown(wrappers)}, and no list of import paths"
            )
        check_allowed(path, f"a wrapper of the environment {shown(name)} ({shown(path)})")


def observe_only(env: Any, keys: Sequence[str] | None) -> None:
    """Tell a simulator which observations are needed; not below wrappers, which may read others."""
    if hasattr(type(env), "observe_only"):
        env.observe_only(keys)


@cache
def say_once(level: int, message: str) -> None:
    """Log a message that every worker and every episode would repeat."""
    log.log(level, message)
