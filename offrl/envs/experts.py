"""Scripted demonstrators: functions from an observation to an action, without memory.

Memoryless experts make data that a memoryless policy can learn. ``offrl collect`` runs them, and
those of Meta-World (``metaworld_expert``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from offrl.registry import EXPERTS

Obs = Mapping[str, np.ndarray]


@EXPERTS.register("Lift")
def lift(obs: Obs) -> np.ndarray:
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


class ExpertPolicy:
    """An expert as an evaluation policy, with Gaussian noise on the arm's motion.

    ``noise`` is the standard deviation, in the units of the action, or several of which episodes
    take one each, in turn by their seeds; the last component (the gripper) stays clean. Each
    episode's noise comes from its seed.
    """

    def __init__(self, expert: Callable[[Obs], np.ndarray], noise: float | Sequence[float] = 0.0):
        self.expert = expert
        self.levels = [noise] if isinstance(noise, (int, float)) else list(noise)
        self._noise: dict[int, float] = {}
        self._generators: dict[int, np.random.Generator] = {}

    def start_episode(self, env: int = 0, seed: int | None = None) -> None:
        self._noise[env] = self.levels[(seed or 0) % len(self.levels)]
        self._generators[env] = np.random.default_rng(seed)

    def act(
        self, obs_by_env: Mapping[int, Obs], goal_by_env: Mapping[int, Obs] | None = None
    ) -> dict[int, np.ndarray]:
        return {env: self._act(env, obs) for env, obs in obs_by_env.items()}

    def _act(self, env: int, obs: Obs) -> np.ndarray:
        action = self.expert(obs)
        action[:-1] += self._noise[env] * self._generators[env].standard_normal(len(action) - 1)
        return np.clip(action, -1.0, 1.0).astype(np.float32)
