"""Scripted demonstrators."""

import numpy as np
import pytest

from offrl.acting.episode import EpisodeRequest, rollout
from offrl.envs import env_args_named, make_env
from offrl.envs.experts import ExpertPolicy, scripted_expert
from offrl.envs.experts.robosuite import FULL_TURN, nearest_turn, point_down, yaw_of
from offrl.envs.workers import EnvPool
from offrl.registry import EXPERTS

SEEDS = 4_000_000


def test_episodes_take_several_noise_levels_in_turn():
    policy = ExpertPolicy(lambda obs: np.zeros(200), noise=[0.0, 0.1, 0.3])
    spreads = []
    for seed in range(6):
        policy.start_episode(env=seed % 2, seed=seed)
        action = policy.act({seed % 2: {}})[seed % 2]
        assert action[-1] == 0  # the gripper stays clean
        spreads.append(action[:-1].std())
    np.testing.assert_allclose(spreads, [0.0, 0.1, 0.3] * 2, rtol=0.2)


def solved(task, n, noise=0.0, styles=(), num_workers=None):
    """The share of ``n`` episodes in which the demonstrator succeeds."""
    env_args = env_args_named(task)
    policy = ExpertPolicy(scripted_expert(env_args), noise, styles)
    requests = [EpisodeRequest(SEEDS + i, policy.horizon) for i in range(n)]
    with EnvPool(env_args, num_workers) as pool:
        return np.mean([result.success for result in pool.run(requests, policy)])


@pytest.mark.slow
@pytest.mark.parametrize("task", EXPERTS.names())
def test_a_demonstrator_solves_its_task(task):
    env_args = env_args_named(task)
    env = make_env(env_args)
    policy = ExpertPolicy(scripted_expert(env_args))
    assert rollout(policy, env, horizon=policy.horizon, seed=SEEDS)["Success_Rate"] == 1
    env.close()


@pytest.mark.thorough
@pytest.mark.parametrize("task", EXPERTS.names())
def test_demonstrators_hardly_ever_fail(task):
    assert solved(task, 30) >= 0.95
    assert solved(task, 10, noise=0.1) >= 0.8


@pytest.mark.thorough
@pytest.mark.parametrize("style", EXPERTS["PickPlaceCan"].styles)
def test_each_style_solves_the_task(style):
    assert solved("PickPlaceCan", 20, 0.1, [style]) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize(
    "task",
    [
        "TwoArmLift",
        pytest.param("ToolHang", marks=pytest.mark.thorough),
        pytest.param("TwoArmPegInHole", marks=pytest.mark.thorough),
        pytest.param("TwoArmTransport", marks=pytest.mark.thorough),
    ],
)
def test_tasks_without_a_demonstrator_can_be_opened(task):
    env_args = env_args_named(task)
    env = make_env(env_args)
    still = ExpertPolicy(lambda obs: np.zeros(env.action_space.shape))
    assert rollout(still, env, horizon=2, seed=1)["Success_Rate"] == 0
    env.close()
    with pytest.raises(ValueError, match=task):
        scripted_expert(env_args)


def test_a_hand_turns_the_shortest_way_until_it_points_down():
    down = np.array([1.0, 0.0, 0.0, 0.0])  # half a turn about x
    np.testing.assert_allclose(point_down(down, 0.0), 0, atol=1e-12)
    assert point_down(down, 0.3)[2] == pytest.approx(np.sin(0.3) / FULL_TURN)
    turned = np.array([np.cos(0.1), np.sin(0.1), 0.0, 0.0])  # and 0.2 about z
    np.testing.assert_allclose(point_down(turned, yaw_of(turned)), 0, atol=1e-12)
    assert nearest_turn(3.0, np.pi) == pytest.approx(3.0 - np.pi)
