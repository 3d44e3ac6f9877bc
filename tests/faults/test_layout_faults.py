"""Damaged and odd data in the layouts of other projects: a line each that says what is wrong."""

import json
import shutil

import h5py
import numpy as np
import pytest
import zarr
from layouts import write_aloha, write_maniskill, write_replay_buffer

from offrl.__main__ import main
from offrl.data.formats.files import open_demos
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
    outside = next(p for p in path.parents if p.name == "recorded").parent / "outside"
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


def change_meta(name, **changes):
    def edit(path):
        place = path / name / ".zarray"
        place.write_text(json.dumps(json.loads(place.read_text()) | changes))

    return edit


def rewrite(name, rows, **options):
    def edit(path):
        shutil.rmtree(path / name)
        zarr.open_group(str(path), "r+").array(name, rows, **options)

    return edit


def change_bytes(name, change):
    def edit(path):
        place = path / name
        place.write_bytes(change(place.read_bytes()))

    return edit


def as_format_3(path):
    for place in path.rglob(".z*"):
        place.rename(place.with_name("zarr.json"))


STATE = np.zeros((24, 5), np.float32)
ZARR = [
    (lambda p: shutil.rmtree(p / "data/action"), ["has no data/action"]),
    (lambda p: shutil.rmtree(p / "data/state"), []),
    (
        rewrite("data/state", STATE[:-1]),
        ["data/state has 23 rows, but the last episode ends at 24"],
    ),
    (rewrite("data/state", STATE * np.nan), ["obs/state holds NaN"]),
    (rewrite("data/action", STATE[:-1]), ["data/action has 23 rows"]),
    (lambda p: (p / "data/state/0.0").unlink(), ["data/state/0.0 is missing"]),
    (change_bytes("data/camera0_rgb/0.0.0.0", lambda x: x[:-9]), ["camera0_rgb/0.0.0.0", "bytes"]),
    (change_bytes("data/camera0_rgb/0.0.0.0", lambda x: b""), ["camera0_rgb/0.0.0.0"]),
    (change_bytes("data/state/0.0", lambda x: b"\2\1\0\4" + bytes(12)), ["data/state/0.0"]),
    (change_bytes("data/state/.zarray", lambda x: x[:40]), ["data/state: .zarray"]),
    (change_bytes("data/state/.zarray", lambda x: x * 10**4), ["data/state/.zarray", "more than"]),
    (change_meta("data/state", shape=[10**15, 5]), ["data/state", "is missing"]),
    (change_meta("data/state", chunks=[10**15, 5]), ["data/state: a chunk", "are free"]),
    (change_meta("data/state", chunks=[24]), ["data/state", "no row for each step"]),
    (change_meta("data/state", chunks=[0, 5]), ["data/state", "no row for each step"]),
    (change_meta("data/state", shape=[24, -5]), ["data/state", "no lengths"]),
    (change_meta("data/state", chunks=[12, 5]), ["data/state/1.0 is missing"]),
    (change_meta("data/state", dtype="|O"), ["data/state", "'|O'"]),
    (change_meta("data/state", dtype="<f8"), ["data/state/0.0", "bytes"]),
    (change_meta("data/state", compressor={"id": "pickle"}), ["data/state", "pickle"]),
    (change_meta("data/state", filters=[{"id": "pickle"}]), ["data/state", "filters", "pickle"]),
    (change_meta("meta/episode_ends", shape=[10**15]), ["meta/episode_ends"]),
    (change_meta("meta/episode_ends", shape=[10**15], chunks=[10**15]), ["meta/episode_ends"]),
    (rewrite("meta/episode_ends", np.array([7, 3, 24])), ["meta/episode_ends", "ascending"]),
    (rewrite("meta/episode_ends", np.array([7, 7, 24])), ["demo_1", "no steps"]),
    (rewrite("meta/episode_ends", np.array([7, 16, 10**15])), ["24 rows", f"ends at {10**15}"]),
    (rewrite("meta/episode_ends", np.array([7.0, 24.0])), ["meta/episode_ends", "is no list"]),
    (lambda p: link_out(p / "data/state/0.0"), ["data/state/0.0", "--follow-links"]),
    (lambda p: link_out(p / "data/state/.zarray"), ["data/state/.zarray", "--follow-links"]),
    (lambda p: shutil.rmtree(p / "meta"), ["has no meta/episode_ends"]),
    (as_format_3, ["zarr's format 3", "zarr_format=2"]),
]
TABLE = [
    *(("ALOHA", *line) for line in ALOHA),
    *(("packed", *line) for line in PACKED),
    *(("ManiSkill", *line) for line in MANISKILL),
    *(("zarr", *line) for line in ZARR),
]


def written(layout, folder):
    """Write data in a layout; return its path, and a vector and a camera in it."""
    if layout == "ManiSkill":
        path = folder / "trajectory.h5"
        write_maniskill(path)
        return path, ["agent_qpos", "base_camera_image"]
    if layout == "zarr":
        path = folder / "replay.zarr"
        write_replay_buffer(path)
        return path, ["state", "camera0_rgb"]
    path = folder / "episodes"
    write_aloha(path, packed=layout == "packed")
    return path, ["qpos", "cam_high_image"]


@pytest.mark.parametrize(("layout", "damage", "words"), TABLE)
def test_what_is_wrong_is_said_in_a_line_with_its_place(layout, damage, words, tmp_path, capsys):
    (tmp_path / "recorded").mkdir()
    path, keys = written(layout, tmp_path / "recorded")
    damage(path)
    assert main(["validate", str(path)]) == int(bool(words))
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("wrong: ")]
    for word in [str(tmp_path), *words] if words else []:
        assert any(word in line for line in lines), lines
    for mode in ("all", None):
        options = {"hdf5_cache_mode": mode, "dataset_keys": ["actions"], "load_next_obs": False}
        with pytest.raises((ValueError, OSError)) as raised:
            data = SequenceDataset(str(path), keys, **options)
            data.get_batch(np.arange(len(data)))
        assert str(tmp_path) in str(raised.value)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("change", [lambda x: x[: len(x) // 2], lambda x: x[:-40], lambda x: b""])
def test_a_zip_file_that_was_cut_off_is_refused(change, tmp_path, capsys):
    path = tmp_path / "replay.zarr.zip"
    write_replay_buffer(path)
    path.write_bytes(change(path.read_bytes()))
    assert main(["info", str(path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"offrl: error: {path}: ")


def test_rows_behind_the_last_episode_are_left_out_with_a_warning(tmp_path, caplog):
    path = tmp_path / "replay.zarr"
    write_replay_buffer(path)
    rewrite("meta/episode_ends", np.array([7, 16]))(path)
    with open_demos(path) as demos:
        assert demos.lengths(demos.demos()).tolist() == [7, 9]
    assert any("those behind it are left out" in line for line in caplog.messages)
