"""Recordings: refused input, killed processes, full disks; a finished episode is never lost."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import programs
import pytest
from conftest import ROOT

from offrl import DemoWriter
from offrl.__main__ import main
from offrl.data.sequence import SequenceDataset
from offrl.data.validation import Validation

RECORD = """
import sys
import numpy as np
from offrl import DemoWriter

rng = np.random.default_rng(0)
with DemoWriter(sys.argv[1], {"env_name": "Lift"}) as writer:
    while True:
        steps = int(rng.integers(20, 60))
        episode = {f"obs/key{i}": rng.standard_normal((steps, 9)) for i in range(8)}
        episode["actions"] = rng.standard_normal((steps, 7))
        writer.write(episode, model_file="x" * 9999)
        print(writer.num_demos, flush=True)
"""


def episode(steps=5, **changes):
    return {"actions": np.zeros((steps, 2)), "obs/position": np.ones((steps, 3))} | changes


REFUSED = (
    (episode(**{"actions": [[0.0, 1.0]] * 5}), ["demo_1/actions", "list", "numpy.stack"]),
    (episode(**{"obs/position": None}), ["demo_1/obs/position", "NoneType"]),
    (episode(**{"obs/position": np.full((5, 3), np.nan)}), ["demo_1/obs/position", "NaN"]),
    (episode(**{"actions": np.full((5, 2), 1e300)}), ["demo_1/actions", "float32"]),
    (episode(**{"obs/position": np.ones((4, 3))}), ["demo_1/obs/position", "4 steps", "5"]),
    (episode(**{"obs/position": np.ones((5, 4))}), ["demo_1/obs/position", "[4]", "[3]"]),
    (episode(**{"actions": np.zeros((5, 2), int)}), ["demo_1/actions", "int64", "float32"]),
    (episode(**{"obs/speed": np.ones((5, 1))}), ["demo_1/obs/speed", "none of the episodes"]),
    ({"actions": np.zeros((5, 2))}, ["demo_1/obs/position", "is missing"]),
    (episode(0), ["demo_1/actions", "no steps"]),
    (episode(**{"obs/position/x": np.ones(5)}), ["obs/position cannot be", "rename"]),
    (episode(**{"/data/x": np.ones(5)}), ["demo_1: '/data/x' is no name"]),
    (episode(**{"../x": np.ones(5)}), ["demo_1: '../x' is no name"]),
    (episode(**{"a\0": np.ones(5)}), ["demo_1: 'a\\x00' is no name"]),
    (episode() | {3: np.ones(5)}, ["demo_1: 3 is no name"]),
    (list(episode().items()), ["demo_1 is a list"]),
    (episode(operator="A\0da"), ["demo_1: the attribute 'operator'"]),
    (episode(operator="\ud800"), ["demo_1: the attribute 'operator'"]),
    (episode(**{"obs/position": np.array(["a"] * 5)}), ["demo_1/obs/position", "no numbers"]),
    (episode(**{"actions": np.array(1.0)}), ["demo_1/actions", "no steps"]),
    ({"obs/position": np.ones((5, 3))}, ["demo_1 has no actions"]),
)


def test_what_cannot_be_trained_on_is_refused_and_the_rest_is_kept(tmp_path):
    path = tmp_path / "own.hdf5"
    with DemoWriter(path) as writer:
        writer.write(episode())
        for wrong, words in REFUSED:
            with pytest.raises(ValueError) as error:
                writer.write(wrong)
            for word in [str(path), *words]:
                assert word in str(error.value)
        writer.write(episode(7))
    assert SequenceDataset(path, ["position"], load_next_obs=False).lengths.tolist() == [5, 7]
    assert not Validation(path).wrong


def test_every_array_has_a_checksum_and_images_a_chunk_for_a_few_steps(tmp_path):
    path = tmp_path / "own.hdf5"
    images = np.random.default_rng(0).integers(0, 256, (50, 84, 84, 3), dtype=np.uint8)
    with DemoWriter(path) as writer:
        writer.write(episode(50, **{"obs/image": images}))
        writer.write_split()
    with h5py.File(path) as file:
        demo = file["data/demo_0"]
        assert demo["actions"].chunks == (50, 2) and demo["obs/image"].chunks == (3, 84, 84, 3)
        assert all(x.fletcher32 for x in (demo["actions"], demo["obs/image"], file["mask/train"]))
        np.testing.assert_array_equal(demo["obs/image"], images)
        assert "env_args" not in file["data"].attrs


@pytest.mark.slow
@pytest.mark.parametrize("num_kills", [4, pytest.param(20, marks=pytest.mark.thorough)])
def test_a_recording_that_is_killed_keeps_every_finished_episode(tmp_path, num_kills):
    rng = np.random.default_rng(0)
    for number in range(num_kills):
        path = tmp_path / f"{number}.hdf5"
        command = [sys.executable, "-c", RECORD, str(path)]
        process = programs.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        time.sleep(rng.uniform(0, 0.1))
        process.kill()
        finished = [1, *map(int, re.findall(r"(\d+)\n", process.stdout.read()))][-1]
        assert process.wait() == -signal.SIGKILL and not path.exists()
        found = Validation(tmp_path / f"{number}.partial.hdf5")
        assert not found.wrong
        assert found.counts["demonstrations"] in (finished, finished + 1)


@pytest.mark.slow
def test_a_kill_between_two_writes_finds_both_made(tmp_path, monkeypatch):
    """Every change of what the file refers to is made by a child first, to the same bytes."""
    path, seen, waitpid = tmp_path / "own.partial.hdf5", [], os.waitpid

    def look(*arguments):
        done = waitpid(*arguments)
        assert done[1] == 0
        seen.append(path.read_bytes())
        return done

    monkeypatch.setattr(os, "waitpid", look)
    with DemoWriter(tmp_path / "own.hdf5", {"env_name": "Lift"}) as writer:
        for number in range(10):
            writer.write(episode(20), number=number)
            assert path.read_bytes() == seen[-1]
        writer.write_split()
    assert len(seen) == 13  # the masks and the end, too


@pytest.mark.thorough
def test_a_recording_may_be_long(tmp_path):
    """HDF5 must not look up again what the child of each change has written."""
    keys = {f"obs/key_{i}": np.zeros((5, 4)) for i in range(12)}
    with DemoWriter(tmp_path / "long.hdf5") as writer:
        for i in range(120):
            writer.write({"actions": np.full((5, 7), i), "model_file": "x" * 40_000, **keys})
        writer.write_split()
    with h5py.File(tmp_path / "long.hdf5") as file:
        assert [file[f"data/demo_{i}/actions"][0, 0] for i in range(120)] == list(range(120))
        assert len(file["mask/train"]) == 108 and len(file["mask/valid"]) == 12


def test_an_error_keeps_the_finished_episodes_and_the_next_recording_says_so(tmp_path, caplog):
    path, kept = tmp_path / "own.hdf5", tmp_path / "own.partial.hdf5"
    with pytest.raises(KeyboardInterrupt), DemoWriter(path) as writer:
        writer.write(episode())
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == [kept] and not Validation(kept).wrong
    assert f"its 1 finished demonstrations are in {kept}" in caplog.text
    caplog.clear()
    with DemoWriter(path) as writer:
        writer.write(episode(3))
    assert f"cut off, or is going on, lies in {kept}" in caplog.text
    lengths = [SequenceDataset(x, ["position"], load_next_obs=False).lengths for x in (path, kept)]
    assert [x.tolist() for x in lengths] == [[3], [5]]


def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path, caplog):
    path = tmp_path / "own.hdf5"
    with pytest.raises(FileExistsError), DemoWriter(path) as writer:
        writer.write(episode())
        path.write_text("work of years")
    assert path.read_text() == "work of years" and "own.partial.hdf5" in caplog.text


@contextmanager
def small_disk(folder, size="1m"):
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_what_was_recorded_stays(tmp_path, caplog):
    with small_disk(tmp_path / "disk") as disk:
        (disk / "precious.hdf5").write_text("work of years")
        with pytest.raises(OSError, match="own.hdf5: ") as error:
            with DemoWriter(disk / "own.hdf5") as writer:
                while True:
                    writer.write(episode(5000))
        assert str(disk / "own.hdf5") in str(error.value) and writer.num_demos > 2
        kept = disk / "own.partial.hdf5"
        assert str(kept) in caplog.text
        assert {x.name for x in disk.iterdir()} == {"precious.hdf5", kept.name}
        found = Validation(kept)
        assert not found.wrong and found.counts["demonstrations"] == writer.num_demos
        assert (disk / "precious.hdf5").read_text() == "work of years"


@pytest.mark.slow
def test_of_what_can_be_simulated_again_a_full_disk_keeps_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("offrl.outputs.MARGIN_BYTES", 2**20)  # the disk fills at the third
    options = ["--type", "metaworld", "--env", "reach-v3", "--n", "200", "--workers", "1"]
    with small_disk(tmp_path / "disk", "1100k") as disk:
        (disk / "precious").write_text("work of years")
        assert main(["collect", *options, "--output", str(disk / "own.hdf5")]) == 1
        said = capsys.readouterr().err
        assert f"offrl: error: {disk}/own.hdf5: disk full" in said and "Traceback" not in said
        assert [path.name for path in disk.iterdir()] == ["precious"]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["collect", "images"])
def test_a_place_that_cannot_be_written_is_found_before_the_work(tmp_path, command, capsys):
    options = ["--dataset", "datasets/lift/low_dim.hdf5", "--n", "1"] if command == "images" else []
    with small_disk(tmp_path / "disk", "64k") as disk:
        begin = time.monotonic()
        status = main([command, *options, "--output", str(disk / "own.hdf5")])
        said = capsys.readouterr().err
        if "no rendering back end" in said:
            pytest.skip(said)
        assert status == 1 and f"offrl: error: {disk}/own.hdf5: disk full" in said
        assert list(disk.iterdir()) == [] and time.monotonic() - begin < 20
    (tmp_path / "file").write_text("")
    assert main([command, *options, "--output", str(tmp_path / "file" / "own.hdf5")]) == 1
    assert capsys.readouterr().err.count("offrl: error: ") == 1


@pytest.mark.slow
def test_the_page_s_own_robot_records_what_training_takes(tmp_path, monkeypatch):
    page = (ROOT / "docs/howto/record.md").read_text()
    scripts = re.findall(r"```python\n(.*?)```", page, re.S)
    (script,) = [script for script in scripts if 'DemoWriter("own.hdf5")' in script]
    monkeypatch.chdir(tmp_path)
    exec(script, {})  # noqa: S102 (as a reader of the page would)
    (path,) = Path(tmp_path).glob("*.hdf5")
    assert main(["validate", str(path)]) == 0
    data = SequenceDataset(path, ["joints", "camera_image"], filter_by_attribute="train")
    assert len(data) > 100 and data.ac_dim == 7


def test_an_environment_that_is_no_text_leaves_no_file(tmp_path):
    with pytest.raises(ValueError, match="own.hdf5: env_args .*ndarray"):
        DemoWriter(tmp_path / "own.hdf5", {"env_name": "Lift", "size": np.ones(3)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rewards": np.zeros((5, 3))}, "demo_0/rewards"),
        ({"dones": np.full(5, 7.0)}, "demo_0/dones"),
    ],
)
def test_what_validate_would_refuse_is_not_written(tmp_path, change, words):
    with DemoWriter(tmp_path / "own.hdf5") as writer:
        with pytest.raises(ValueError, match=words):
            writer.write(episode() | change)
        writer.write(episode(), num_samples=99)
        with pytest.raises(ValueError, match="mask/train: .*demo_9"):
            writer.write_mask("train", ["demo_0", "demo_9"])
    with h5py.File(tmp_path / "own.hdf5") as file:
        assert file["data/demo_0"].attrs["num_samples"] == 5
    with pytest.raises(ValueError, match=r"env_args .*\[1\]"):
        DemoWriter(tmp_path / "other.hdf5", [1])


def test_nothing_recorded_is_no_file(tmp_path):
    with pytest.raises(ValueError, match="own.hdf5: "):
        with DemoWriter(tmp_path / "own.hdf5"):
            pass
    assert not list(tmp_path.iterdir())


def test_text_that_changed_is_found(tmp_path):
    path = tmp_path / "own.hdf5"
    with DemoWriter(path, {"env_name": "Lift"}) as writer:
        writer.write(episode() | {"model_file": "<mujoco/>"})
    with h5py.File(path, "r+") as file:
        file["data/demo_0"].attrs["model_file"] = "<mujoko/>"
    (wrong,) = Validation(path).wrong
    assert "the text in the attributes of data/demo_0 is not what was recorded" in wrong
