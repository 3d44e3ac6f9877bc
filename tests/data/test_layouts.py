"""The layouts of other projects: what is read is what was recorded, by every way of reading."""

import logging
import os
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import h5py
import numcodecs
import numpy as np
import pytest
import zarr
from conftest import ROOT, train_completely
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layouts import write_aloha, write_maniskill, write_replay_buffer, write_robosuite

from offrl import Trainer
from offrl.__main__ import main
from offrl.data.formats.files import open_demos, open_episodes
from offrl.data.formats.hdf5 import DemoFile
from offrl.data.formats.zarr_array import ZarrArray, ZarrGroup
from offrl.data.sequence import SequenceDataset


class Case(NamedTuple):
    """A layout: how it is written, the name of the data, a vector and a camera in it, the largest
    difference of a pixel, and the number of remarks."""

    write: object
    name: str
    vector: str
    camera: str | None
    error: int = 0
    remarks: int = 0


CASES = {
    "ALOHA": Case(write_aloha, "episodes", "qpos", "cam_high_image"),
    "ALOHA packed": Case(
        lambda path: write_aloha(path, packed=True), "episodes", "qpos", "cam_high_image", 12
    ),
    "ManiSkill": Case(write_maniskill, "trajectory.h5", "agent_qpos", "base_camera_image", 0, 2),
    "ManiSkill state": Case(
        lambda path: write_maniskill(path, mode="state"), "trajectory.state.h5", "flat", None
    ),
    "Diffusion Policy": Case(write_replay_buffer, "replay.zarr", "state", "camera0_rgb", 0, 1),
    "Diffusion Policy zip": Case(
        write_replay_buffer, "replay.zarr.zip", "state", "camera0_rgb", 0, 1
    ),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture
def written(case, tmp_path):
    """The path of the data, and the arrays of its episodes."""
    path = tmp_path / case.name
    return path, case.write(path)


def differ(found, expected):
    return np.abs(found.astype(np.float64) - expected.astype(np.float64)).max()


def test_episodes_are_what_was_recorded(case, written):
    path, expected = written
    with open_episodes(path) as episodes:
        assert episodes.demos() == [*expected]
        for demo, arrays in expected.items():
            found = episodes.trajectory(demo)
            assert {k for k, x in found.items() if isinstance(x, np.ndarray)} == {*arrays}
            for key, rows in arrays.items():
                assert found[key].shape == rows.shape
                assert found[key].dtype == rows.dtype
                assert differ(found[key], rows) <= case.error * ("image" in key)


def test_training_reads_what_was_recorded_in_memory_and_from_files(case, written):
    path, expected = written
    keys = [case.vector, *([case.camera] if case.camera else [])]
    joined = {
        f"obs/{key}": np.concatenate([x[f"obs/{key}"] for x in expected.values()]) for key in keys
    }
    joined["actions"] = np.concatenate([x["actions"] for x in expected.values()])
    for mode in ("all", None):
        options = {"hdf5_cache_mode": mode, "load_next_obs": False}
        data = SequenceDataset(str(path), keys, dataset_keys=["actions"], **options)
        batch = data.get_batch(np.arange(len(joined["actions"])))
        for key, rows in joined.items():
            group, _, name = key.rpartition("/")
            found = (batch[group][name] if group else batch[name])[:, 0].numpy()
            assert differ(found, rows) <= case.error * ("image" in key) + 1e-6


@pytest.mark.thorough
def test_a_policy_trains_on_it(case, written, small_config, tmp_path):
    path, _ = written
    obs = {"low_dim": [case.vector], "rgb": [case.camera] if case.camera else []}
    config = small_config(
        {
            "train": {"data": [{"path": str(path)}], "num_epochs": 1, "batch_size": 2},
            "experiment": {"epoch_every_n_steps": 2},
            "observation": {"modalities": {"obs": obs}},
        }
    )
    assert train_completely(Trainer(config))


def test_its_layout_is_said_once(written, caplog):
    path, _ = written
    with caplog.at_level(logging.INFO, "offrl"):
        open_demos(path).close()
        open_episodes(path).close()
    (line,) = [x for x in caplog.messages if "read in the layout of" in x]
    assert line.startswith(f"{path}: ")


def test_commands_read_it(case, written, tmp_path, capsys):
    path, expected = written
    assert main(["validate", str(path)]) == 0
    steps = sum(len(arrays["actions"]) for arrays in expected.values())
    assert (
        f"0 wrong, {case.remarks} remarks; 3 demonstrations, {steps} steps"
        in capsys.readouterr().out
    )
    assert main(["info", str(path)]) == 0
    shown = capsys.readouterr().out
    assert all(key in shown for key in expected[[*expected][0]])


@pytest.mark.thorough
def test_it_is_viewed_and_played_back(case, written, tmp_path):
    path, _ = written
    assert main(["view", str(path), "--output", str(tmp_path / "view")]) == 0
    if case.camera:
        film = ["playback", str(path), "--use", "images", "--n", "1"]
        assert main([*film, "--output", str(tmp_path / "film.mp4")]) == 0


def test_a_conversion_has_all_of_it(case, written, tmp_path, capsys):
    path, expected = written
    output = tmp_path / "out.hdf5"
    assert main(["convert", str(path), str(output), "--to", "robomimic"]) == 0
    with DemoFile(output) as file:
        for demo, arrays in zip(file.demos(), expected.values(), strict=True):
            found = file.trajectory(demo)
            assert {k for k, x in found.items() if isinstance(x, np.ndarray)} == {*arrays}
            assert all(
                differ(found[k], x) <= case.error * ("image" in k) for k, x in arrays.items()
            )
    capsys.readouterr()
    assert main(["validate", str(output)]) == 0


def test_an_edit_makes_a_file_of_it(case, written, tmp_path, capsys):
    path, expected = written
    arguments = ["--keys", f"obs/{case.vector}=obs/joints", "--output", str(tmp_path / "out.hdf5")]
    assert main(["edit", "rename", str(path), *arguments]) == 0
    with DemoFile(tmp_path / "out.hdf5") as file:
        for demo, (source, arrays) in zip(file.demos(), expected.items(), strict=True):
            found = file.trajectory(demo)
            assert found["source"] == f"{path.name}/{source}"
            assert differ(found["obs/joints"], arrays[f"obs/{case.vector}"]) == 0
            if case.camera:
                key = f"obs/{case.camera}"
                assert differ(found[key], arrays[key]) <= case.error


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4), data=st.data())
def test_any_window_of_any_episodes_is_what_was_recorded(tmp_path_factory, lengths, data):
    folder = tmp_path_factory.mktemp("any")
    path = folder / "trajectory.h5"
    expected = write_maniskill(path, lengths, mode="state")
    with open_demos(path) as demos:
        for demo, arrays in expected.items():
            start = data.draw(st.integers(0, len(arrays["actions"]) - 1))
            stop = data.draw(st.integers(start + 1, len(arrays["actions"])))
            for key, rows in arrays.items():
                assert np.array_equal(demos.array(demo, key).rows(start, stop), rows[start:stop])


