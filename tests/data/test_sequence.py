import logging

import h5py
import numpy as np
import pytest
import torch
from conftest import write_demos
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from offrl.data.datasets import make_dataset
from offrl.data.sequence import SequenceDataset

KEYS = ("position", "speed")


def expected_window(rows, start, frame_stack, seq_length):
    """A window around step ``start`` of one demo, written the slow way."""
    steps = range(start - frame_stack + 1, start + seq_length)
    inside = [0 <= step < len(rows) for step in steps]
    return np.stack([rows[min(max(step, 0), len(rows) - 1)] for step in steps]), inside


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(4, 9), min_size=1, max_size=4),
    frame_stack=st.integers(1, 4),
    seq_length=st.integers(1, 4),
    pad_frame_stack=st.booleans(),
    pad_seq_length=st.booleans(),
    goal_mode=st.sampled_from([None, "last"]),
    next_obs=st.booleans(),
    cache_mode=st.sampled_from(["all", "low_dim", None]),
)
def test_windows_are_what_they_should_be(
    tmp_path_factory,
    lengths,
    frame_stack,
    seq_length,
    pad_frame_stack,
    pad_seq_length,
    goal_mode,
    next_obs,
    cache_mode,
):
    path = write_demos(tmp_path_factory.mktemp("data") / "demos.hdf5", lengths, next_obs=next_obs)
    skip_start = 0 if pad_frame_stack else frame_stack - 1
    skip_end = 0 if pad_seq_length else seq_length - 1
    arguments = dict(
        hdf5_path=path,
        obs_keys=KEYS,
        frame_stack=frame_stack,
        seq_length=seq_length,
        pad_frame_stack=pad_frame_stack,
        pad_seq_length=pad_seq_length,
        goal_mode=goal_mode,
        get_pad_mask=True,
        hdf5_cache_mode=cache_mode,
    )
    if min(lengths) - skip_start - skip_end < 1 and not pad_seq_length:
        with pytest.raises(ValueError, match="train.pad_seq_length"):
            SequenceDataset(**arguments)
        return
    dataset = SequenceDataset(**arguments)

    item = 0
    with h5py.File(path) as file:
        for d, length in enumerate(lengths):
            demo = file[f"data/demo_{d}"]
            obs = demo["obs/position"][()].astype(np.float32)
            following = (
                demo["next_obs/position"][()].astype(np.float32)
                if next_obs
                else np.concatenate([obs[1:], obs[-1:]])
            )
            for start in range(skip_start, max(length - skip_end, skip_start + 1)):
                actual = dataset[item]
                window, inside = expected_window(obs, start, frame_stack, seq_length)
                np.testing.assert_array_equal(actual["obs"]["position"], window)
                np.testing.assert_array_equal(actual["pad_mask"][:, 0], inside)
                window, _ = expected_window(following, start, frame_stack, seq_length)
                np.testing.assert_array_equal(actual["next_obs"]["position"], window)
                window, _ = expected_window(demo["rewards"][()], start, frame_stack, seq_length)
                np.testing.assert_allclose(actual["rewards"], window, rtol=1e-6)
                if goal_mode:
                    goal = following[length - skip_end - 1]
                    np.testing.assert_array_equal(actual["goal_obs"]["position"], goal)
                item += 1
    assert item == len(dataset)


def test_a_batch_is_its_items(demos):
    dataset = SequenceDataset(demos, KEYS, frame_stack=2, seq_length=3, goal_mode="last")
    indices = torch.tensor([0, 17, 4, 4])
    batch = dataset.get_batch(indices)
    for row, index in enumerate(indices.tolist()):
        item = dataset[index]
        for group in ("obs", "next_obs", "goal_obs"):
            for key in KEYS:
                np.testing.assert_array_equal(batch[group][key][row], item[group][key])
        np.testing.assert_array_equal(batch["actions"][row], item["actions"])
    assert batch["obs"]["position"].shape == (4, 4, 3)


