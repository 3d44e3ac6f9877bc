"""Lower rates: what intervals are made of, for any length and factor."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from offrl.data.storage import create
from offrl.data.validation import Validation
from offrl.data.writer import DemoWriter
from offrl.edits.edit import open_file
from offrl.edits.relabel import downsample, slowed, summed

pytestmark = pytest.mark.slow

FACTORS = st.integers(2, 6)
LENGTHS = st.integers(1, 20)


def intervals(rows, factor):
    return [rows[t : t + factor] for t in range(0, len(rows), factor)]


@given(length=LENGTHS, factor=FACTORS, seed=st.integers(0, 99))
def test_each_array_says_of_an_interval_what_it_is_to_say(length, factor, seed):
    rng = np.random.default_rng(seed)
    rows, done = rng.normal(size=(length, 2)), rng.integers(0, 2, length).astype(np.float32)
    parts = intervals(rows, factor)
    for key, pick in {
        "obs/x": lambda part: part[0],
        "states": lambda part: part[0],
        "next_obs/x": lambda part: part[-1],
        "actions": lambda part: part[-1],
    }.items():
        np.testing.assert_array_equal(slowed(key, rows, factor), [pick(part) for part in parts])
    for key in ("dones", "terminals", "timeouts"):
        expected = [part.max() for part in intervals(done, factor)]
        np.testing.assert_array_equal(slowed(key, done, factor), expected)


@given(
    rewards=LENGTHS.flatmap(lambda n: arrays(np.float32, n, elements=st.floats(-9, 9, width=32))),
    factor=FACTORS,
)
def test_returns_are_the_same_at_any_rate(rewards, factor):
    slow = slowed("rewards", rewards, factor)
    assert len(slow) == -(-len(rewards) // factor)
    np.testing.assert_allclose(slow.sum(), rewards.sum(dtype=np.float64), atol=1e-9)


@given(length=LENGTHS, factor=FACTORS, seed=st.integers(0, 99), num_commands=st.integers(0, 2))
def test_relative_motions_add_up_to_the_same_motion(length, factor, seed, num_commands):
    actions = np.random.default_rng(seed).uniform(-1, 1, (length, 4)) / factor
    slow = summed(actions, factor, num_commands, "a place")
    motions, commands = slow[:, : 4 - num_commands], slow[:, 4 - num_commands :]
    np.testing.assert_allclose(motions.sum(0), actions[:, : 4 - num_commands].sum(0), atol=1e-12)
    lasts = [part[-1, 4 - num_commands :] for part in intervals(actions, factor)]
    np.testing.assert_array_equal(commands, lasts)


@given(length=st.integers(2, 20), factor=FACTORS, data=st.data())
def test_where_one_motion_would_be_clipped_nothing_is_summed(length, factor, data):
    actions = np.zeros((length, 3))
    step = data.draw(st.integers(0, length - 1))
    actions[step, data.draw(st.integers(0, 1))] = data.draw(st.sampled_from([-1.01, 1.01]))
    with pytest.raises(ValueError, match=f"a place/actions .*step {step // factor * factor} "):
        summed(actions, factor, 1, "a place")
    actions[:, :2] = 0
    actions[step, 2] = 5  # a command is not summed
    assert summed(actions, factor, 1, "a place")[step // factor, 2] in (0, 5)


def recorded(path, env_args=None, length=7, **arrays):
    rng = np.random.default_rng(0)
    own = {"actions": rng.uniform(-0.3, 0.3, (length, 3)), "rewards": np.ones(length)}
    own |= {"dones": np.eye(length)[-1], "obs/a": rng.normal(size=(length, 2))}
    with DemoWriter(path, env_args) as writer:
        writer.write(own | arrays, seed=4)
    return path


def test_a_remainder_is_an_interval_of_its_own(tmp_path):
    with open_file(recorded(tmp_path / "a.hdf5", length=7)) as file:
        downsample(file, 3, "delta").write(tmp_path / "b.hdf5", {"command": "a test"})
        with open_file(tmp_path / "b.hdf5") as slow:
            found = slow.trajectory("demo_0")
            assert found["rewards"].tolist() == [3, 3, 1] and found["dones"].tolist() == [0, 0, 1]
            assert found["seed"] == 4 and found["actions"].dtype == np.float32
            np.testing.assert_allclose(
                found["actions"][2], file.trajectory("demo_0")["actions"][6], rtol=1e-6
            )
    assert Validation(tmp_path / "b.hdf5").wrong == []


ROBOSUITE = {"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20, "robots": "Panda"}}


@pytest.mark.parametrize(
    ("env_args", "factor", "rate"),
    [
        (ROBOSUITE, 2, 10),
        (ROBOSUITE, 5, 4),
        ({**ROBOSUITE, "env_kwargs": {}}, 4, 5),
        ({"env_name": "x", "type": "mine", "env_kwargs": {"control_freq": 9}}, 3, 3),
    ],
)
def test_the_environment_is_asked_at_the_new_rate(env_args, factor, rate, tmp_path):
    with open_file(recorded(tmp_path / "a.hdf5", env_args)) as file:
        edit = downsample(file, factor, "absolute")
        kwargs = env_args["env_kwargs"]
        assert edit.env_args == {**env_args, "env_kwargs": {**kwargs, "control_freq": rate}}
        assert file.env_args == env_args


@pytest.mark.parametrize(
    ("env_args", "kind", "words"),
    [
        (ROBOSUITE, "absolute", "control_freq 20 .*3"),
        ({"env_name": "Hopper-v4", "type": 2, "env_kwargs": {}}, "absolute", "v4 .*control_freq"),
        (None, None, "--kind"),
    ],
)
def test_a_rate_that_no_environment_has_is_refused(env_args, kind, words, tmp_path):
    with open_file(recorded(tmp_path / "a.hdf5", env_args)) as file:
        with pytest.raises(ValueError, match=words):
            downsample(file, 3, kind)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"action_dict/abs_pos": np.zeros((7, 3))}, "demo_0/action_dict/abs_pos .*--drop action_d"),
        ({"actions": np.ones((7, 3))}, "demo_0/actions .*step 0 "),
        ({"actions": np.arange(7)}, "demo_0/actions .*--commands.*--kind"),
    ],
)
def test_what_cannot_be_said_of_intervals_is_refused(arrays, words, tmp_path):
    with open_file(recorded(tmp_path / "a.hdf5", **arrays)) as file:
        with pytest.raises(ValueError, match=words):
            downsample(file, 2, "delta").write(tmp_path / "b.hdf5", {"command": "a test"})
    assert not (tmp_path / "b.hdf5").exists()


def test_frames_stay_frames(tmp_path):
    import h5py

    path, images = recorded(tmp_path / "a.hdf5"), np.arange(7 * 192, dtype=np.uint8)
    images = images.reshape(7, 8, 8, 3)
    with h5py.File(path, "r+") as file:
        create(file["data/demo_0"], "obs/camera", images, "png")
    with open_file(path) as file:
        downsample(file, 2, "absolute").write(tmp_path / "b.hdf5", {"command": "a test"})
    with open_file(tmp_path / "b.hdf5") as slow:
        assert slow.stored("demo_0")["obs/camera"].dataset.attrs["frames"] == "png"
        np.testing.assert_array_equal(slow.trajectory("demo_0")["obs/camera"], images[::2])
