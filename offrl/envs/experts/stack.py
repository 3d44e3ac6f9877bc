"""robosuite's Stack."""

from collections.abc import Mapping

import numpy as np

from offrl.envs.experts.expert import demonstrator
from offrl.envs.experts.motion import (
    CLOSE,
    OPEN,
    above,
    action,
    fingers_width,
    nearest_turn,
    point_down,
    yaw_of,
)

STACKED = 0.045  # the centre of the small cube is so far above that of the large one


@demonstrator("Stack", horizon=200)
def stack(obs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Put the small cube onto the large one with a Panda arm: action ``[7]`` in [-1, 1]."""
    cube, base, eef = obs["object"][:3], obs["object"][7:10], obs["robot0_eef_pos"]
    to_base = base + [0.0, 0.0, STACKED] - cube
    # Of the two ways to hold a cube, the one whose fingers stay clear of the other cube.
    yaw = yaw_of(obs["object"][3:7])
    towards = np.arctan2(to_base[1], to_base[0])
    yaws = [nearest_turn(yaw + quarter * np.pi / 2, np.pi) for quarter in (0, 1)]
    sideways = np.linalg.norm(to_base[:2])
    beside = [sideways < 0.1 and abs(np.sin(towards - y)) > 0.7 for y in yaws]
    yaw = min(zip(beside, np.abs(yaws), yaws, strict=True))[2]

    offset, width = cube - eef, fingers_width(obs)
    around = np.linalg.norm(offset[:2]) < 0.015 and abs(offset[2]) < 0.02
    if around and sideways < 0.015 and to_base[2] > -0.015:  # it stands there: let go
        rise = 0.05 if width > 0.06 else 0.0
        return action(np.array([0.0, 0.0, rise]), OPEN)
    if not around:
        return action(above(offset, 0.1), OPEN, point_down(obs["robot0_eef_quat"], yaw))
    if width > 0.05:
        return action(offset, CLOSE)
    return action(above(to_base, 0.08, radius=0.005), CLOSE)
