"""gymnasium's MuJoCo tasks: as environments, and evaluated in by policies of flat files."""

import json

import gymnasium
import h5py
import numpy as np
import pytest
from conftest import train_completely

from offrl import Trainer
from offrl.__main__ import main
from offrl.acting import Policy
from offrl.checkpoint import write_checkpoint
from offrl.envs import make_env
from offrl.envs.rendering import working_backend
from offrl.envs.workers import EnvPool, EpisodeRequest

HOPPER = {"env_name": "Hopper-v5", "type": 2, "env_kwargs": {}}


class Constant(Policy):
    def __init__(self, size):
        self.action = np.full(size, 0.5, dtype=np.float32)

    def act(self, obs_by_env, goal_by_env=None, reward_by_env=None):
        return dict.fromkeys(obs_by_env, self.action)


def test_the_same_seed_is_the_same_episode_whatever_ran_before():
    fresh, used = make_env(HOPPER), make_env(HOPPER)
    used.reset(seed=7)
    used.step(used.action_space.sample())
    first, again = (env.reset(seed=3)[0]["flat"] for env in (fresh, used))
    assert first.shape == (11,) and fresh.observation_space.contains({"flat": first})
    np.testing.assert_array_equal(first, again)
    action = np.full(3, 0.5, dtype=np.float32)
    for _ in range(5):
        np.testing.assert_array_equal(fresh.step(action)[0]["flat"], used.step(action)[0]["flat"])
    assert not np.allclose(first, used.reset(seed=4)[0]["flat"])


@pytest.mark.slow
@pytest.mark.skipif(working_backend() is None, reason="no rendering back end")
@pytest.mark.parametrize(
    ("task", "kind", "size"),
    [
        ("Hopper-v5", 2, 3),
        pytest.param("reach-v3", "metaworld", 4, marks=pytest.mark.thorough),
    ],
)
def test_episodes_are_filmed(task, kind, size):
    with EnvPool({"env_name": task, "type": kind}, 1, gl_backend=working_backend()) as pool:
        request = EpisodeRequest(seed=0, horizon=4, frame_every=2)
        (result,) = pool.run([request], Constant(size))
    assert result.no_video is None and result.error is None
    first, *_, last = result.frames
    assert first.shape[-1] == 3 and first.std() > 1 and (first != last).any()


@pytest.fixture
def pendulum(tmp_path):
    """Random pushes of 2 to 3 (of at most 3): the pole falls, within a few steps."""
    env = make_env({"env_name": "InvertedPendulum-v5"})
    rng = np.random.default_rng(0)
    rows = {key: [] for key in ("observations", "actions", "rewards", "terminals", "timeouts")}
    for seed in range(20):
        obs, _ = env.reset(seed=seed)
        terminated = False
        while not terminated:
            action = rng.uniform(2, 3, 1)
            following, reward, terminated, *_ = env.step(action)
            for key, value in zip(rows, (obs["flat"], action, reward, terminated, 0), strict=True):
                rows[key].append(value)
            obs = following
    path = tmp_path / "pendulum.hdf5"
    with h5py.File(path, "w") as file:
        for key, values in rows.items():
            file[key] = np.array(values)
    return path


@pytest.mark.slow
def test_a_flat_file_trains_and_is_evaluated_in_experiment_env(pendulum, tmp_path, small_config):
    overrides = {
        "experiment": {
            "env": "InvertedPendulum-v5",
            "rollout": {"enabled": True, "n": 2, "horizon": 20, "rate": 1, "num_workers": 1},
        },
        "train": {
            "data": str(pendulum),
            "num_epochs": 1,
            "action_config": {"actions": {"normalization": "min_max"}},
        },
        "observation": {"modalities": {"obs": {"low_dim": ["flat"]}}},
    }
    trainer = Trainer(small_config(overrides, "iql"))
    records = train_completely(trainer)
    (rollout,) = [r["logs"] for r in records if r["type"] == "rollout"]
    assert rollout["n"] == 2 and rollout["Crashed"] == 0 and rollout["Return"] > 0
    checkpoint, recorded = tmp_path / "model.pth", tmp_path / "recorded.hdf5"
    write_checkpoint(checkpoint, trainer.state())
    command = ["rollout", "--checkpoint", str(checkpoint), "--n", "2", "--record", str(recorded)]
    assert main([*command, "--horizon", "20", "--workers", "1"]) == 0
    with h5py.File(recorded) as file:
        env_args = json.loads(file["data"].attrs["env_args"])
        actions, dones = file["data/demo_0/actions"][()], file["data/demo_0/dones"][()]
    assert env_args == {"type": 2, "env_kwargs": {}, "env_name": "InvertedPendulum-v5"}
    assert actions.min() >= 1.99 and actions.max() <= 3.01  # scaled back
    assert dones.tolist() == [0] * (len(dones) - 1) + [1]  # it fell


def test_what_drawing_takes_is_named(monkeypatch):
    def render(env):
        raise gymnasium.error.DependencyNotInstalled("pygame is not installed")

    env = make_env({"env_name": "CartPole-v1", "type": 2, "env_kwargs": {}})
    monkeypatch.setattr(type(env.unwrapped), "render", render)
    env.reset(seed=0)
    with pytest.raises(ImportError, match=r"CartPole-v1: .*offrl\[classic\]"):
        env.render()


class Undrawn(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, seed=None, options=None):
        return np.zeros(1, np.float32), {}


def test_an_environment_that_draws_nothing_is_told_what_to_write():
    gymnasium.register("Undrawn-v0", entry_point=Undrawn)
    env = make_env({"env_name": "Undrawn-v0", "type": 2})
    gymnasium.registry.pop("Undrawn-v0")
    env.reset()
    with pytest.raises(ValueError, match="Undrawn-v0 .*render"):
        env.render()
