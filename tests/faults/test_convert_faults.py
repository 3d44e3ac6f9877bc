"""Conversions that a full disk, a signal or a kill cuts short, and how much memory they take."""

import json
import os
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import programs
import pytest
from test_outputs import mounted, needs_root, one_error

from offrl.__main__ import main

ENV_ARGS = {"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20}}
FORMATS = ["robomimic", "d4rl", "minari", "lerobot", "lerobot-v2.1"]


def write_source(path, num_demos=30, length=40, width=32, images=None):
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for i in range(num_demos):
            demo = file.create_group(f"data/demo_{i}")
            demo["actions"] = rng.random((length, 4), np.float32)
            demo["obs/flat"] = rng.random((length, width), np.float32)
            demo["rewards"], demo["dones"] = np.zeros(length), np.eye(length)[-1]
            if images:
                shape = (length, images, images, 3)
                demo["obs/view_image"] = rng.integers(0, 255, shape, dtype=np.uint8)
        file["data"].attrs["env_args"] = json.dumps(ENV_ARGS)
    return path


@pytest.mark.slow
@needs_root
@pytest.mark.parametrize("to", FORMATS)
def test_a_disk_that_is_full_half_way_is_said_and_left_clean(to, tmp_path, capsys):
    source = write_source(tmp_path / "source.hdf5", 200, images=32 if "lerobot" in to else None)
    with mounted(tmp_path / "disk", "-o", "size=600k") as disk:
        options = ["--workers", "1", "--to", to]
        assert main(["convert", str(source), str(disk / "out-v0"), *options]) == 1
        error, _ = one_error(capsys)
        assert f"{disk}/out-v0" in error and "disk full" in error
        assert list(disk.iterdir()) == []


def begun(folder, command):
    """A conversion that is at it: its partial output is there, and more than nothing."""
    process = programs.Popen(command, stderr=subprocess.PIPE, text=True)
    while process.poll() is None:
        inside = [p for p in folder.rglob("*partial*") if p.is_dir() or p.stat().st_size > 10_000]
        if any(p.is_file() or any(q.is_file() for q in p.rglob("*")) for p in inside):
            return process
        time.sleep(0.02)
    raise AssertionError(f"it ended first: {process.stderr.read()}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "to"),
    [
        (signal.SIGTERM, "minari"),
        pytest.param(signal.SIGTERM, "lerobot", marks=pytest.mark.thorough),
        (signal.SIGKILL, "lerobot"),
    ],
)
def test_what_is_stopped_leaves_no_half_output(number, to, tmp_path):
    source = write_source(tmp_path / "source.hdf5", 300, 60, images=32)
    (tmp_path / "folder").mkdir()
    output = tmp_path / "folder/out-v0"
    command = [sys.executable, "-m", "offrl", "convert", str(source), str(output), "--to", to]
    with begun(tmp_path / "folder", command) as process:
        process.send_signal(number)
        _, said = process.communicate()
    left = [path.name for path in (tmp_path / "folder").iterdir()]
    assert "Traceback" not in said and not output.exists()
    if number == signal.SIGTERM:
        assert process.returncode == 128 + signal.SIGTERM and left == []
    else:  # nobody could tidy up: what is left is hidden, and in nobody's way
        assert all(name.startswith(".out-v0.") and name.endswith(".partial") for name in left)
        with h5py.File(source, "a") as file:
            for i in range(3, 300):
                del file[f"data/demo_{i}"]
        assert programs.run(command, check=False).returncode == 0 and output.is_dir()


# Not of getrusage, which knows the peak of the process that forked.
PEAK = """
import sys
from offrl.__main__ import main
assert main(sys.argv[1:]) == 0
print(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
"""


def peak(*words):
    """The most memory (MB) that a command of its own process ever had."""
    command = [sys.executable, "-c", PEAK, *map(str, words)]
    done = programs.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout.split()[-1]) / 1024


@pytest.mark.thorough
@pytest.mark.parametrize("to", ["d4rl", "minari", "lerobot"])
def test_memory_is_that_of_an_episode(to, tmp_path):
    peaks = {}
    for num_demos in (4, 32):  # of 2 MB each
        source = write_source(tmp_path / f"{num_demos}.hdf5", num_demos, 500, 1000)
        there = tmp_path / f"{num_demos}-v0"
        peaks[num_demos] = [
            peak("convert", source, there, "--to", to),
            peak("convert", there, tmp_path / f"{num_demos}_back.hdf5", "--to", "robomimic"),
        ]
        os.remove(tmp_path / f"{num_demos}_back.hdf5")
    for few, many in zip(*peaks.values(), strict=True):
        assert many - few < 30, peaks  # of 56 MB more data
