"""Scripted demonstrators without a simulator."""

import numpy as np

from offrl.envs.experts import ExpertPolicy


def test_episodes_take_several_noise_levels_in_turn():
    policy = ExpertPolicy(lambda obs: np.zeros(200), noise=[0.0, 0.1, 0.3])
    spreads = []
    for seed in range(6):
        policy.start_episode(env=seed % 2, seed=seed)
        action = policy.act({seed % 2: {}})[seed % 2]
        assert action[-1] == 0  # the gripper stays clean
        spreads.append(action[:-1].std())
    np.testing.assert_allclose(spreads, [0.0, 0.1, 0.3] * 2, rtol=0.2)
