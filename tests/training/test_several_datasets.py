"""Training on several files: weights, shared statistics, an environment of each."""

import json

import h5py
import numpy as np
import pytest
import torch
from conftest import train_completely, write_demos
from toy_env import toy_args

from offrl import Trainer, policy_from_checkpoint
from offrl.__main__ import main
from offrl.checkpoint import env_args_of
from offrl.data.loader import BatchLoader
from offrl.data.sequence import SequenceDataset

KEYS = ["position", "speed"]


@pytest.fixture
def files(tmp_path):
    paths = [str(tmp_path / f"{name}.hdf5") for name in ("one", "two")]
    write_demos(paths[0], lengths=(5, 7, 6), seed=1)
    write_demos(paths[1], lengths=(30, 40), seed=2)
    return paths


def test_windows_are_those_of_the_files_one_after_the_other(files):
    options = {"obs_keys": KEYS, "seq_length": 4, "frame_stack": 2, "get_pad_mask": True}
    both = SequenceDataset(files, **options)
    alone = [SequenceDataset(path, **options) for path in files]
    assert len(both) == sum(map(len, alone)) and [s.num_windows for s in both.sources] == [18, 70]
    for cache in ("all", "low_dim", None):
        both = SequenceDataset(files, hdf5_cache_mode=cache, **options)
        for index in (0, 17, 18, 60):
            mine = both[index]
            theirs = alone[index >= 18][index - 18 * (index >= 18)]
            for key in KEYS:
                np.testing.assert_array_equal(mine["obs"][key], theirs["obs"][key])
            np.testing.assert_array_equal(mine["actions"], theirs["actions"])


def test_statistics_are_of_all_files(files):
    config = {"actions": {"normalization": "min_max"}}
    both = SequenceDataset(files, KEYS, action_config=config, hdf5_normalize_obs=True)
    rows = []
    for path in files:
        with h5py.File(path) as file:
            rows += [demo["obs/speed"][()] for demo in file["data"].values()]
    mean = np.concatenate(rows).mean(0)
    np.testing.assert_allclose(both.get_obs_normalization_stats()["speed"]["offset"][0], mean, 1e-4)
    actions = both.get_batch(torch.arange(len(both)))["actions"]
    assert float(actions.max()) == pytest.approx(0.999999) and both.largest_actions["actions"] < 1


@pytest.mark.parametrize(("weights", "share"), [((1.0, 1.0), 18 / 88), ((10.0, 1.0), 180 / 250)])
def test_weights_are_of_windows(files, weights, share):
    dataset = SequenceDataset(files, KEYS)
    loader = BatchLoader(dataset, 80, seed=0, weights=weights)
    indices = (indices for indices, *_ in loader._chosen(0))
    drawn = torch.cat([next(indices) for _ in range(200)])
    assert 0 <= int(drawn.min()) and int(drawn.max()) < 88
    assert float((drawn < 18).float().mean()) == pytest.approx(share, abs=0.02)
    assert len(drawn.unique()) == 88


def test_normalised_weights_are_of_datasets(small_config, files):
    data = [{"path": files[0], "weight": 3.0}, {"path": files[1]}]
    trainer = Trainer(small_config({"train": {"data": data, "normalize_weights_by_ds_size": True}}))
    indices = (indices for indices, *_ in trainer.loader._chosen(0))
    drawn = torch.cat([next(indices) for _ in range(400)])
    assert float((drawn < 18).float().mean()) == pytest.approx(0.75, abs=0.03)
    assert Trainer(small_config({"train": {"data": files}})).loader.weights is None


def test_filter_keys_and_limits_are_of_each_file(small_config, files):
    data = [{"path": files[0], "filter_key": "valid"}, {"path": files[1], "demo_limit": 1}]
    trainer = Trainer(small_config({"train": {"data": data}}))
    assert [source.demos for source in trainer.dataset.sources] == [["demo_2"], ["demo_0"]]


def test_files_that_do_not_agree_are_named(files, tmp_path):
    odd = str(tmp_path / "odd.hdf5")
    write_demos(odd, obs={"position": (4,), "speed": (2,)})
    with pytest.raises(ValueError, match=r"obs/position .*\[3\] .*one.hdf5.*\[4\]"):
        SequenceDataset([files[0], odd], KEYS)
    with h5py.File(odd, "r+") as file:
        for demo in file["data"].values():
            length = len(demo["actions"])
            del demo["actions"]
            demo["actions"] = np.zeros((length, 5))
    with pytest.raises(ValueError, match=r"actions .*\[2\] .*one.hdf5.*\[5\]"):
        SequenceDataset([files[0], odd], ["speed"])


def test_each_dataset_has_its_environment(small_config, files, capsys):
    for path, slow in zip(files, (0.0, 0.001), strict=True):
        with h5py.File(path, "r+") as file:
            file["data"].attrs["env_args"] = json.dumps(toy_args(slow=slow))
    rollout = {"enabled": True, "n": 3, "horizon": 5, "rate": 3, "num_workers": 1}
    data = [{"path": files[0], "key": "near"}, {"path": files[1], "key": "far"}]
    config = small_config(
        {"experiment": {"rollout": rollout, "render_video": False}, "train": {"data": data}}
    )
    trainer = Trainer(config)
    records = train_completely(trainer)
    assert [r["env"] for r in records if r["type"] == "env_rollout"] == ["near", "far"]
    (overall,) = (r["logs"] for r in records if r["type"] == "rollout")
    assert overall["n"] == 6
    _, content = policy_from_checkpoint(trainer.run.last_checkpoint)
    assert content["env_metadata"]["env_kwargs"]["slow"] == 0.0
    assert env_args_of(content, "far")["env_kwargs"]["slow"] == 0.001
    own = ["--checkpoint", str(trainer.run.last_checkpoint), "--n", "1", "--workers", "1"]
    assert main(["rollout", *own]) == 0
    assert "environment: near; for another give --env far\n" in capsys.readouterr().out

    for entry in data:
        del entry["key"]
    environments = Trainer(small_config({"train": {"data": data}})).environments
    assert {k: args["env_kwargs"]["slow"] for k, args in environments.items()} == {
        "toy_env:Toy-v0-slow_0.0": 0.0,
        "toy_env:Toy-v0-slow_0.001": 0.001,
    }
    data[0]["key"] = "near"
    data[1]["eval"] = False
    assert list(Trainer(small_config({"train": {"data": data}})).environments) == ["near"]


@pytest.mark.parametrize(
    ("kwargs", "key"),
    [
        ({"controller_configs": {"type": "JOINT_VELOCITY"}}, "controller_configs.type"),
        ({"controller": "joint"}, "controller"),
        ({"control_freq": 10}, None),
    ],
)
def test_actions_of_different_controllers_are_not_mixed(small_config, files, kwargs, key):
    for path, own in zip(files, ({"controller_configs": {"type": "OSC_POSE"}}, {}), strict=True):
        own = kwargs if key is None or not own else own
        own = {"control_freq": 20} if key is None and path == files[0] else own
        with h5py.File(path, "r+") as file:
            args = {"env_name": "Lift", "type": 1, "env_kwargs": own}
            file["data"].attrs["env_args"] = json.dumps(args)
    config = small_config({"train": {"data": files}})
    if key is None:
        names = [*Trainer(config).environments]
        assert names == ["Lift-control_freq_20", "Lift-control_freq_10"]
    else:
        with pytest.raises(ValueError, match=rf"two.hdf5.*one.hdf5.*env_kwargs.{key}"):
            Trainer(config)
