"""Discrete actions: from integers in a file to one-hot vectors, and what is refused."""

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offrl import config_factory
from offrl.config import ActionConfig
from offrl.data.formats.hdf5 import DemoFile
from offrl.data.sequence import SequenceDataset
from offrl.data.writer import DemoWriter

DISCRETE = {"actions": {"format": "discrete"}}


def write(path, *demos, **others):
    with h5py.File(path, "w") as file:
        for i, actions in enumerate(demos):
            file[f"data/demo_{i}/actions"] = actions
            file[f"data/demo_{i}/obs/place"] = np.zeros((len(actions), 2))
            for name, values in others.items():
                file[f"data/demo_{i}/{name}"] = values
    return path


def load(path, config=DISCRETE, **options):
    options = {"load_next_obs": False, "action_config": config} | options
    return SequenceDataset(path, ["place"], **options)


@settings(max_examples=30)
@given(
    demos=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5), min_size=1, max_size=3),
    dtype=st.sampled_from(["u1", "i4", "i8", "f4", "f8"]),
    is_column=st.booleans(),
    more=st.none() | st.integers(0, 3),
)
def test_integers_become_one_hot(tmp_path_factory, demos, dtype, is_column, more):
    stored = [np.array(actions, dtype).reshape((-1, 1) if is_column else -1) for actions in demos]
    path = write(tmp_path_factory.mktemp("data") / "demos.hdf5", *stored)
    flat = [action for actions in demos for action in actions]
    num = max(flat) + 1 + (more or 0)
    config = {"actions": ActionConfig(format="discrete", num_actions=None if more is None else num)}
    data = load(path, config, seq_length=2)
    actions = data.get_batch(torch.arange(len(data)))["actions"]
    assert actions.shape == (len(flat), 2, data.ac_dim) and data.ac_dim == num
    assert actions.dtype == torch.float32
    assert (actions.sum(-1) == 1).all() and (actions.amax(-1) == 1).all()
    assert actions[:, 0].argmax(-1).tolist() == flat


def test_held_out_actions_are_as_wide_as_those_of_the_training(tmp_path):
    train = load(write(tmp_path / "train.hdf5", [0, 4]))
    stats = train.get_action_normalization_stats()
    valid = load(write(tmp_path / "valid.hdf5", [1, 0]), action_stats=stats)
    assert valid.ac_dim == train.ac_dim == 5
    with pytest.raises(ValueError, match="num_actions"):
        load(write(tmp_path / "other.hdf5", [1, 5]), action_stats=stats)


def test_files_share_the_number_of_actions(tmp_path):
    paths = [write(tmp_path / "a.hdf5", [0, 1]), write(tmp_path / "b.hdf5", [3], [0])]
    assert load(paths).ac_dim == 4
    with pytest.raises(ValueError, match="b.hdf5: demo_0/actions .*num_actions"):
        load(paths, {"actions": {"format": "discrete", "num_actions": 3}})


@pytest.mark.parametrize(
    ("actions", "config", "message"),
    [
        ([0, 0.5], DISCRETE, "demo_1/actions .*0.5 .*actions.format"),
        ([0, -1], DISCRETE, "demo_1/actions .*-1 .*actions.format"),
        ([[0, 1], [1, 0]], DISCRETE, "actions.format: .*demo_0/actions .* 2 "),
        ([0, 1], {}, 'demo_0/actions .*actions.format .*"discrete"'),
    ],
)
def test_actions_that_do_not_fit_the_format_are_refused(tmp_path, actions, config, message):
    path = write(tmp_path / "demos.hdf5", np.zeros_like(actions), actions)
    with pytest.raises(ValueError, match=message):
        load(path, config)


def test_a_discrete_action_stands_alone(tmp_path):
    path = write(tmp_path / "demos.hdf5", [0, 1], grip=[1, 0])
    with pytest.raises(ValueError, match="actions.format: .*train.action_keys"):
        load(path, action_keys=["actions", "grip"])
    joined = load(path, {}, action_keys=["actions", "grip"])  # integers beside others are numbers
    assert joined[1]["actions"].tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_actions": 3}, "action_config.actions: num_actions"),
        ({"format": "discrete", "normalization": "min_max"}, "config.actions: .*normalization"),
        ({"format": "discrete", "num_actions": 0}, "action_config.actions.num_actions"),
    ],
)
def test_contradictory_settings_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        config_factory("bc", {"train": {"action_config": {"actions": config}}})


def test_recorded_integers_stay_integers(tmp_path):
    path = tmp_path / "recorded.hdf5"
    actions = np.stack([np.int64(2), np.int64(0)])
    with DemoWriter(path, {}) as writer:
        writer.write({"actions": actions, "obs/place": np.zeros((2, 2)), "dones": np.ones(2, bool)})
    with h5py.File(path) as file:
        assert file["data/demo_0/actions"].dtype == np.int64
        assert file["data/demo_0/dones"].dtype == np.float32
    with DemoFile(path) as file:
        assert file.holds_integers("demo_0", "actions")
    assert load(path)[0]["actions"].tolist() == [[0.0, 0.0, 1.0]]
