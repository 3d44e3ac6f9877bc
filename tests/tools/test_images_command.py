"""``offrl images``: what is observed in recorded states; the same by any number of processes, and
after any kill."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import programs
import pytest
from conftest import ROOT

from offrl.__main__ import main
from offrl.data.formats.hdf5 import DemoFile
from offrl.data.validation import Validation
from offrl.envs.rendering import working_backend

pytestmark = pytest.mark.slow  # a real simulator
LIFT = ROOT / "datasets/lift/low_dim.hdf5"
needs_camera = pytest.mark.skipif(working_backend() is None, reason="no rendering back end")
CAMERAS = ["--cameras", "agentview", "robot0_eye_in_hand", "--size", "24", "16x40"]
ALL = [*CAMERAS, "--depth", "--segmentation", "instance", "--shaped", "--done", "both"]


def images(output, *options, dataset=LIFT, n=2):
    where = ["--dataset", str(dataset), "--output", str(output), "--n", str(n)]
    return ["images", *where, "--workers", "1", *options]


def contents(path):
    """All that a file holds, but how it came about."""
    with DemoFile(path) as file:
        masks = {key: file.mask(key) for key in file.filter_keys()}
        return {demo: file.trajectory(demo) for demo in file.demos()}, masks, file.env_args


def assert_same(one, other):
    (demos, *rest), (others, *others_rest) = contents(one), contents(other)
    assert rest == others_rest and demos.keys() == others.keys()
    for demo, arrays in demos.items():
        assert arrays.keys() == others[demo].keys()
        for key, array in arrays.items():
            np.testing.assert_array_equal(array, others[demo][key], err_msg=f"{demo}/{key}")


@pytest.mark.thorough
@needs_camera
def test_one_process_or_two_see_the_same(tmp_path):
    for workers in ("1", "2"):
        options = [*ALL, "--next-obs", "--workers", workers]
        assert main(images(tmp_path / f"{workers}.hdf5", *options, n=3)) == 0
    assert_same(tmp_path / "1.hdf5", tmp_path / "2.hdf5")
    assert not Validation(tmp_path / "1.hdf5").wrong
    demos, _, env_args = contents(tmp_path / "1.hdf5")
    with DemoFile(LIFT) as file:
        recorded = file.trajectory("demo_0")
    demo, length = demos["demo_0"], len(recorded["actions"])
    for group in ("obs", "next_obs"):
        assert demo[f"{group}/agentview_image"].shape == (length, 24, 24, 3)
        assert demo[f"{group}/robot0_eye_in_hand_depth"].shape == (length, 16, 40, 1)
        kinds = demo[f"{group}/agentview_segmentation_instance"]
        assert kinds.dtype == np.int32 and len(np.unique(kinds)) > 2
    for key in ("object", "agentview_image"):
        np.testing.assert_array_equal(demo[f"obs/{key}"][1:], demo[f"next_obs/{key}"][:-1])
        assert (demo[f"obs/{key}"][-1] != demo[f"next_obs/{key}"][-1]).any()
    for key, array in recorded.items():
        if key not in ("rewards", "dones"):
            np.testing.assert_array_equal(demo[key], array)
    assert 0 < demo["rewards"][0] < demo["rewards"][-2] < demo["rewards"][-1] == 1
    assert demo["dones"].tolist() == [0] * (length - 1) + [1]
    assert env_args["env_kwargs"]["reward_shaping"] is True
    assert env_args["env_kwargs"]["camera_widths"] == [24, 40]


@pytest.mark.thorough
@needs_camera
def test_a_killed_command_goes_on_and_ends_as_if_it_had_not_been(tmp_path, capsys):
    """Killed twice; other options meanwhile are refused."""
    monitored = {name: tmp_path / name / "seen.hdf5" for name in ("whole", "killed")}
    for path in monitored.values():
        path.parent.mkdir()
    program = [sys.executable, "-m", "offrl"]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}

    def start(name):
        command = [*program, *images("seen.hdf5", *CAMERAS, n=5)]
        folder = monitored[name].parent
        return programs.Popen(command, cwd=folder, env=environ, stderr=subprocess.PIPE)

    assert start("whole").wait() == 0
    partial = monitored["killed"].with_name("seen.partial.hdf5")
    for at_least in (1, 3):
        process = start("killed")
        while not partial.exists() or num_demos(partial) < at_least:
            time.sleep(0.02)
            assert process.poll() is None, process.stderr.read()
        process.kill()
        assert process.wait() == -signal.SIGKILL and not monitored["killed"].exists()
    before = num_demos(partial)
    assert 3 <= before < 5
    assert main(images(monitored["killed"], n=5)) == 1
    assert "was cut off in another recording" in capsys.readouterr().err
    process = start("killed")
    _, said = process.communicate()
    assert process.returncode == 0 and re.search(rb"warning|Traceback", said) is None
    assert_same(*monitored.values())
    assert monitored["whole"].parent.joinpath("seen.hdf5").exists() and not partial.exists()


def num_demos(path):
    try:
        with h5py.File(path, locking=False) as file:
            return len(file.get("data", ()))
    except Exception:  # it is being written
        return 0


@pytest.mark.thorough
@needs_camera
@pytest.mark.parametrize("compression", ["png", "jpeg", "gzip"])
def test_images_are_compressed_on_demand(tmp_path, compression):
    plain, small = tmp_path / "plain.hdf5", tmp_path / "small.hdf5"
    options = ["--cameras", "agentview", "--size", "48"]
    assert main(images(plain, *options, n=1)) == 0
    assert main(images(small, *options, "--compression", compression, n=1)) == 0
    one, other = (contents(p)[0]["demo_0"]["obs/agentview_image"] for p in (plain, small))
    largest = np.abs(one.astype(int) - other).max()
    assert largest < 60 and np.abs(one.astype(int) - other).mean() < 3
    assert (largest == 0) == (compression != "jpeg")
    assert small.stat().st_size < 0.8 * plain.stat().st_size
    assert not Validation(small).wrong


def test_without_cameras_it_needs_no_rendering_and_fills_in_what_is_missing(tmp_path):
    bare, path = tmp_path / "bare.hdf5", tmp_path / "full.hdf5"
    with h5py.File(LIFT) as lift, h5py.File(bare, "w") as file:
        lift.copy("data/demo_3", file, "data/demo_7")
        file["data"].attrs["env_args"] = lift["data"].attrs["env_args"]
        for key in ("obs/object", "rewards", "dones"):
            del file[f"data/demo_7/{key}"]
    environ = os.environ | {"MUJOCO_GL": "disabled"}
    command = [sys.executable, "-m", "offrl", *images(path, "--cameras", dataset=bare)]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with DemoFile(LIFT) as file:
        recorded = file.trajectory("demo_3")
    demos, masks, env_args = contents(path)
    seen = demos["demo_0"]
    assert seen.pop("source") == "bare.hdf5/demo_7" and seen.keys() == recorded.keys()
    assert masks == {"train": ["demo_0"]} and not env_args["env_kwargs"]["use_camera_obs"]
    # What a control step observes is sampled within it; a state is looked at afterwards.
    np.testing.assert_allclose(seen["obs/object"], recorded["obs/object"], atol=5e-3)
    for key in ("rewards", "dones"):
        np.testing.assert_array_equal(seen[key], recorded[key])
    with h5py.File(path) as file:
        (source,) = json.loads(file["data"].attrs["provenance"])["inputs"]
        assert source["file"] == "bare.hdf5"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--cameras", "ceiling"], "ceiling"),
        pytest.param(
            *(["--size", "24", "24", "24"], "--size: 3 sizes for 1 cameras"),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            *(["--filter-key", "nope"], "no filter key 'nope'"), marks=pytest.mark.thorough
        ),
    ],
)
@needs_camera
def test_what_cannot_be_done_is_said_and_nothing_left(tmp_path, capsys, options, words):
    assert main(images(tmp_path / "x.hdf5", *options, n=1)) == 1
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said and list(tmp_path.iterdir()) == []


@pytest.mark.thorough
@needs_camera
def test_states_that_were_not_recorded_are_missed(tmp_path, capsys):
    bare = tmp_path / "bare.hdf5"
    with h5py.File(LIFT) as lift, h5py.File(bare, "w") as file:
        lift.copy("data/demo_3", file, "data/demo_0")
        file["data"].attrs["env_args"] = lift["data"].attrs["env_args"]
        del file["data/demo_0/states"]
    assert main(images(tmp_path / "x.hdf5", dataset=bare)) == 1
    said = capsys.readouterr().err
    assert "data/demo_0 cannot be played back: it lacks states" in said
    assert [path.name for path in tmp_path.iterdir()] == ["bare.hdf5"]


@pytest.mark.thorough
def test_what_is_wrong_with_the_data_leaves_nothing(tmp_path, capsys):
    """Masks are looked at before hours of rendering."""
    wrong = tmp_path / "wrong.hdf5"
    for change in ("mask", "actions", "nan"):
        with h5py.File(LIFT) as lift, h5py.File(wrong, "w") as file:
            file.create_group("data").attrs["env_args"] = lift["data"].attrs["env_args"]
            for demo in ("demo_0", "demo_1"):
                lift.copy(f"data/{demo}", file["data"])
            if change == "mask":
                file["mask/train"] = np.array(["demo_0", "demo_99"], dtype="S")
            elif change == "actions":
                del file["data/demo_1/actions"]
            else:
                file["data/demo_1/actions"][0, 0] = np.nan
        assert main(images(tmp_path / "x.hdf5", "--cameras", dataset=wrong)) == 1
        said = capsys.readouterr().err
        assert {"mask": "demo_99", "actions": "has no actions", "nan": "NaN"}[change] in said
        assert "Traceback" not in said and [x.name for x in tmp_path.iterdir()] == ["wrong.hdf5"]