def test_a_plain_dataloader_works(demos):
    dataset = SequenceDataset(demos, KEYS, seq_length=3)
    batch = next(iter(DataLoader(dataset, batch_size=4, num_workers=1)))
    assert batch["obs"]["position"].shape == (4, 3, 3)
    assert batch["actions"].dtype == torch.float32
    with pytest.raises(IndexError):
        dataset[len(dataset)]


def test_images_stay_in_the_file_if_asked(tmp_path):
    path = tmp_path / "images.hdf5"
    images = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 3), dtype=np.uint8)
    with h5py.File(path, "w") as file:
        file["data/demo_0/obs/image"] = images
        file["data/demo_0/obs/position"] = np.zeros((6, 3))
        file["data/demo_0/actions"] = np.zeros((6, 2))
    for cache_mode, streams in (("all", False), ("low_dim", True), (None, True)):
        dataset = SequenceDataset(
            path,
            ["image", "position"],
            seq_length=2,
            hdf5_cache_mode=cache_mode,
            load_next_obs=False,
        )
        assert dataset.is_streamed == streams
        window = dataset[3]["obs"]["image"]
        assert window.dtype == np.uint8
        np.testing.assert_array_equal(window, images[3:5])


def test_observations_of_the_first_steps_alone_are_taken(demos):
    options = {"frame_stack": 2, "seq_length": 5, "get_pad_mask": True}
    whole, part = (SequenceDataset(demos, ["position"], obs_steps=n, **options) for n in (None, 2))
    indices = torch.arange(len(whole))
    expected, found = whole.get_batch(indices), part.get_batch(indices)
    assert torch.equal(found["actions"], expected["actions"]) and found["actions"].shape[1] == 6
    for group in ("obs", "next_obs"):
        for key, values in expected[group].items():
            assert torch.equal(found[group][key], values[:, :2])


def test_policies_of_chunks_see_the_first_observations(small_config):
    config = small_config(algo_name="act")
    batch = make_dataset(config, {}).get_batch(torch.arange(3))
    horizon = config.algo.horizon
    assert batch["obs"]["position"].shape[1] == horizon.observation_horizon
    assert batch["actions"].shape[1] == config.train.frame_stack - 1 + config.train.seq_length


def test_memory_is_that_of_the_data(demos):
    sizes = {SequenceDataset(demos, KEYS, seq_length=t).nbytes for t in (1, 100)}
    assert len(sizes) == 1
    assert sizes.pop() == 18 * 4 * (3 + 2 + 2 + 1 + 1)


def test_only_the_next_obs_that_the_file_lacks_are_derived(tmp_path):
    path = write_demos(tmp_path / "demos.hdf5", lengths=(5, 4), next_obs=True)
    with h5py.File(path, "r+") as file:
        for demo in file["data"].values():
            del demo["next_obs/speed"]
            stored = demo["next_obs/position"][()]
            speed = demo["obs/speed"][()]
    item = SequenceDataset(path, KEYS, goal_mode="last")[7]  # the last but one of the second
    np.testing.assert_allclose(item["next_obs"]["position"][0], stored[2].astype("f4"))
    np.testing.assert_allclose(item["next_obs"]["speed"][0], speed[3].astype("f4"))
    np.testing.assert_allclose(item["goal_obs"]["position"], stored[3].astype("f4"))
    np.testing.assert_allclose(item["goal_obs"]["speed"], speed[3].astype("f4"))


def test_missing_next_obs_is_said_once(demos, caplog):
    with caplog.at_level(logging.INFO):
        dataset = SequenceDataset(demos, KEYS)
        dataset[0], dataset[1]
    assert sum("next_obs" in message for message in caplog.messages) == 1


