"""Motions that experts of an arm share: a gripper that points down, under OSC_POSE delta control.

Positions are in metres, angles in radians, quaternions ``(x, y, z, w)``, all in the world.
"""

from collections.abc import Mapping

import numpy as np

FULL_MOVE, FULL_TURN = 0.05, 0.5  # what an action of 1 asks for in a step
OPEN, CLOSE = -1.0, 1.0
STILL = np.zeros(3)


def fingers_width(obs: Mapping[str, np.ndarray]) -> float:
    """Measure the distance between the fingers of the first robot; open: 0.08."""
    return float(np.ptp(obs["robot0_gripper_qpos"]))


def above(offset: np.ndarray, height: float, radius: float = 0.01) -> np.ndarray:
    """Go to a target by a funnel over it: from afar towards a point ``height`` above it, the lower
    the better centred, straight down within ``radius``."""
    sideways = float(np.linalg.norm(offset[:2]))
    return offset + [0.0, 0.0, np.clip(5.0 * (sideways - radius), 0.0, height)]


def yaw_of(quaternion: np.ndarray) -> float:
    """Return the angle about the vertical of a body's x axis."""
    x, y, z, w = quaternion
    return float(np.arctan2(2.0 * (x * y + w * z), 1.0 - 2.0 * (y * y + z * z)))


def nearest_turn(angle: float, period: float) -> float:
    """Return the equivalent of an angle within half a period of 0."""
    return float((angle + period / 2) % period - period / 2)


def point_down(quaternion: np.ndarray, yaw: float) -> np.ndarray:
    """Turn towards a hand that points down, its x axis towards ``yaw`` (the fingers close across
    it)."""
    cos, sin = np.cos(yaw), np.sin(yaw)
    return turn_to(quaternion, np.array([[cos, sin, 0.0], [sin, -cos, 0.0], [0.0, 0.0, -1.0]]))


def turn_to(quaternion: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the rotation ``[3]`` of an action that turns the hand until its x, y and z axes are
    the rows of ``wanted`` ``[3, 3]``. The hand points along z, and its fingers open along y."""
    x, y, z, w = quaternion
    axes = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)],
            [2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)],
            [2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
    # Half of the sum of the cross products of the axes is the axis times the sine of the angle.
    error = 0.5 * np.cross(axes, wanted).sum(axis=0)
    return np.clip(error / FULL_TURN, -1.0, 1.0)


def action(offset: np.ndarray, grip: float, turn: np.ndarray = STILL) -> np.ndarray:
    """Move by ``offset`` ``[3]`` as far as a step goes, open or close, turn ``[3]``: ``[7]``."""
    return np.concatenate([np.clip(offset / FULL_MOVE, -1.0, 1.0), turn, [grip]])
