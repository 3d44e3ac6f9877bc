"""robosuite's Lift."""

from collections.abc import Mapping

import numpy as np

from offrl.envs.experts.expert import demonstrator
from offrl.envs.experts.motion import CLOSE, OPEN, action, fingers_width


@demonstrator("Lift", horizon=150)
def lift(obs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Lift the cube with a Panda arm under OSC_POSE delta control: action ``[7]`` in [-1, 1].

    Down a funnel above the cube, close the fingers around it, up.
    """
    offset, width = obs["object"][:3] - obs["robot0_eef_pos"], fingers_width(obs)
    sideways = float(np.linalg.norm(offset[:2]))

    # The funnel: 10 cm above the cube from afar, the lower the better centred.
    above = np.clip(3.0 * (sideways - 0.01), 0.0, 0.1)
    move = action(offset + [0.0, 0.0, above], OPEN)
    around_cube = sideways < 0.015 and abs(offset[2]) < 0.025
    if around_cube:
        # The pull upwards, balanced by the above, cannot lose a cube that does not follow yet
        # (one held by its corners is 6 cm wide).
        move[2] += 0.45 * np.clip((0.07 - width) / 0.02, 0.0, 1.0)
        move[-1] = CLOSE
    return move
