"""Arrays that are larger than what is free are refused before they are read, and large ones are
looked at in pieces."""

import json
import os
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import programs
import pytest
from conftest import write_demos
from conversions import write_source
from test_elsewhere import READERS, load

from offrl.__main__ import main
from offrl.checkpoint import read_checkpoint
from offrl.data.formats import lerobot_index
from offrl.data.formats.files import open_demos, open_episodes
from offrl.data.info import DataInfo
from offrl.data.validation import Validation
from offrl.memory import GROUP_FILES, GROUPS

pytestmark = pytest.mark.slow

LARGE = 2**22  # rows of eight bytes; packed they take 32 kB


def packed(file, key, shape, kind="f4"):
    if key in file:
        file.pop(key)
    file.create_dataset(key, data=np.zeros(shape, kind), compression="gzip")


def many_rows(file):
    packed(file, "data/demo_1/obs/speed", (7, LARGE // 4))


def large_chunk(file):
    rows = file.pop("data/demo_1/obs/speed")[()]
    options = {"maxshape": (None, 2), "chunks": (LARGE, 2), "compression": "gzip"}
    file.create_dataset("data/demo_1/obs/speed", data=rows, **options)


def frames(file):
    packed(file, "data/demo_1/obs/speed", (7, 40), "u1")
    file["data/demo_1/obs/speed"].attrs.update(frames="png", frame_shape=(4000, 4000, 3))


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    return write_demos(tmp_path / "folder/demos.hdf5")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("change", "key"),
    [(many_rows, "speed"), (lambda f: packed(f, "mask/train", LARGE, "S8"), "mask/train")],
)
def test_what_does_not_fit_is_refused_by_every_command(
    change, key, reader, place, monkeypatch, capsys
):
    with h5py.File(place, "r+") as file:
        change(file)
    monkeypatch.setattr("offrl.memory.free_memory", lambda: 2**20)
    if reader in ("split", "convert") and change is many_rows:
        return  # they copy arrays as they are stored
    assert main(READERS[reader]) == 1
    said = "".join(capsys.readouterr())
    assert key in said and "1.05 MB are free" in said, said
    assert not (place.parents[1] / "new.hdf5").exists()


@pytest.mark.parametrize("change", [many_rows, large_chunk, frames])
def test_a_training_does_not_begin(change, place, monkeypatch):
    with h5py.File(place, "r+") as file:
        for demo in ("demo_0", "demo_2"):
            file.pop(f"data/{demo}")
        file.pop("mask")
        file["mask/train"] = np.array(["demo_1"], "S")
        change(file)
    monkeypatch.setattr("offrl.memory.free_memory", lambda: 2**20)
    with pytest.raises(ValueError, match=r"speed.* of memory, but 1.05 MB are free"):
        load()


def test_d4rls_files_are_measured_too(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "d4rl.hdf5", "w") as file:
        packed(file, "observations", (8, LARGE // 4))
        file["actions"] = np.zeros((8, 2))
        file["rewards"] = file["timeouts"] = np.zeros(8)
        file["terminals"] = np.eye(8)[-1]
    monkeypatch.setattr("offrl.memory.free_memory", lambda: 2**20)
    with pytest.raises(ValueError, match=r"observations takes .* of memory"):
        open_demos(tmp_path / "d4rl.hdf5")


def test_minaris_folders_are_measured_too(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    from gymnasium.spaces import Box

    buffer = minari.data_collector.EpisodeBuffer(
        observations=np.zeros((9, LARGE // 8), np.float32),
        actions=np.zeros((8, 1), np.float32),
        rewards=np.zeros(8),
        terminations=np.zeros(8, bool),
        truncations=np.eye(8)[-1].astype(bool),
    )
    space = Box(-1, 1, (LARGE // 8,), np.float32)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    minari.create_dataset_from_buffers(
        "large-v0", [buffer], observation_space=space, action_space=Box(-1, 1, (1,), np.float32)
    )
    monkeypatch.setattr("offrl.memory.free_memory", lambda: 2**20)
    for read in (open_demos, DataInfo):
        with pytest.raises(ValueError, match=r"large-v0: .*episode.* of memory"):
            read(tmp_path / "large-v0")


def test_pieces_are_looked_at_as_the_whole_is(place, monkeypatch):
    with h5py.File(place, "r+") as file:
        demo = file["data/demo_1"]
        rows = demo["obs/speed"][()]
        demo.pop("obs/speed")
        demo.create_dataset("obs/speed", data=rows, chunks=(2, 1), fletcher32=True)
        demo["obs/speed"][5, 0] = 7.5
    before = DataInfo(place).facts(), Validation(place)
    monkeypatch.setattr("offrl.data.storage.PIECE_BYTES", 48)
    after = DataInfo(place).facts(), Validation(place)
    for facts in (before[0], after[0]):
        facts.pop("unusual")  # of demonstrations as a whole
    assert json.dumps(before[0]["keys"]) == json.dumps(after[0]["keys"])
    assert before[1].counts == after[1].counts and not after[1].wrong
    with h5py.File(place, "r+") as file:
        file["data/demo_1/obs/speed"][6, 1] = np.nan
    (wrong,) = Validation(place).wrong
    assert "demo_1/obs/speed holds NaN or infinity at step 6" in wrong


def test_lerobots_tables_and_films_are_measured_too(tmp_path, monkeypatch):
    source = write_source(tmp_path / "source.hdf5")
    words = ["convert", str(source), str(tmp_path / "lift"), "--to", "lerobot", "--workers", "1"]
    assert main(words) == 0
    with open_episodes(tmp_path / "lift") as episodes:
        monkeypatch.setattr("offrl.memory.SMALL", 0)
        monkeypatch.setattr("offrl.memory.free_memory", lambda: 2)
        with pytest.raises(ValueError, match=r"info.json.* of memory"):
            open_episodes(tmp_path / "lift")
        with pytest.raises(ValueError, match=r"file-000.parquet.* of memory"):
            episodes.trajectory("demo_0")
        monkeypatch.setattr(lerobot_index, "check_memory", lambda *_: None)
        with pytest.raises(ValueError, match=r"demo_0 takes .* of memory"):
            episodes.trajectory("demo_0")
        with pytest.raises(ValueError, match=r"file-000.mp4.* of memory"):
            episodes.array("demo_0", "obs/agentview_image").rows(0, 1)


def test_checkpoints_are_measured_too(tmp_path, monkeypatch):
    path = tmp_path / "packed.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("packed/data/0", bytes(LARGE * 8))
    monkeypatch.setattr("offrl.checkpoint.free_memory", lambda: 2**20)
    monkeypatch.setattr("offrl.memory.free_memory", lambda: 2**20)
    with pytest.raises(ValueError, match=r"packed.pth takes 33.6 MB of memory"):
        read_checkpoint(path)


@pytest.fixture
def small_group():
    """A control group below this process's own, with a limit of 512 MB; only root can make one."""
    lines = Path("/proc/self/cgroup").read_text().splitlines() if sys.platform == "linux" else []
    for number, controllers, name in (line.split(":", 2) for line in lines):
        folder, limit, *_ = GROUP_FILES["2" if number == "0" else "1"]
        group = GROUPS / folder / name.strip("/") / f"offrl_test_{os.getpid()}"
        if number == "0" or "memory" in controllers.split(","):
            with suppress(OSError):
                group.mkdir()
                try:
                    (group / limit).write_text(str(2**29))
                    yield group
                    return
                finally:
                    group.rmdir()
    pytest.skip("no control group can be made here")


def test_the_limit_of_a_control_group_counts(small_group):
    script = (
        "import os, sys\n"
        "from offrl.memory import free_memory\n"
        f"open({str(small_group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
        "first = free_memory()\n"
        "taken = bytearray(2**27)\n"
        "taken[::4096] = bytes(2**15)\n"
        "print(first, free_memory())\n"
    )
    done = programs.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    first, later = map(float, done.stdout.split())
    assert 2**28 < first <= 2**29
    assert 0.9 * 2**27 < first - later < 1.2 * 2**27
