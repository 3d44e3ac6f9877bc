"""robosuite's Lift."""

from collections.abc import Mapping

import numpy as np

from offrl.envs.experts.expert import demonstrator


@demonstrator("Lift", horizon=150)
def lift(obs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Lift the cube with a Panda arm under OSC_POSE delta control: action ``[7]`` in [-1, 1].

    Down a funnel above the cube, close the fingers around it, up.
    """
    offset = obs["object"][:3] - obs["robot0_eef_pos"]
    width = np.ptp(obs["robot0_gripper_qpos"])  # metres between the fingers, open: 0.08
    sideways = float(np.linalg.norm(offset[:2]))

    # The funnel: 10 cm above the cube from afar, the lower the better centred.
    above = np.clip(3.0 * (sideways - 0.01), 0.0, 0.1)
    move = np.clip((offset + [0.0, 0.0, above]) / 0.05, -1.0, 1.0)  # full deflection is 5 cm
    around_cube = sideways < 0.015 and abs(offset[2]) < 0.025
    if around_cube:
        # The pull upwards, balanced by the above, cannot lose a cube that does not follow yet
        # (one held by its corners is 6 cm wide).
        move[2] += 0.45 * np.clip((0.07 - width) / 0.02, 0.0, 1.0)
    return np.concatenate([move, np.zeros(3), [1.0 if around_cube else -1.0]])
