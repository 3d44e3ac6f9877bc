"""robosuite's PickPlace, of which PickPlaceCan is the task."""

from collections.abc import Mapping

import numpy as np

from offrl.envs.experts.expert import demonstrator
from offrl.envs.experts.motion import (
    CLOSE,
    FULL_MOVE,
    OPEN,
    above,
    action,
    fingers_width,
    point_down,
)

PLACE = np.array([0.18, 0.38, 0.87])  # of a can that is about to stand in its part of the bins
ROOM = np.array([0.05, 0.06])  # as far from there it is clear of the walls
SIDES = {"left": 1.0, "right": -1.0}  # in y, which is to the left of the robot
# Beside a can's middle and above it: there closed fingers are clear of the can, below its lid.
BESIDE, RAISED = 0.08, 0.045


@demonstrator("PickPlaceCan", horizon=250, styles=tuple(SIDES))
def can(obs: Mapping[str, np.ndarray], style: str | None = None) -> np.ndarray:
    """Put the can into its part of the bins with a Panda arm: action ``[7]`` in [-1, 1].

    The shortest way is to take the can from above. In a style the closed hand comes to it from
    above, passes it on one side, and opens to take it from there: the mean of both ends on its lid.
    """
    can, eef, width = obs["object"][7:10], obs["robot0_eef_pos"], fingers_width(obs)
    offset, way = can - eef, PLACE - can
    turn = point_down(obs["robot0_eef_quat"], np.pi / 2 if style else 0.0)
    holds = 0.03 < width < 0.068
    reach = 0.05 if holds else 0.02  # a can in the hand lags behind it
    around = np.linalg.norm(offset[:2]) < reach and abs(offset[2]) < 0.01 + reach
    if (np.abs(way[:2]) < ROOM).all() and way[2] > -0.01:
        # A success is when the hand is 4 cm off. It goes up once it is wider than the can, because
        # demonstrations that end as the can falls would not show how to get there.
        rise = 0.05 if width > 0.06 else 0.0
        return action(np.array([0.0, 0.0, rise]), OPEN)
    if not around:
        move, grip = _aside(offset, width, SIDES[style]) if style else (above(offset, 0.12), OPEN)
        return action(move, grip, turn)
    if not holds:
        return action(offset, CLOSE)
    move = above(way, 0.15, radius=0.03)
    move[:2] *= np.clip((can[2] - 0.87) / 0.05, 0.0, 1.0)  # first upwards
    return action(move, CLOSE, turn)


def _aside(offset: np.ndarray, width: float, side: float) -> tuple[np.ndarray, float]:
    """How the hand moves, and whether it closes, on its way around a can on one side."""
    aside = -side * offset[1]  # so far the hand is on that side of the middle
    beside = offset + [0.0, side * BESIDE, RAISED]
    if beside[2] > -0.02 and aside > -0.02:  # low enough to come from there
        if aside < 0.02:
            return offset, OPEN
        opens = width < 0.075 and aside > 0.05
        return (beside if opens else offset + [0.0, 0.0, RAISED]), OPEN
    if np.hypot(offset[0], max(-aside, aside - BESIDE, 0.0)) < 0.03:  # over the way down
        return beside * FULL_MOVE / np.abs(beside).max(), CLOSE
    return offset + [0.0, 0.0, 0.15], CLOSE
