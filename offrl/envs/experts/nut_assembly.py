"""robosuite's NutAssembly, of which NutAssemblySquare is the task."""

from collections.abc import Mapping

import numpy as np

from offrl.envs.experts.expert import demonstrator
from offrl.envs.experts.motion import (
    CLOSE,
    FULL_TURN,
    OPEN,
    above,
    action,
    fingers_width,
    nearest_turn,
    point_down,
    yaw_of,
)

PEG = np.array([0.23, 0.1, 0.83])  # where the nut lies when it is around the peg
PEG_TOP = 0.95
CLEAR = PEG_TOP + 0.04 - PEG[2]  # so far above that, it is clear of the peg
HANDLE = 0.054  # metres from the middle of the nut to that of its handle


@demonstrator("NutAssemblySquare", horizon=250)
def square_nut(obs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Put the square nut around its peg with a Panda arm: action ``[7]`` in [-1, 1]."""
    nut, quaternion, eef = obs["object"][7:10], obs["object"][10:14], obs["robot0_eef_pos"]
    yaw = yaw_of(quaternion)
    handle = nut + HANDLE * np.array([np.cos(yaw), np.sin(yaw), 0.0])
    offset, to_peg = handle - eef, PEG - nut
    hand = obs["robot0_eef_quat"]
    along = nearest_turn(yaw, np.pi)  # the hand's x axis along the handle, either way
    holds = fingers_width(obs) < 0.04
    reach = 0.03 if holds else 0.02  # a nut in the hand lags behind it
    around = np.linalg.norm(offset[:2]) < reach and abs(offset[2]) < reach - 0.005
    if not around:
        return action(above(offset, 0.1), OPEN, point_down(hand, along))
    if not holds:
        return action(offset, CLOSE)
    # The square fits the peg in four ways: the hand turns the shortest way to one of them.
    rest = nearest_turn(yaw, np.pi / 2)
    turn = np.array([0.0, 0.0, np.clip(-rest / FULL_TURN, -1.0, 1.0)])
    sideways = np.linalg.norm(to_peg[:2])
    is_around_peg = sideways < 0.012 and nut[2] < PEG_TOP
    fits = sideways < 0.006 and abs(rest) < 0.1
    if not (is_around_peg or fits):
        to_peg = to_peg + [0.0, 0.0, CLEAR]
    return action(to_peg, CLOSE, turn)
