"""Recordings that go on after they were cut off, copies of what is stored, what leaves nothing."""

import json

import h5py
import numpy as np
import pytest
from conftest import write_demos

from offrl import DemoWriter
from offrl.data.formats.hdf5 import DemoFile
from offrl.data.validation import Validation

ENV_ARGS = {"env_name": "Lift", "type": 1, "env_kwargs": {}}


def episode(value, steps=4):
    return {"actions": np.full((steps, 2), value), "obs/position": np.full((steps, 3), value)}


def cut_off(path, values, **options):
    with pytest.raises(KeyboardInterrupt), DemoWriter(path, ENV_ARGS, **options) as writer:
        for value in values:
            writer.write(episode(value))
        raise KeyboardInterrupt


def test_a_recording_goes_on_where_it_was_cut_off(tmp_path):
    path = tmp_path / "own.hdf5"
    for values in ([0.0, 0.1], [0.2]):
        cut_off(path, values, resume=True)
        assert not path.exists()
    with DemoWriter(path, ENV_ARGS, resume=True) as writer:
        assert writer.num_demos == 3
        with pytest.raises(ValueError, match=r"demo_3/obs/position .* \[7\]"):
            writer.write(episode(0.3) | {"obs/position": np.zeros((4, 7))})
        assert writer.write(episode(0.3, steps=6)) == "demo_3"
        writer.write_split()
    with DemoFile(path) as file:
        values = [file.trajectory(demo)["actions"][0, 0] for demo in file.demos()]
        np.testing.assert_allclose(values, [0.0, 0.1, 0.2, 0.3], atol=1e-7)
        assert file.env_args == ENV_ARGS
    with h5py.File(path) as file:
        assert file["data"].attrs["total"] == 18
    assert not Validation(path).wrong and [p.name for p in tmp_path.iterdir()] == ["own.hdf5"]


def test_another_recording_is_not_gone_on_with(tmp_path):
    path = tmp_path / "own.hdf5"
    cut_off(path, [0.0], provenance={"command": "offrl images --n 1"})
    partial = tmp_path / "own.partial.hdf5"
    before = partial.read_bytes()
    for env_args, notes in ((ENV_ARGS, None), (None, {"command": "offrl images --n 2"})):
        with pytest.raises(ValueError, match="own.partial.hdf5"):
            DemoWriter(path, env_args, provenance=notes, resume=True)
    partial.write_bytes(before[: len(before) // 2])
    with pytest.raises(ValueError, match="own.partial.hdf5"):
        DemoWriter(path, ENV_ARGS, resume=True)


def test_with_nothing_to_go_on_with_a_recording_begins(tmp_path):
    with DemoWriter(tmp_path / "own.hdf5", resume=True) as writer:
        writer.write(episode(0.5))
    with pytest.raises(FileExistsError):
        DemoWriter(tmp_path / "own.hdf5", resume=True)


def test_what_need_not_last_leaves_nothing_when_it_is_cut_off(tmp_path):
    cut_off(tmp_path / "own.hdf5", [0.0, 0.1], durable=False)
    assert list(tmp_path.iterdir()) == []
    with DemoWriter(tmp_path / "own.hdf5", durable=False) as writer:
        writer.write(episode(0.0))
        writer.write_mask("all", ["demo_0"])
    assert not Validation(tmp_path / "own.hdf5").wrong


def test_stored_arrays_are_copied_as_they_are(tmp_path):
    """With their type, chunks and compression; attributes and their sums with them."""
    source = write_demos(tmp_path / "source.hdf5")
    with h5py.File(source, "r+") as file:
        images = np.zeros((5, 8, 8, 3), np.uint8)
        file["data/demo_0"].create_dataset("obs/image", data=images, compression="gzip")
        file["data/demo_0"].attrs["model_file"] = "<mujoco/>"
        file["data/demo_0/obs/link"] = h5py.SoftLink("/data/demo_0/obs/position")
    with DemoFile(source) as file, DemoWriter(tmp_path / "copy.hdf5", durable=False) as writer:
        writer.write(file.stored("demo_0"), source="demo_0")
    with h5py.File(source) as one, h5py.File(tmp_path / "copy.hdf5") as other:
        demo, copy = one["data/demo_0"], other["data/demo_0"]
        assert copy["obs/image"].compression == "gzip" and copy["actions"].dtype == np.float64
        for key in ("obs/image", "obs/position", "obs/link", "actions", "rewards", "dones"):
            np.testing.assert_array_equal(demo[key][()], copy[key][()])
        assert (copy.attrs["model_file"], copy.attrs["source"]) == ("<mujoco/>", "demo_0")
    assert not Validation(tmp_path / "copy.hdf5").wrong


def test_provenance_is_in_the_file(tmp_path):
    with DemoWriter(tmp_path / "own.hdf5", provenance={"command": "by hand"}) as writer:
        writer.write(episode(0.0))
    with h5py.File(tmp_path / "own.hdf5") as file:
        assert json.loads(file["data"].attrs["provenance"]) == {"command": "by hand"}
    with pytest.raises(ValueError, match="compression .*'zip'"):
        DemoWriter(tmp_path / "other.hdf5", compression="zip")
