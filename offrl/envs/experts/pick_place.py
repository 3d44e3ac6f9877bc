"""robosuite's PickPlace, of which PickPlaceCan is the task."""

from collections.abc import Mapping

import numpy as np

from offrl.envs.experts.expert import demonstrator
from offrl.envs.experts.motion import CLOSE, OPEN, above, action, fingers_width, point_down

PLACE = np.array([0.18, 0.38, 0.87])  # of a can that is about to stand in its part of the bins
ROOM = np.array([0.05, 0.06])  # as far from there it is clear of the walls
SIDES = {"left": -1.0, "right": 1.0, None: 0.0}


@demonstrator("PickPlaceCan", horizon=250, styles=("left", "right"))
def can(obs: Mapping[str, np.ndarray], style: str | None = None) -> np.ndarray:
    """Put the can into its part of the bins with a Panda arm: action ``[7]`` in [-1, 1].

    In a style the hand is turned to one side, and comes to the can and to the bin in a bow.
    """
    can, eef, width = obs["object"][7:10], obs["robot0_eef_pos"], fingers_width(obs)
    offset, way, side = can - eef, PLACE - can, SIDES[style]
    turn = point_down(obs["robot0_eef_quat"], side * np.pi / 3)
    holds = width < 0.068
    reach = 0.05 if holds else 0.02  # a can in the hand lags behind it
    around = np.linalg.norm(offset[:2]) < reach and abs(offset[2]) < 0.01 + reach
    if (np.abs(way[:2]) < ROOM).all() and way[2] > -0.035:
        rise = 0.05 if width > 0.075 else 0.0
        return action(np.array([0.0, 0.0, rise]), OPEN)
    if not around:
        return action(_bow(above(offset, 0.12), side), OPEN, turn)
    if not holds:
        return action(offset, CLOSE)
    move = _bow(above(way, 0.15, radius=0.03), side)
    move[:2] *= np.clip((can[2] - 0.87) / 0.05, 0.0, 1.0)  # first upwards
    return action(move, CLOSE, turn)


def _bow(offset: np.ndarray, side: float) -> np.ndarray:
    """Aim beside a target that is far, towards one side in x."""
    sideways = float(np.linalg.norm(offset[:2]))
    return offset + [side * np.clip(sideways - 0.03, 0.0, 0.1), 0.0, 0.0]
