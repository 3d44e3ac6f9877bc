"""Names of environments and tasks, and the default ``env_args`` for a name."""

import importlib
import re
from typing import Any

from gymnasium import registry

from offrl.modules import allow_names

# The default arguments of robosuite's tasks: robomimic's settings.
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


def env_args_named(env_name: str, simulator: str | None = None) -> dict[str, Any]:
    """Make the ``env_args`` of an environment from its name: one of gymnasium's, of Atari's games
    (``"ALE/Pong-v5"``), of Meta-World's tasks (``"push-v3"``) or of robosuite's (``"Lift"``).

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


def tasks_of(simulator: str) -> list[str]:
    """List the tasks of ``"metaworld"`` or ``"robosuite"``; none if it is not installed."""
    try:
        return [*importlib.import_module(f"offrl.envs.{simulator}").tasks()]
    except ImportError:
        return []


def maybe_metaworlds(name: str) -> str:
    """Write a hint if a name looks like a Meta-World task's and Meta-World is missing."""
    if re.fullmatch(r"[a-z]+(-[a-z]+)*-v3", name) and not tasks_of("metaworld"):
        return " If it is a task of Meta-World: pip install 'offrl[metaworld]'."
    return ""
