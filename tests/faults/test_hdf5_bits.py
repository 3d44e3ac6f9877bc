"""Bits that flipped and files that were cut off, at random places: the same data or one clear line,
or changed values where the file has no checksums; never a traceback.

HDF5's library may itself crash on damaged metadata, so files are read in a process of their own.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import programs
import pytest
from conftest import write_demos

from offrl.data.writer import DemoWriter

pytestmark = pytest.mark.slow

READ = """
import json, sys
from test_hdf5_damage import load, outcome
sound = sys.argv[1]
for path in sys.argv[2:]:
    print("begin", path, flush=True)
    print(json.dumps([path, outcome(path, sound)]), flush=True)
"""


def outcomes(sound, paths):
    """What came of each file; of a file that ended the process, ``"crashed"``."""
    found, paths = {}, [str(path) for path in paths]
    while todo := [path for path in paths if path not in found]:
        command = [sys.executable, "-c", READ, str(sound), *todo]
        done = programs.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={"PYTHONPATH": ":".join([*sys.path, str(Path(__file__).parent)])},
        )
        lines = done.stdout.splitlines()
        found |= dict(json.loads(line) for line in lines if line.startswith("["))
        if begun := [line[6:] for line in lines if line.startswith("begin ")]:
            found.setdefault(begun[-1], f"crashed: {done.returncode} {done.stderr[-300:]}")
        else:
            raise AssertionError(done.stderr)
    return found


def kinds(found):
    named = ("unharmed", "silent", "traceback", "unclear", "crashed")
    firsts = (text.split(":")[0] for text in found.values())
    return Counter(first if first in named else "clear" for first in firsts)


@pytest.fixture
def recorded(tmp_path):
    """What ``DemoWriter`` writes of random demonstrations."""
    plain, path = write_demos(tmp_path / "plain.hdf5", lengths=(30, 40, 35)), tmp_path / "own.hdf5"
    with h5py.File(plain) as file, DemoWriter(path, {"env_name": "Lift"}) as writer:
        for demo in file["data"].values():
            keys = ["actions", "rewards", "dones", "obs/position", "obs/speed"]
            writer.write({key: demo[key][()] for key in keys})
        writer.write_mask("train", ["demo_0", "demo_1"])
        writer.write_mask("valid", ["demo_2"])
    return path


def flipped(source, folder, places):
    content = source.read_bytes()
    for i, bit in enumerate(places):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << (bit % 8)
        path = folder / f"flip{i}.hdf5"
        path.write_bytes(changed)
        yield path


def test_a_flipped_bit_in_a_recording_is_never_silent(recorded, tmp_path):
    places = np.random.default_rng(0).integers(0, 8 * recorded.stat().st_size, 150)
    found = outcomes(recorded, flipped(recorded, tmp_path, places))
    counts = kinds(found)
    assert counts.keys() <= {"unharmed", "clear"}, [
        text for text in found.values() if text.startswith(("silent", "trace", "crash", "unclear"))
    ]
    assert counts["clear"] > 50  # most of the file is data


@pytest.mark.thorough
def test_without_checksums_only_values_change_in_silence(tmp_path):
    plain = write_demos(tmp_path / "plain.hdf5", lengths=(30, 40, 35))
    places = np.random.default_rng(1).integers(0, 8 * plain.stat().st_size, 100)
    counts = kinds(outcomes(plain, flipped(plain, tmp_path, places)))
    assert counts.keys() <= {"unharmed", "clear", "silent"}, counts


def test_a_file_that_is_cut_off_is_refused(recorded, tmp_path):
    content, paths = recorded.read_bytes(), []
    for i, size in enumerate(np.random.default_rng(2).integers(0, len(content), 40)):
        paths.append(tmp_path / f"cut{i}.hdf5")
        paths[-1].write_bytes(content[:size])
    counts = kinds(outcomes(recorded, paths))
    assert counts == {"clear": 40}, counts
