"""``offrl export-replay``: what a training has collected, as a dataset."""

import json

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offrl import config_factory, training
from offrl.__main__ import main
from offrl.data.computed import received, transformed
from offrl.data.formats.hdf5 import DemoFile
from offrl.envs.vector.episodes import ListVector

SMALL = {"critic": {"layer_dims": [8]}}
CONTINUOUS = SMALL | {"actor": {"layer_dims": [8]}}


@pytest.fixture
def collected(monkeypatch):
    """By environment the episodes that are collected in lists of environments, step by step."""
    episodes, last = {}, {}

    def note(envs, obs):
        for env in range(envs.num_envs):
            last[env] = obs["flat"][env]

    def reset(envs, original=ListVector.reset):
        obs = original(envs)
        note(envs, obs)
        return obs

    def step(envs, actions, original=ListVector.step):
        stepped = original(envs, actions)
        for env in range(envs.num_envs):
            after = stepped.final_obs.get(env, {key: x[env] for key, x in stepped.obs.items()})
            taken = (last[env], actions[env], stepped.rewards[env], after["flat"])
            over = (stepped.terminated[env], stepped.truncated[env])
            episodes.setdefault(env, []).append((*taken, *over))
        note(envs, stepped.obs)
        return stepped

    monkeypatch.setattr(ListVector, "reset", reset)
    monkeypatch.setattr(ListVector, "step", step)
    return episodes


def trained(
    folder,
    algo_name,
    env,
    num_steps,
    algo,
    online=None,
    frame_stack=1,
    experiment=None,
    train=None,
):
    config = config_factory(
        algo_name,
        {
            "experiment": {
                "env": env,
                "epoch_every_n_steps": num_steps,
                "rollout": {"enabled": False},
                "logging": {"log_tb": False},
                **(experiment or {}),
            },
            "train": {
                "num_steps": num_steps,
                "output_dir": str(folder),
                "batch_size": 8,
                "frame_stack": frame_stack,
                "online": {"random_steps": 10, "num_updates": 1, **(online or {})},
                **(train or {}),
            },
            "algo": algo,
        },
    )
    return training.train(config).run.last_checkpoint


def read(path):
    """All steps of a file, one after the other."""
    file = DemoFile(path)
    episodes = [file.trajectory(demo) for demo in file.demos()]
    keys = [key for key, x in episodes[0].items() if np.ndim(x)]
    return {key: np.concatenate([e[key] for e in episodes]) for key in keys}


def assert_is_the_end_of(steps, rows):
    """Whether a file's steps are the last of those that were collected, to the bit."""
    num = len(steps["actions"])
    obs, actions, rewards, after, terminated, truncated = map(np.array, zip(*rows, strict=True))
    for key, values in {
        "obs/flat": obs,
        "next_obs/flat": after,
        "rewards": rewards.astype(np.float32),
        "dones": terminated,
        "actions": actions,
    }.items():
        np.testing.assert_array_equal(steps[key], values[-num:], err_msg=key)
    np.testing.assert_array_equal(steps["timeouts"][:-1], (truncated & ~terminated)[-num:-1])
    assert steps["timeouts"][-1] or steps["dones"][-1]  # the recording ends there


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capacity", "frame_stack"),
    [
        (150, 3),
        *(pytest.param(*x, marks=pytest.mark.thorough) for x in ((1000, 1), (1000, 3), (150, 1))),
    ],
)
def test_what_is_written_is_what_was_collected(capacity, frame_stack, tmp_path, collected):
    online = {"replay": {"capacity": capacity}, "horizon": 40}
    last = trained(tmp_path / "runs", "sac", "Pendulum-v1", 330, CONTINUOUS, online, frame_stack)
    assert main(["export-replay", str(last), str(tmp_path / "replay.hdf5")]) == 0
    steps = read(tmp_path / "replay.hdf5")
    assert_is_the_end_of(steps, collected[0])
    # Rows that are no steps take the place of some: one for each episode, and for lost frames.
    assert min(330, capacity) - 330 // 40 - 2 * frame_stack < len(steps["actions"]) <= 330


def test_discrete_actions_of_two_environments_that_terminate(tmp_path, collected):
    online = {"num_envs": 2, "horizon": 30}
    last = trained(tmp_path / "runs", "dqn", "Acrobot-v1", 200, SMALL, online)
    export = ["export-replay", str(last)]
    assert main([*export, str(tmp_path / "all.hdf5")]) == 0
    assert main([*export, str(tmp_path / "first.hdf5"), "--steps", "110"]) == 0
    steps, first = read(tmp_path / "all.hdf5"), read(tmp_path / "first.hdf5")
    half = len(steps["actions"]) // 2
    assert half > 90 and len(first["actions"]) == 110
    for env, own in collected.items():
        part = {key: values[env * half :][:half] for key, values in steps.items()}
        assert_is_the_end_of(part, own)
        for key in ("obs/flat", "actions", "rewards", "dones"):
            of_first = first[key][env * 55 :][:55]
            np.testing.assert_array_equal(of_first, part[key][:55])


