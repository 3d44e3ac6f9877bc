"""Meta-World's tasks and its experts."""

import json
import sys

import h5py
import numpy as np
import pytest

from offrl.__main__ import main
from offrl.envs import make_env
from offrl.envs.metaworld import MetaworldExpert
from offrl.training import Trainer


def task(name="push-v3", **env_kwargs):
    return {"env_name": name, "type": "metaworld", "env_kwargs": env_kwargs}


def positions(env):
    return env.unwrapped.data.qpos.copy()


def test_it_follows_gymnasium_and_the_goal_is_seen():
    env = make_env(task())
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs) and obs["flat"].shape == (39,)
    np.testing.assert_array_equal(obs["flat"][-3:], env.unwrapped._target_pos)
    obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
    assert env.observation_space.contains(obs)
    np.testing.assert_array_equal(obs["state"], obs["flat"][:36])  # without the goal
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert env.is_success() == {"task": False}
    args = env.serialize()
    assert args["type"] == "metaworld" and positions(make_env(args)).shape == positions(env).shape


@pytest.mark.parametrize(
    "name",
    [
        "push-v3",
        pytest.param("drawer-open-v3", marks=pytest.mark.thorough),
        pytest.param("sweep-into-v3", marks=pytest.mark.thorough),
    ],
)
def test_the_same_seed_is_the_same_episode_whatever_ran_before(name):
    fresh, used = make_env(task(name)), make_env(task(name))
    used.reset(seed=7)
    for _ in range(20):
        used.step(used.action_space.sample())
    np.random.seed(1)  # global state has no say
    first, again = (env.reset(seed=3)[0]["flat"] for env in (fresh, used))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(positions(fresh), positions(used))
    action = np.array([0.5, 1.0, -0.7, 1.0], dtype=np.float32)
    for _ in range(10):
        np.testing.assert_array_equal(fresh.step(action)[0]["flat"], used.step(action)[0]["flat"])
    other = used.reset(seed=4)[0]["flat"]
    without_seed = used.reset()[0]["flat"]
    assert not np.allclose(first, other) and not np.allclose(other, without_seed)


def rewards_of_expert(name, seed, **env_kwargs):
    """Up to the success that ends the episode."""
    env, expert = make_env(task(name, **env_kwargs)), MetaworldExpert(name)
    obs, _ = env.reset(seed=seed)
    rewards = []
    while not env.is_success()["task"]:
        action = expert(obs)
        assert np.abs(action).max() <= 1
        obs, reward, *_ = env.step(action)
        rewards.append(reward)
        assert len(rewards) < 100
    return np.array(rewards)


@pytest.mark.parametrize(
    "name",
    [
        "push-v3",
        *(pytest.param(x, marks=pytest.mark.thorough) for x in ("reach-v3", "button-press-v3")),
    ],
)
def test_experts_succeed_and_are_paid_for_that_alone(name):
    for seed in range(3):
        rewards = rewards_of_expert(name, seed)
        assert rewards[-1] == 1.0 and not rewards[:-1].any()


def test_a_dense_reward_grows_towards_the_goal():
    rewards = rewards_of_expert("reach-v3", seed=0, reward_shaping=True)
    assert 0 < rewards[0] < rewards[10] < rewards[-1] == pytest.approx(10)


@pytest.mark.slow
def test_collected_data_of_mixed_quality_trains_offline(tmp_path, small_config):
    path = tmp_path / "mixed.hdf5"
    command = "collect --env push-v3 --type metaworld --n 4 --noise 0 4 --keep-failures --workers 1"
    assert main([*command.split(), "--horizon", "80", "--output", str(path)]) == 0
    with h5py.File(path) as file:
        assert json.loads(file["data"].attrs["env_args"]) == task()
        for i, success in enumerate([1, 0, 1, 0]):  # noise levels take turns
            demo = file[f"data/demo_{i}"]
            assert np.abs(demo["actions"]).max() <= 1 and demo["obs/flat"].dtype == np.float32
            for key in ("rewards", "dones"):
                assert demo[key][-1] == success and not demo[key][:-1].any()
    overrides = {
        "experiment": {"rollout": {"enabled": True, "n": 1, "horizon": 3, "num_workers": 1}},
        "train": {"data": str(path), "num_epochs": 1},
        "observation": {"modalities": {"obs": {"low_dim": ["flat"]}}},
    }
    trainer = Trainer(small_config(overrides, "iql"))
    assert trainer.env_args == task()
    assert np.isfinite(list(trainer())[-1]["logs"]["Train_Time"])


def test_its_arm_stands_still_while_its_policy_thinks():
    env = make_env(task())
    env.reset(seed=0)
    action = None
    for _ in range(5):  # to come to rest
        action = env.get_wrapper_attr("stand_still")(action)
        obs, *_ = env.step(action)
    hand = obs["flat"][:3]
    for _ in range(5):
        obs, *_ = env.step(env.get_wrapper_attr("stand_still")(action))
    assert np.abs(obs["flat"][:3] - hand).max() < 0.01
    still = env.get_wrapper_attr("stand_still")(np.array([1.0, 1.0, 1.0, -1.0]))
    np.testing.assert_array_equal(still, [0, 0, 0, -1])


def test_unknown_tasks_name_those_there_are(tmp_path, capsys):
    command = "collect --env push-v2 --type metaworld --output".split()
    assert main([*command, str(tmp_path / "x.hdf5")]) == 1
    assert "Did you mean 'push-v3'" in capsys.readouterr().err
    with pytest.raises(ValueError, match="'reach-v3'"):
        make_env(task("reach"))


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "metaworld.env_dict", None)
    with pytest.raises(ImportError, match=r"offrl\[metaworld\]"):
        make_env(task())