def test_several_action_keys_are_joined_in_order(tmp_path):
    path = tmp_path / "demos.hdf5"
    with h5py.File(path, "w") as file:
        file["data/demo_0/obs/position"] = np.zeros((4, 3))
        file["data/demo_0/action_dict/move"] = np.array([[0.0], [1.0], [2.0], [4.0]])
        file["data/demo_0/action_dict/grip"] = np.array([0.0, 0.0, 1.0, 1.0])
    dataset = SequenceDataset(
        path,
        ["position"],
        ["action_dict/move", "action_dict/grip"],
        dataset_keys=("rewards",),
        action_config={"action_dict/move": {"normalization": "min_max"}},
        load_next_obs=False,
    )
    item = dataset[3]
    np.testing.assert_allclose(item["actions"], [[0.999999, 1.0]], rtol=1e-6)
    np.testing.assert_array_equal(item["action_dict/move"], [[4.0]])
    np.testing.assert_array_equal(item["rewards"], [[0.0]])
    assert dataset.ac_dim == 2


@pytest.mark.parametrize("normalization", ["min_max", "gaussian", None])
def test_action_normalization_can_be_undone(demos, normalization):
    config = {"actions": {"normalization": normalization}}
    dataset = SequenceDataset(demos, KEYS, action_config=config)
    stats = dataset.get_action_normalization_stats()["actions"]
    with h5py.File(demos) as file:
        raw = np.concatenate([file[f"data/demo_{i}/actions"][()] for i in range(3)])
    normalized = dataset.get_batch(torch.arange(len(dataset)))["actions"][:, 0].numpy()
    np.testing.assert_allclose(normalized * stats["scale"] + stats["offset"], raw, atol=1e-6)
    if normalization == "min_max":
        np.testing.assert_allclose(np.abs(normalized).max(0), 0.999999, rtol=1e-5)
    if normalization == "gaussian":
        np.testing.assert_allclose(normalized.std(0), 1.0, rtol=1e-5)


def test_filter_keys_and_limits_choose_demos(demos):
    assert SequenceDataset(demos, KEYS, filter_by_attribute="train").demos == ["demo_0", "demo_1"]
    assert SequenceDataset(demos, KEYS, demo_limit=1).demos == ["demo_0"]


def test_demos_are_ordered_by_number(tmp_path):
    path = write_demos(tmp_path / "many.hdf5", lengths=[3] * 12)
    assert SequenceDataset(path, KEYS).demos == [f"demo_{i}" for i in range(12)]


def test_numbers_are_vectors_of_one(tmp_path):
    path = tmp_path / "numbers.hdf5"
    write_demos(path, obs={"height": (), "speed": (2,)})
    for cache in ("all", None):
        dataset = SequenceDataset(path, ["height", "speed"], hdf5_cache_mode=cache, seq_length=3)
        assert dataset.obs_shapes == {"height": (1,), "speed": (2,)}
        batch = dataset.get_batch(torch.arange(4))
        assert batch["obs"]["height"].shape == batch["next_obs"]["height"].shape == (4, 3, 1)


def test_held_out_actions_are_normalised_as_those_of_the_training(demos):
    config = {"actions": {"normalization": "min_max"}}
    options = {"obs_keys": ["speed"], "action_config": config}
    train = SequenceDataset(demos, filter_by_attribute="train", **options)
    stats = train.get_action_normalization_stats()
    valid = SequenceDataset(demos, filter_by_attribute="valid", action_stats=stats, **options)
    whole = SequenceDataset(demos, ["speed"])
    raw = whole.get_batch(torch.tensor([len(train)]))["actions"][0, 0]
    expected = (raw - stats["actions"]["offset"][0]) / stats["actions"]["scale"][0]
    actual = valid.get_batch(torch.tensor([0]))["actions"][0, 0]
    torch.testing.assert_close(actual, expected.float(), atol=1e-5, rtol=1e-5)