CODECS = {
    "lz4": numcodecs.LZ4,
    "zstd": numcodecs.Zstd,
    "zlib": numcodecs.Zlib,
    "gzip": numcodecs.GZip,
    "blosc": numcodecs.Blosc,
    "shuffled": lambda: numcodecs.Blosc("zstd", shuffle=numcodecs.Blosc.BITSHUFFLE),
}


@st.composite
def zarr_arrays(draw):
    """An array, its chunks, and how zarr writes it."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    return {
        "data": np.random.default_rng(draw(st.integers(0, 9)))
        .integers(0, 256, shape)
        .astype(draw(st.sampled_from(["<f4", ">f8", "|u1", "<i2", "|b1"]))),
        "chunks": tuple(draw(st.integers(1, size + 2)) for size in shape),
        "order": draw(st.sampled_from("CF")),
        "dimension_separator": draw(st.sampled_from("./")),
        "compressor": draw(st.sampled_from([None, *CODECS])),
    }


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=zarr_arrays(), data=st.data())
def test_rows_of_any_array_of_zarrs_are_what_zarr_wrote(monkeypatch, tmp_path_factory, made, data):
    # So small that few chunks are kept.
    monkeypatch.setattr("offrl.data.formats.zarr_array.CACHED_BYTES", data.draw(st.integers(0, 99)))
    codec, path = made["compressor"], tmp_path_factory.mktemp("any")
    group = zarr.group(zarr.DirectoryStore(str(path)))
    options = made | {"compressor": CODECS[codec]() if codec else None}
    group.create_group("data").array("x", **options)
    array = ZarrArray(ZarrGroup(path), "data/x")
    for _ in range(3):
        start = data.draw(st.integers(0, len(array) - 1))
        stop = data.draw(st.integers(start + 1, len(array)))
        assert np.array_equal(array.rows(start, stop), made["data"][start:stop])


@pytest.mark.parametrize("num_bytes", [0, 1, 79, 81, 2**20])
@pytest.mark.parametrize("codec", [None, *CODECS])
def test_a_chunk_of_zarrs_with_more_or_fewer_bytes_is_refused(codec, num_bytes, tmp_path):
    content, compressor = bytes(num_bytes), CODECS[codec]() if codec else None
    group = zarr.group(zarr.DirectoryStore(str(tmp_path))).create_group("data")
    group.array("x", np.arange(20.0), chunks=10, compressor=compressor)
    (tmp_path / "data/x/0").write_bytes(compressor.encode(content) if codec else content)
    array = ZarrArray(ZarrGroup(tmp_path), "data/x")
    assert array.rows(10, 20).tolist() == list(range(10, 20))
    with pytest.raises(ValueError, match=r"^[^\n]*: data/x/0 cannot be read [^\n]*$"):
        array.rows(5, 15)


def test_a_chunk_of_zarrs_that_is_missing_is_not_taken_for_zeros(tmp_path):
    group = zarr.group(zarr.DirectoryStore(str(tmp_path))).create_group("data")
    group.array("x", np.ones(20), chunks=10)
    (tmp_path / "data/x/0").unlink()
    array = ZarrArray(ZarrGroup(tmp_path), "data/x")
    with pytest.raises(ValueError, match="data/x/0 is missing"):
        array.rows(5, 15)


def test_chunks_of_zarrs_are_not_in_memory_all_at_once(monkeypatch, tmp_path):
    monkeypatch.setattr("offrl.data.formats.zarr_array.CACHED_BYTES", 0)
    group = zarr.group(zarr.DirectoryStore(str(tmp_path))).create_group("data")
    group.array("x", np.ones((32, 1), np.uint8), chunks=(1, 2**20))
    array = ZarrArray(ZarrGroup(tmp_path), "data/x")
    tracemalloc.start()
    assert array.read().sum() == 32
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 8 * 2**20


def test_an_array_of_zarrs_may_be_empty(tmp_path):
    zarr.group(zarr.DirectoryStore(str(tmp_path))).create_group("data").array("x", np.zeros((0, 3)))
    assert ZarrArray(ZarrGroup(tmp_path), "data/x").read().shape == (0, 3)


def test_episodes_are_in_the_order_of_their_numbers_and_files_beside_them_do_not_matter(tmp_path):
    folder = tmp_path / "episodes"
    write_aloha(folder, (2,) * 11)
    for name in ("episode_0_video.mp4", "dataset_stats.pkl"):
        (folder / name).write_bytes(b"")
    (folder / "episode_4.hdf5").unlink()
    with open_demos(folder) as demos:
        assert demos.demos() == [f"episode_{i}" for i in range(11) if i != 4]
        assert demos.demos(limit=2) == ["episode_0", "episode_1"]


def test_many_files_of_episodes_are_not_all_open_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("offrl.data.formats.aloha.MOST_FILES", 2)
    expected = write_aloha(tmp_path / "episodes", (3, 4, 5, 6))
    with open_demos(tmp_path / "episodes") as demos:
        for _ in range(2):
            for demo, arrays in expected.items():
                assert np.array_equal(
                    demos.array(demo, "obs/qpos").rows(0, 2), arrays["obs/qpos"][:2]
                )
                opened = {os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()}
                assert sum(path.endswith(".hdf5") for path in opened) <= 2


def test_successes_of_maniskill_are_a_filter_key_and_attributes(tmp_path):
    write_maniskill(tmp_path / "trajectory.h5", mode="state")
    for has_json in (True, False):
        with open_demos(tmp_path / "trajectory.h5") as demos:
            assert demos.demos("success") == ["traj_0", "traj_2"]
            found = demos.trajectory("traj_1", ())
            assert found["success"] is False
            assert (found.get("seed") == 101) == has_json
            assert demos.unread() == ["env_states"]
            with pytest.raises(ValueError, match="no filter key 'train': it has success"):
                demos.demos("train")
        (tmp_path / "trajectory.json").unlink(missing_ok=True)


def test_a_file_of_an_episode_is_read_as_one_of_a_folder(tmp_path):
    expected = write_aloha(tmp_path / "episodes")
    with open_episodes(tmp_path / "episodes/episode_1.hdf5") as episodes:
        assert episodes.demos() == ["episode_1"]
        assert np.array_equal(
            episodes.trajectory("episode_1")["actions"], expected["episode_1"]["actions"]
        )
        assert episodes.trajectory("episode_1")["sim"] == 0


@pytest.mark.parametrize("mode", ["all", None])
def test_recordings_of_robosuite_train_on_their_states(tmp_path, mode):
    path = tmp_path / "demo.hdf5"
    expected = write_robosuite(path)
    options = {"hdf5_cache_mode": mode, "load_next_obs": False, "dataset_keys": ["actions"]}
    data = SequenceDataset(str(path), ["states"], **options)
    batch = data.get_batch(np.arange(len(data)))
    rows = np.concatenate([arrays["states"] for arrays in expected.values()])
    assert differ(batch["obs"]["states"][:, 0].numpy(), rows) < 1e-6
    assert data.env_args["env_name"] == "Lift"
    with pytest.raises(ValueError, match="has no 'obs/object'; make observations of its states"):
        SequenceDataset(str(path), ["object"], **options)


def test_recordings_of_robosuite_are_read_by_commands(tmp_path, capsys):
    path, output = tmp_path / "demo.hdf5", tmp_path / "out.hdf5"
    expected = write_robosuite(path)
    assert main(["validate", str(path)]) == 0
    assert main(["info", str(path)]) == 0
    assert main(["convert", str(path), str(output), "--to", "robomimic"]) == 0
    with DemoFile(output) as file:
        found = file.trajectory("demo_0")
    assert np.array_equal(found["states"], expected["demo_1"]["states"])
    assert "obs/states" not in found


@pytest.mark.parametrize("command", ["info", "validate"])
def test_rlds_is_recognised_and_refused_with_what_helps(tmp_path, capsys, command):
    folder = tmp_path / "1.0.0"
    folder.mkdir()
    for name in ("dataset_info.json", "features.json", "x-train.tfrecord-00000-of-00001"):
        (folder / name).write_bytes(b"{}")
    for path in (folder, folder / "x-train.tfrecord-00000-of-00001"):
        assert main([command, str(path)]) == 1
        said = capsys.readouterr()
        assert "TFRecord files (RLDS) are not read" in said.out + said.err
        assert "offrl.DemoWriter" in said.out + said.err


def test_links_of_a_hubs_cache_are_followed_into_its_blobs_alone(case, tmp_path):
    cache, elsewhere = tmp_path / "datasets--a--b", tmp_path / "elsewhere"
    commit, blobs = cache / "snapshots/0a1b", cache / "blobs"
    for folder in (commit, blobs, elsewhere):
        folder.mkdir(parents=True)
    path = commit / case.name
    expected = case.write(path)
    files = [file for file in commit.rglob("*") if file.is_file()]
    for i, file in enumerate(files):
        file.rename(blobs / str(i))
        file.symlink_to(blobs / str(i))
    with open_episodes(path) as episodes:
        assert [*map(len, map(episodes.trajectory, expected))]
    if path.is_dir() or len(files) > 1:  # the given file itself may be a link to anywhere
        other = next(file for file in files if file != path and file.name != ".zgroup")
        (elsewhere / "x").write_bytes(other.read_bytes())
        other.unlink()
        other.symlink_to(elsewhere / "x")
        with pytest.raises(ValueError, match="--follow-links"), open_episodes(path) as episodes:
            [*map(episodes.trajectory, expected)]


def test_shipped_data_is_read_without_a_word(caplog):
    with caplog.at_level(logging.INFO, "offrl"):
        open_demos(ROOT / "datasets/lift/low_dim.hdf5").close()
    assert not caplog.messages


def test_an_array_that_comes_from_another_file_is_found(tmp_path):
    path = tmp_path / "trajectory.h5"
    write_maniskill(path, mode="state")
    with h5py.File(tmp_path / "other.h5", "w") as other, h5py.File(path, "r+") as file:
        other["x"] = file["traj_0/obs"][:]
        del file["traj_0/obs"]
        file["traj_0/obs"] = h5py.ExternalLink("other.h5", "x")
    with open_episodes(path) as episodes:
        assert episodes.trajectory("traj_0")["obs/flat"].shape == (7, 5)
        assert {other.name for _, other in episodes.external} == {"other.h5"}