@pytest.mark.slow
@pytest.mark.parametrize("algo_name", [pytest.param("bc", marks=pytest.mark.thorough), "iql"])
def test_what_is_written_can_be_trained_on(algo_name, tmp_path):
    last = trained(tmp_path / "runs", "td3", "Pendulum-v1", 300, CONTINUOUS)
    assert main(["export-replay", str(last), str(tmp_path / "replay.hdf5")]) == 0
    with h5py.File(tmp_path / "replay.hdf5") as file:
        assert "Pendulum-v1" in file["data"].attrs["env_args"].decode()
        assert "export-replay" in file["data"].attrs["provenance"].decode()
        assert {"train", "valid"} == set(file["mask"])
    config = {
        "experiment": {
            "epoch_every_n_steps": 5,
            "validate": True,
            "rollout": {"n": 1, "horizon": 5, "num_workers": 1},
            "render_video": False,
        },
        "train": {
            "data": str(tmp_path / "replay.hdf5"),
            "output_dir": str(tmp_path / "runs"),
            "hdf5_filter_key": "train",
            "hdf5_validation_filter_key": "valid",
            "num_epochs": 1,
        },
        "observation": {"modalities": {"obs": {"low_dim": ["flat"]}}},
    }
    result = training.train(config_factory(algo_name, config))
    assert result.is_measured and result.test["Return"] < 0


def test_a_checkpoint_without_a_replay_says_what_to_do(tmp_path, capsys):
    last = trained(tmp_path / "runs", "ppo", "CartPole-v1", 100, {}, {"collect_steps": 50})
    assert main(["export-replay", str(last), str(tmp_path / "replay.hdf5")]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert "holds no replay" in said and "offrl rollout --record" in said
    assert not (tmp_path / "replay.hdf5").exists()


@pytest.mark.thorough
def test_medium_data_is_made_by_one_command(tmp_path, capsys):
    evaluated = {
        "epoch_every_n_steps": 150,
        "rollout": {"n": 2, "horizon": 60, "num_workers": 1},
        "render_video": False,
        "save": {"every_n_epochs": 1},
    }
    algo = SMALL | {"optim_params": {"critic": {"learning_rate": {"initial": 3e-3}}}}
    last = trained(tmp_path, "dqn", "CartPole-v1", 600, algo, experiment=evaluated)
    with open(last.parent / "metrics.jsonl") as file:
        records = [json.loads(line) for line in file]
    returns = {r["step"]: r["logs"]["Return"] for r in records if r["type"] == "rollout"}
    first, best = next(iter(returns.values())), max(returns.values())
    step = next(step for step, x in returns.items() if x >= first + (best - first) / 3)
    replay, medium = tmp_path / "medium_replay.hdf5", tmp_path / "medium.hdf5"
    export = ["export-replay", str(last), str(replay), "--medium", str(medium)]
    assert main([*export, "--steps", "10"]) == 1
    assert main([*export[:-1], str(replay)]) == 1
    assert "is the file of the replay, too" in capsys.readouterr().err
    assert not replay.exists()
    assert main(export) == 0
    assert 0.9 * step < len(read(replay)["actions"]) <= step  # ends take the place of some
    assert f"model_epoch_{step // 150}-" in capsys.readouterr().out
    with h5py.File(medium) as file:  # no initial states of the tests of who trains on it
        assert file["data/demo_0"].attrs["seed"] >= 2_000_000
    steps = read(medium)
    assert 0.3 * step < len(steps["actions"]) < 3 * step
    assert steps["obs/flat"].shape[1:] == (4,)
    assert main(export) == 1  # nothing is overwritten
    for path in (last.parent / "models").iterdir():
        path.unlink()
    export[2:] = [str(tmp_path / "a.hdf5"), "--medium", str(tmp_path / "b.hdf5")]
    assert main(export) == 1
    assert (
        "no checkpoint is kept whose return has come a third of the way" in capsys.readouterr().err
    )
    assert not (tmp_path / "a.hdf5").exists()


@pytest.mark.slow
@pytest.mark.parametrize("online", [{}, {"normalize_rewards": True}])
def test_rewards_and_actions_are_those_of_the_environment(online, tmp_path, collected):
    config = {"rewards": {"scale": 10.0, "shift": -1.0}}
    last = trained(tmp_path / "runs", "sac", "Pendulum-v1", 100, CONTINUOUS, online, train=config)
    assert main(["export-replay", str(last), str(tmp_path / "replay.hdf5")]) == 0
    steps, own = read(tmp_path / "replay.hdf5"), collected[0]
    rewards = [step[2] for step in own][-len(steps["rewards"]) :]
    np.testing.assert_allclose(steps["rewards"], rewards, rtol=1e-5)


@given(
    seed=st.integers(0, 2**32 - 1),
    scale=st.floats(0.1, 100),
    shift=st.floats(-10, 10),
    normalization=st.sampled_from([None, "min_max", "gaussian", "return"]),
)
def test_what_was_received_is_known_of_what_was_learned(seed, scale, shift, normalization):
    rewards = np.random.default_rng(seed).normal(size=20).astype(np.float32)
    options = {"scale": scale, "shift": shift, "normalization": normalization}
    learned, stats = transformed(rewards, np.array([12, 8]), options)
    tolerance = 1e-5 * (1 + stats["scale"] * (1 + abs(shift) / scale))
    np.testing.assert_allclose(received(learned, options, stats), rewards, atol=tolerance)


def test_what_an_expert_would_do_is_not_written_as_done(tmp_path, capsys):
    online = {"collect_steps": 40, "horizon": 40}
    pytest.importorskip("metaworld")
    experiment = {"env_meta_update_dict": {"type": "metaworld"}}
    algo = {"actor_layer_dims": [8]}
    last = trained(tmp_path / "runs", "dagger", "reach-v3", 80, algo, online, experiment=experiment)
    assert main(["export-replay", str(last), str(tmp_path / "replay.hdf5")]) == 1
    assert "offrl rollout --record" in capsys.readouterr().err