def test_a_demonstration_that_stops_unfinished_lends_its_last_step_to_the_one_before(tmp_path):
    """Its last step has no next observation, and is no end of the episode either."""
    path = write_demos(tmp_path / "demos.hdf5", lengths=(4, 3))
    with h5py.File(path, "a") as file:
        file["data/demo_0/dones"][...] = 0  # a time limit; demo_1 terminates
        stored = file["data/demo_0/obs/position"][()]
    data = SequenceDataset(path, ["position"], load_next_obs=True, seq_length=2, get_pad_mask=True)
    assert len(data) == 3 + 3
    last = data[2]
    np.testing.assert_allclose(last["obs"]["position"][0], stored[2], rtol=1e-6)
    np.testing.assert_allclose(last["next_obs"]["position"][0], stored[3], rtol=1e-6)
    assert last["pad_mask"].ravel().tolist() == [True, False]
    assert data[5]["dones"][0] == 1
    assert len(SequenceDataset(path, ["position"], load_next_obs=False)) == 4 + 3


def test_without_dones_nothing_is_known_of_what_follows_a_last_step(demos):
    with h5py.File(demos, "a") as file:
        for demo in file["data"].values():
            del demo["dones"]
    dataset = SequenceDataset(demos, KEYS)
    assert len(dataset) == 18 - 3
    batch = dataset.get_batch(torch.arange(15))
    assert not (batch["obs"]["speed"] == batch["next_obs"]["speed"]).all(-1).any()
    assert len(SequenceDataset(demos, KEYS, load_next_obs=False)) == 18


def test_of_several_files_one_may_lack_a_key(tmp_path, caplog):
    paths = [write_demos(tmp_path / f"{i}.hdf5", seed=i) for i in range(2)]
    with h5py.File(paths[1], "a") as file:
        for demo in file["data"].values():
            del demo["dones"]
    dataset = SequenceDataset(paths, KEYS)
    assert dataset.values("dones").sum() == 3
    assert len(dataset) == 18 + 15
    assert f"{paths[1]} has no dones: taken as zero" in caplog.text


@pytest.mark.parametrize("key", ["rewards", "dones"])
def test_what_is_to_be_a_number_per_step_is_one(demos, key):
    with h5py.File(demos, "a") as file:
        for demo in file["data"].values():
            values = demo[key][()]
            del demo[key]
            demo[key] = np.stack([values, values], axis=1)
    with pytest.raises(ValueError, match=rf"{key} .*\[2\]"):
        SequenceDataset(demos, KEYS)


def test_single_steps_share_the_data(demos):
    dataset = SequenceDataset(demos, KEYS, frame_stack=2, seq_length=3, pad_seq_length=False)
    steps = dataset.single_steps()
    assert len(steps) == 18 and len(dataset) == 18 - 3 * 2
    assert steps.store is dataset.store
    batch = steps.get_batch(steps.first_rows)
    assert batch["obs"]["speed"].shape == (3, 2, 2) and "next_obs" not in batch
    assert torch.equal(batch["actions"][:, -1], dataset.values("actions")[[0, 5, 12]])
    assert dataset.sources[0].num_windows == 12 and steps.sources[0].num_windows == 18


def test_what_training_makes_nothing_of_is_warned_of_once(demos, caplog):
    """Transitions that are not the environment's, and time stamps that become constants."""
    with h5py.File(demos, "r+") as file:
        for demo in file["data"].values():
            rows = demo["obs/speed"][()]
            demo["next_obs/speed"] = np.append(rows[1:], rows[-1:], axis=0)
            demo["obs/time"] = 1.7e9 + 0.05 * np.arange(len(rows))
    for _ in range(2):
        SequenceDataset(demos, ["speed"])
    assert not caplog.messages
    SequenceDataset(demos, ["time"], load_next_obs=False)
    (message,) = caplog.messages
    assert "obs/time changes by less than float32" in message
    with h5py.File(demos, "r+") as file:
        file["data/demo_1/next_obs/speed"][2] += 1
    caplog.clear()
    for load_next_obs in (False, True, True):
        SequenceDataset(demos, ["speed"], load_next_obs=load_next_obs)
    (message,) = caplog.messages
    assert "demo_1/next_obs/speed at step 2 is not the observation of the step after" in message
