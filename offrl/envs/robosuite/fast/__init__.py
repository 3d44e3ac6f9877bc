"""Forms of offrl's own for robosuite's step, resets and sensors: the same bits in less time.

``choose_forms`` is the only place that decides whether they run or robosuite's own code does. The
README in this folder says which change of robosuite's would make each of them needless.
"""

import functools
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from offrl.envs import say_once
from offrl.robomimic.configs import FAST

if TYPE_CHECKING:
    from offrl.envs.robosuite.fast.scene import Scenes, Sensors

REPEATED_VERSION = "1.5.2"  # of robosuite, whose code the forms repeat


def choose_forms(env: Any, wanted: bool | None) -> "tuple[Callable[..., Any], Scenes, Sensors]":
    """Choose the forms by which a robosuite environment is stepped, reset and observed, and log
    why, if robosuite's own code runs.

    wanted: ``False`` leaves all to robosuite; ``True`` makes a warning of what is left to it.
    """
    import robosuite

    # These import robosuite, too.
    from offrl.envs.robosuite.fast.scene import Scenes, Sensors, unknown

    version, why_plain = robosuite.__version__, None
    if wanted is False:
        why_plain = f"env_kwargs.{FAST} is false"
    elif os.environ.get("OFFRL_FAST_SIM") == "0":
        why_plain = "OFFRL_FAST_SIM is 0"
    elif version != REPEATED_VERSION:
        why_plain = f"this is robosuite {version}, and offrl repeats the code of {REPEATED_VERSION}"
    say = functools.partial(say_once, logging.WARNING if wanted else logging.DEBUG)
    why_resets = why_plain or unknown(env)
    if why_resets is not None:
        left = "resets" if why_plain is None else "steps and resets"
        say(f"{type(env).__name__}: robosuite's own {left}, as {why_resets}")
    step = env.step
    if why_plain is None:
        from offrl.envs.robosuite.fast.step import FastStep  # which another version may not import

        step = FastStep(env, say)
    return step, Scenes(env, why_resets is not None), Sensors(env, why_plain is None)
