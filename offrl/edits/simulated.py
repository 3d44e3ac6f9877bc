"""Rewards and actions of recorded steps, computed by the simulator.

A ``Relabel`` is made once in a process (``offrl.processes.in_order``) of ``env_args`` as JSON text,
and takes demonstrations as data holds them (``offrl.data.demos.Demos.trajectory``).
"""

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from typing import Any

import numpy as np

from offrl.data.separate import SeparateArrays
from offrl.envs import make_env
from offrl.envs.playback import play_states, visited
from offrl.processes import in_order
from offrl.robomimic.configs import is_robosuite

Relabel = Callable[[Mapping[str, Any]], np.ndarray]
ROUNDING = 1e-5  # error of actions that are stored as float32


def simulate(
    file: SeparateArrays,
    make: Callable[..., Relabel],
    env_args: Mapping[str, Any] | None,
    *arguments: Any,
    workers: int | None,
) -> Generator[np.ndarray, None, None]:
    """Yield the results of ``make(env_args, *arguments)`` for each demonstration of a file, in
    order. Errors name the demonstration."""
    recordings = (file.recording(demo, ("states", "actions")) for demo in file.demos())
    made = in_order(make, (json.dumps(env_args), *arguments), recordings, workers)
    with closing(made):
        for demo in file.demos():
            try:
                found = next(made)
            except ValueError as error:
                raise ValueError(f"{file.path}: {file.root}{demo}: {error}") from None
            yield found


def rewarding(env_args: Mapping[str, Any] | None, dense: bool) -> Mapping[str, Any] | None:
    """Return ``env_args`` of the same task with dense rewards, or with 1 at success alone."""
    if not dense and not is_robosuite(env_args):  # others cannot choose
        return env_args
    return _with_kwargs(env_args, reward_shaping=dense)


def absolute(env_args: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return ``env_args`` of the same task with absolute actions; ``ValueError`` unless actions are
    relative and their goals are known."""
    with closing(_blind(env_args)) as env:
        if not env.goals.are("delta"):
            words = "its actions are absolute already (input_type in controller_configs)"
            raise ValueError(f"{env.serialize()['env_name']}: {words}")
        # ``env_args`` are the installed simulator's, as the controllers are.
        new = env.serialize()
        sees = ((env_args or {}).get("env_kwargs") or {}).get("use_camera_obs", True)
        configs = env.goals.absolute_configs()
        return _with_kwargs(new, controller_configs=configs, use_camera_obs=sees)


def input_type(env_args: Mapping[str, Any] | None) -> str | None:
    """Return the kind of arms' actions, ``delta`` or ``absolute``, if the simulator knows it."""
    if not is_robosuite(env_args):
        return None
    with closing(_blind(env_args)) as env:
        return next((kind for kind in ("delta", "absolute") if env.goals.are(kind)), None)


def dense_rewards(env_args: str) -> Relabel:
    """Compute the rewards ``[T]`` of the task in the recorded states."""
    env = _blind(json.loads(env_args))
    return lambda demo: np.array([moment.reward for moment in play_states(env, demo)][1:])


def absolute_actions(env_args: str) -> Relabel:
    """Compute the goals of actions ``[T, A]`` in the recorded states, by the controllers."""
    env = _blind(json.loads(env_args))
    return lambda demo: _aims(env, demo)


def interval_actions(env_args: str, factor: int) -> Relabel:
    """Compute the relative actions ``[ceil(T / factor), A]`` from the first state of each
    ``factor`` steps to the goal of the last one. ``ValueError`` if one would be clipped."""
    env = _blind(json.loads(env_args))

    def relabel(demo: Mapping[str, Any]) -> np.ndarray:
        aims = _aims(env, demo)
        lasts = [aims[min(t + factor, len(aims)) - 1] for t in range(0, len(aims), factor)]
        firsts = {**demo, "states": demo["states"][::factor]}
        visits = zip(visited(env, firsts), lasts, strict=True)
        actions = np.array([env.goals.relative(aim) for _, aim in visits])
        sizes = np.abs(actions[:, env.goals.motions]).max(axis=1)
        if sizes.max() > 1 + ROUNDING:
            step = int((sizes > 1 + ROUNDING).argmax())
            raise ValueError(
                f"the motion of the {factor} steps from step {step * factor} on is "
                f"{sizes[step]:.3g} times what one action can ask for; make actions absolute "
                "first: offrl edit actions IN --absolute --output OUT"
            )
        return actions

    return relabel


def _aims(env: Any, demo: Mapping[str, Any]) -> np.ndarray:
    pairs = zip(visited(env, demo), demo["actions"], strict=True)
    return np.array([env.goals.absolute(action) for _, action in pairs])


def _blind(env_args: Mapping[str, Any] | None) -> Any:
    """Make the environment without cameras."""
    return make_env(_with_kwargs(env_args, use_camera_obs=False))


def _with_kwargs(env_args: Mapping[str, Any] | None, **kwargs: Any) -> dict[str, Any]:
    if not is_robosuite(env_args):
        name = (env_args or {}).get("env_name")
        words = "and no task of robosuite's: that alone can be asked about recorded states"
        raise ValueError(f"the data's environment (env_args) is {name}, {words}")
    args = dict(env_args or {})
    return {**args, "env_kwargs": {**(args.get("env_kwargs") or {}), **kwargs}}
