"""robosuite's Door."""

from collections.abc import Mapping

import numpy as np

from offrl.envs.experts.expert import demonstrator
from offrl.envs.experts.motion import CLOSE, OPEN, action, fingers_width, turn_to

TILT = np.pi / 4  # of the hand, away from the door, which it would touch otherwise
TURNED = 1.0  # radians of the handle at which the latch lets go of the frame
# One finger goes behind the handle and above it, so that the hand can press and pull.
AXES = np.array(
    [
        [1.0, 0.0, 0.0],
        [0.0, -np.cos(TILT), np.sin(TILT)],
        [0.0, -np.sin(TILT), -np.cos(TILT)],
    ]
)


@demonstrator("Door", horizon=200)
def door(obs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Open the door with a Panda arm: action ``[7]`` in [-1, 1].

    Take the end of the handle, press it down, pull.
    """
    handle, eef = obs["object"][3:6], obs["robot0_eef_pos"]
    hinge, turned = obs["object"][6], obs["object"][13]
    turn = turn_to(obs["robot0_eef_quat"], AXES)
    offset = handle - eef
    along = offset @ AXES[2]  # how far the hand has to go where it points
    across = np.linalg.norm(offset - along * AXES[2])
    holds = fingers_width(obs) < 0.06
    if across > (0.05 if holds else 0.03) or abs(along) > 0.04:
        # A funnel in the direction of the hand.
        back = np.clip(5.0 * (across - 0.01), 0.0, 0.12)
        return action(offset - back * AXES[2], OPEN, turn)
    if not holds:
        return action(offset, CLOSE, turn)
    if turned < TURNED and hinge < 0.02:
        return action(np.array([2 * offset[0], 2 * offset[1], -0.05]), CLOSE, turn)
    return action(np.array([2 * offset[0], 0.05, offset[2] - 0.02]), CLOSE, turn)
