"""Damaged and odd data in the layouts of other projects: a line each that says what is wrong."""

import json
import shutil

import h5py
import numpy as np
import pytest
from layouts import write_aloha, write_maniskill

from offrl.__main__ import main
from offrl.data.sequence import SequenceDataset


def change_h5(change, name="episode_1.hdf5"):
    def edit(path):
        with h5py.File(path / name if path.is_dir() else path, "r+") as file:
            change(file)

    return edit


def replace(file, key, change):
    rows = file[key][:]
    del file[key]
    file[key] = change(rows)


def cut(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def link_out(path):
    outside = path.parents[1] / "outside"
    path.rename(outside)
    path.symlink_to(outside)


def huge(file, key, shape, **options):
    del file[key]
    file.create_dataset(key, shape, "f4", chunks=(1, *shape[1:]), **options)


def zero_end_of_image(file):
    packed = file["observations/images/cam_high"]
    row = packed[3]
    end = np.flatnonzero(row)[-1] // 2
    packed[3, end:] = 0


ALOHA = [
    (change_h5(lambda f: f.pop("action")), ["episode_1", "has no 'actions'"]),
    (change_h5(lambda f: f.pop("observations/qpos")), ["episode_1", "qpos"]),
    (
        change_h5(lambda f: replace(f, "observations/qpos", lambda x: x[:-1])),
        ["episode_1/obs/qpos"],
    ),
    (
        change_h5(lambda f: replace(f, "observations/images/cam_high", lambda x: x[:-1])),
        ["episode_1/obs/cam_high_image", "8", "9"],
    ),
    (
        change_h5(lambda f: replace(f, "observations/qpos", lambda x: x[:, :3])),
        ["episode_1/obs/qpos", "[3]"],
    ),
    (change_h5(lambda f: replace(f, "observations/qpos", lambda x: x * np.nan)), ["NaN"]),
    (change_h5(lambda f: replace(f, "action", lambda x: x[:0])), ["episode_1", "no steps"]),
    (lambda p: cut(p / "episode_1.hdf5"), ["episode_1.hdf5", "copy it again"]),
    (lambda p: (p / "episode_1.hdf5").write_bytes(b""), ["episode_1.hdf5", "not a readable HDF5"]),
    (lambda p: shutil.copy(p / "episode_1.hdf5", p / "episode_01.hdf5"), ["have one number"]),
    (lambda p: shutil.copy(p / "episode_1.hdf5", p / "episode_x.hdf5"), ["episode_x.hdf5 is no"]),
    (lambda p: shutil.copy(p / "episode_1.hdf5", p / "demo.hdf5"), ["demo.hdf5 is no episode_N"]),
    (lambda p: link_out(p / "episode_1.hdf5"), ["episode_1.hdf5", "--follow-links"]),
    (
        change_h5(lambda f: huge(f, "observations/qpos", (10**12, 14))),
        ["episode_1.hdf5: observations/qpos", "not all of it was ever written"],
    ),
]
PACKED = [
    (change_h5(zero_end_of_image), ["cam_high", "step 3"]),
    (
        change_h5(lambda f: f["observations/images/cam_high"].__setitem__(2, 0)),
        ["cam_high", "step 2"],
    ),
]


def change_json(change):
    def edit(path):
        path = path.with_suffix(".json")
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return edit


MANISKILL = [
    (change_h5(lambda f: f.pop("traj_1/actions")), ["traj_1", "actions"]),
    (change_h5(lambda f: f.pop("traj_1/obs/agent/qpos")), ["traj_1", "qpos"]),
    (
        change_h5(lambda f: replace(f, "traj_1/obs/agent/qpos", lambda x: x[:-1])),
        ["traj_1", "8 steps"],
    ),
    (
        change_h5(lambda f: replace(f, "traj_1/actions", lambda x: x[:-1])),
        ["traj_1", "9", "elapsed"],
    ),
    (change_h5(lambda f: f.move("traj_1", "traj_x")), ["traj_x is no traj_N"]),
    (change_h5(lambda f: f.copy("traj_1", "traj_01")), ["have one number"]),
    (change_h5(lambda f: f.__setitem__("other", 1.0)), ["other is no traj_N"]),
    (change_h5(lambda f: f.pop("traj_1")), ["has no episode 1, but trajectory.json has"]),
    (change_json(lambda x: x["episodes"].pop(1)), ["trajectory.json", "has no episode 1, but"]),
    (change_json(lambda x: x["episodes"].append(x["episodes"][0])), ["two episodes 0"]),
    (change_json(lambda x: x.pop("episodes")), ["trajectory.json", "episodes"]),
    (lambda p: cut(p.with_suffix(".json")), ["trajectory.json", "cannot be read"]),
    (cut, ["trajectory.h5", "copy it again"]),
    (
        lambda p: link_out(p.with_suffix(".json")),
        ["trajectory.json", "--follow-links"],
    ),
    (
        change_h5(lambda f: f["traj_1"].__setitem__("obs/x", h5py.ExternalLink("/etc/hosts", "/"))),
        ["traj_1/obs/x", "--follow-links"],
    ),
]
TABLE = [
    *(("ALOHA", *line) for line in ALOHA),
    *(("packed", *line) for line in PACKED),
    *(("ManiSkill", *line) for line in MANISKILL),
]


def written(layout, folder):
    """Write data in a layout; return its path, and a vector and a camera in it."""
    if layout == "ManiSkill":
        path = folder / "trajectory.h5"
        write_maniskill(path)
        return path, ["agent_qpos", "base_camera_image"]
    path = folder / "episodes"
    write_aloha(path, packed=layout == "packed")
    return path, ["qpos", "cam_high_image"]


@pytest.mark.parametrize(("layout", "damage", "words"), TABLE)
def test_what_is_wrong_is_said_in_a_line_with_its_place(layout, damage, words, tmp_path, capsys):
    (tmp_path / "data").mkdir()
    path, keys = written(layout, tmp_path / "data")
    damage(path)
    assert main(["validate", str(path)]) == 1
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("wrong: ")]
    for word in [str(tmp_path), *words]:
        assert any(word in line for line in lines), lines
    for mode in ("all", None):
        options = {"hdf5_cache_mode": mode, "dataset_keys": ["actions"], "load_next_obs": False}
        with pytest.raises((ValueError, OSError)) as raised:
            data = SequenceDataset(str(path), keys, **options)
            data.get_batch(np.arange(len(data)))
        assert str(tmp_path) in str(raised.value)
        assert "\n" not in str(raised.value)
