"""Fast forms of robosuite's step, resets and sensors: the same bits in less time.

``choose_forms`` alone decides whether they or robosuite's own code run. The README in this folder
names the changes in robosuite that would make each of them needless.
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

REPEATED_VERSION = "1.5.2"  # robosuite's version, whose code the forms repeat


def choose_forms(env: Any, wanted: bool | None) -> "tuple[Callable[..., Any], Scenes, Sensors]":
    """Choose the functions that step, reset and observe a robosuite environment, and log the reason
    if they are robosuite's own.

    wanted: ``False`` leaves all to robosuite; ``True`` warns of parts that are left to it.
    """
    import robosuite

    # These import robosuite, too.
    from offrl.envs.robosuite.fast.scene import Scenes, Sensors, unsupported

    version, why_plain = robosuite.__version__, None
    if wanted is False:
        why_plain = f"env_kwargs.{FAST} is false"
    elif os.environ.get("OFFRL_FAST_SIM") == "0":
        why_plain = "OFFRL_FAST_SIM is 0"
    elif version != REPEATED_VERSION:
        why_plain = f"this is robosuite {version}, and offrl repeats the code of {REPEATED_VERSION}"
    say = functools.partial(say_once, logging.WARNING if wanted else logging.DEBUG)
    why_resets = why_plain or unsupported(env)
    if why_resets is not None:
        left = "resets" if why_plain is None else "steps and resets"
        say(f"{type(env).__name__}: robosuite's own {left}, as {why_resets}")
    step = env.step
    if why_plain is None:
        from offrl.envs.robosuite.fast.step import FastStep  # may not import with another version

        step = FastStep(env, say)
    return step, Scenes(env, why_resets is not None), Sensors(env, why_plain is None)
