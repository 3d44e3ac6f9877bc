"""The place of data: in memory, in files, with a part in memory, and in a folder of mapped rows.
Batches are the same everywhere. Data that does not fit is refused before it is read."""

import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing import current_process

import h5py
import numpy as np
import programs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offrl import config_factory
from offrl.__main__ import main
from offrl.data import placement
from offrl.data.columns import CachedColumn, FileColumn
from offrl.data.datasets import num_readers, open_data
from offrl.data.loader import BatchLoader
from offrl.data.mapped import mapped_files
from offrl.data.placement import place_keys
from offrl.data.sequence import SequenceDataset
from offrl.data.storage import create
from offrl.tree import leaves

LENGTHS = (9, 12, 8)
IMAGE = (8, 10, 3)
KEYS = ["camera", "speed"]
CASES = {"plain": None, "chunked": "", "png": "png", "jpeg": "jpeg"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    for kind, compression in CASES.items():
        with h5py.File(folder / f"{kind}.hdf5", "w") as file:
            for i, length in enumerate(LENGTHS):
                demo = file.create_group(f"data/demo_{i}")
                demo["actions"], demo["obs/speed"] = rng.random((length, 2)), rng.random(length)
                rough = rng.integers(0, 256, (length, 2, 2, 3), np.uint8)
                smooth = np.kron(rough, np.ones((1, 4, 5, 1), np.uint8))
                if compression is None:
                    demo["obs/camera"] = smooth
                else:
                    create(demo, "obs/camera", smooth, compression or None, chunk_bytes=500)
    return folder


def batches_of(path, num_workers=0, num=9, position=0, **options):
    dataset = SequenceDataset(path, KEYS, **{"dataset_keys": ["actions"], **options})
    loader = BatchLoader(dataset, 4, seed=1, num_workers=num_workers)
    loader.position = position
    return dataset, [leaves(batch) for batch, _ in zip(loader, range(num), strict=False)]


def equal(some, others):
    return all(
        a[key].dtype == b[key].dtype and torch.equal(a[key], b[key])
        for a, b in zip(some, others, strict=True)
        for key in a
    ) and len(some) == len(others)


@given(
    kind=st.sampled_from(sorted(CASES)),
    mode=st.sampled_from(["auto", "low_dim", None]),
    cache=st.floats(1e-9, 1.1 * np.prod((sum(LENGTHS), *IMAGE)) / 1e9),
    seq_length=st.integers(1, 4),
    frame_stack=st.integers(1, 3),
    pads=st.booleans(),
    goal_mode=st.sampled_from([None, "last", "future_uniform", "mixture"]),
)
@settings(max_examples=60, deadline=None)
def test_batches_are_the_same_in_every_mode(files, kind, mode, cache, pads, **window):
    options = {**window, "pad_seq_length": pads, "pad_frame_stack": pads}
    path = files / f"{kind}.hdf5"
    _, expected = batches_of(path, **options)
    _, found = batches_of(path, hdf5_cache_mode=mode, cache_gb=cache, **options)
    assert equal(expected, found)


@pytest.mark.parametrize("kind", sorted(CASES))
def test_readers_and_a_resumption_change_nothing(files, kind):
    path, cache = files / f"{kind}.hdf5", 2e-6
    _, expected = batches_of(path, num=30)
    for num_workers in (1, 3):
        options = {"hdf5_cache_mode": "auto", "cache_gb": cache, "num_workers": num_workers}
        dataset, found = batches_of(path, num=30, **options)
        assert dataset.is_streamed and equal(expected, found)
        _, later = batches_of(path, num=19, position=11, **options)
        assert equal(expected[11:], later)


def test_files_with_different_keys_and_types_are_read_as_in_memory(files, tmp_path):
    rng, paths = np.random.default_rng(0), [tmp_path / "bytes.hdf5", tmp_path / "floats.hdf5"]
    for path, kind in zip(paths, (np.uint8, np.float32), strict=True):
        with h5py.File(path, "w") as file:
            demo = file.create_group("data/demo_0")
            demo["actions"], demo["obs/speed"] = rng.random((9, 2)), rng.random((9, 1))
            demo["obs/camera"] = (255 * rng.random((9, *IMAGE))).astype(kind)
            if kind == np.float32:
                demo["rewards"] = rng.random(9)
    keys = {"dataset_keys": ["actions", "rewards"]}
    for order in (paths, paths[::-1]):
        _, expected = batches_of(order, **keys)
        for place in ({"hdf5_cache_mode": None}, {"cache_dir": str(tmp_path / "cache")}):
            assert equal(expected, batches_of(order, **keys, **place)[1])


def test_what_readers_read_is_there_for_one_another():
    reads = []

    def read(taken, rows, windows):
        reads.extend(rows[windows].reshape(-1))
        taken[windows] = rows[windows, :, None]

    column = CachedColumn(FileColumn(read, (1,), np.float32), 2, 6)
    rows = torch.tensor([[0, 1], [2, 3], [3, 4], [6, 6]])
    child = os.fork()
    if child == 0:
        column.take(rows)
        os._exit(0)
    os.waitpid(child, 0)
    assert torch.equal(column.take(rows)[..., 0], rows.float())
    assert sorted(reads) == [0, 1, 6, 6]
    column.take(torch.tensor([[5, 5]]))
    assert torch.equal(column.take(torch.tensor([[4, 5]])).flatten(), torch.tensor([4.0, 5.0]))
    assert sorted(reads) == [0, 1, 5, 5, 6, 6]


def test_rows_that_the_system_reads_in_parts_are_whole(files, monkeypatch):
    _, expected = batches_of(files / "plain.hdf5", hdf5_cache_mode=None)
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, into, at: read(file, [into[0][:100]], at))
    assert equal(expected, batches_of(files / "plain.hdf5", hdf5_cache_mode=None)[1])


def test_a_process_that_may_have_no_children_reads_itself(monkeypatch):
    train = config_factory("bc", {"train": {"num_data_workers": 2}}).train
    assert num_readers(train) == 2
    monkeypatch.setattr(current_process(), "_config", {"daemon": True})
    assert num_readers(train) == 0


def test_memory_is_used_up_to_the_cache_and_no_further(files):
    rows, row = sum(LENGTHS), int(np.prod(IMAGE))
    for kind in CASES:
        for share in (0.1, 0.5, 0.9):
            cache = share * rows * row / 1e9
            options = {"hdf5_cache_mode": "auto", "cache_gb": cache}
            dataset, _ = batches_of(files / f"{kind}.hdf5", **options)
            others = 4 * rows * 3  # actions, and a vector of one number
            kept = dataset.store.columns["obs/camera"].nbytes
            assert cache * 1e9 - others - row <= kept <= cache * 1e9 - others or (
                kept == 0 and cache * 1e9 < others + row
            )


# -- the folder of mapped rows --------------------------------------------------------------------


def test_mapped_rows_are_those_in_memory_and_are_written_once(files, tmp_path, monkeypatch):
    for kind in CASES:
        path = files / f"{kind}.hdf5"
        _, expected = batches_of(path, frame_stack=2)
        options = {
            "frame_stack": 2,
            "cache_dir": str(tmp_path / "cache"),
            "hdf5_cache_mode": "auto",
        }
        dataset, found = batches_of(path, **options)
        assert not dataset.is_streamed and equal(expected, found)
        dataset.store.columns["obs/camera"].array.zero_()  # changes no file
        with monkeypatch.context() as patched:
            patched.setattr("offrl.data.mapped._write", None)
            _, again = batches_of(path, **options)
        assert equal(expected, again)
    assert all(map(len, mapped_files(tmp_path / "cache").values()))


def test_changed_data_is_not_taken_from_the_folder(files, tmp_path):
    path = tmp_path / "changed.hdf5"
    path.write_bytes((files / "plain.hdf5").read_bytes())
    options = {"cache_dir": str(tmp_path / "cache")}
    batches_of(path, **options)
    with h5py.File(path, "r+") as file:
        file["data/demo_1/obs/camera"][3] = 7
    _, expected = batches_of(path)
    assert equal(expected, batches_of(path, **options)[1])
    _, fewer = batches_of(path, demo_limit=2)
    assert equal(fewer, batches_of(path, demo_limit=2, **options)[1])


def test_data_that_changed_in_another_file_or_between_samples_is_not_taken(tmp_path):
    path, other = tmp_path / "links.hdf5", tmp_path / "images.hdf5"
    images = np.zeros((60, 240, 320, 3), np.uint8)  # of which a fingerprint takes samples
    with h5py.File(other, "w") as file:
        file["linked"], file["part"] = images, images[:, 0]
    layout = h5py.VirtualLayout(images[:, 0].shape, np.uint8)
    layout[:] = h5py.VirtualSource(other, "part", images[:, 0].shape)
    with h5py.File(path, "w") as file:
        demo = file.create_group("data/demo_0")
        demo["actions"] = np.zeros((60, 2))
        demo["obs/linked"] = h5py.ExternalLink(other.name, "linked")
        demo.create_virtual_dataset("obs/virtual", layout)

    def images_of(key):
        dataset = SequenceDataset(path, [key], dataset_keys=[], cache_dir=str(tmp_path / "cache"))
        return dataset.store.values(f"obs/{key}").numpy()

    for key, name in (("linked", "linked"), ("virtual", "part")):
        assert not images_of(key).any()
        with h5py.File(other, "r+") as file:
            file[name][30, 0, 0] = 7
        assert images_of(key).max() == 7


def test_links_in_the_folder_are_not_followed(files, tmp_path):
    path, folder = files / "plain.hdf5", tmp_path / "cache"
    _, expected = batches_of(path, cache_dir=str(folder))
    ((lock, [rows]),) = mapped_files(folder).items()
    mine = tmp_path / "mine"
    mine.write_bytes(bytes(rows.stat().st_size))
    rows.unlink()
    rows.symlink_to(mine)
    assert equal(expected, batches_of(path, cache_dir=str(folder))[1])
    lock.unlink()
    lock.symlink_to(mine)
    with pytest.raises(OSError, match="cannot be written"):
        batches_of(path, cache_dir=str(folder))
    assert not mapped_files(folder) and not any(mine.read_bytes())
    assert mine.stat().st_size == rows.stat().st_size


def test_a_cut_off_file_of_the_folder_is_written_again(files, tmp_path):
    path, options = files / "png.hdf5", {"cache_dir": str(tmp_path)}
    _, expected = batches_of(path, **options)
    (rows,) = tmp_path.glob("*.rows")
    with open(rows, "r+b") as file:
        file.truncate(1000)
    assert equal(expected, batches_of(path, **options)[1])


def test_a_folder_without_room_is_one_line(files, tmp_path, monkeypatch):
    monkeypatch.setattr("offrl.outputs.MARGIN_BYTES", 2**60)
    with pytest.raises(OSError, match="disk full"):
        batches_of(files / "plain.hdf5", cache_dir=str(tmp_path))
    assert not list(tmp_path.glob("*.rows"))


def test_a_training_waits_for_another_that_writes(files, tmp_path, caplog):
    script = (
        "import sys, time\n"
        "from offrl.data import mapped, sequence\n"
        "write = mapped._write\n"
        "def slow(*args):\n"
        "    print('writes', flush=True)\n"
        "    time.sleep(1)\n"
        "    write(*args)\n"
        "mapped._write = slow\n"
        "sequence.SequenceDataset(sys.argv[1], ['camera'], cache_dir=sys.argv[2])\n"
    )
    path = files / "plain.hdf5"
    command = [sys.executable, "-c", script, str(path), str(tmp_path)]
    with programs.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "writes\n"
        caplog.set_level("INFO")
        began = time.monotonic()
        _, found = batches_of(path, cache_dir=str(tmp_path))
        assert time.monotonic() - began > 0.3
        assert "another training writes it" in caplog.text
    assert other.returncode == 0 and equal(found, batches_of(path)[1])


def test_what_a_killed_training_left_is_written_anew_and_can_be_removed(files, tmp_path, capsys):
    script = (
        "import os, signal, sys\n"
        "from offrl import outputs\n"
        "from offrl.data import sequence\n"
        "outputs.put = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "sequence.SequenceDataset(sys.argv[1], ['camera'], cache_dir=sys.argv[2])\n"
    )
    path = files / "plain.hdf5"
    command = [sys.executable, "-c", script, str(path), str(tmp_path)]
    assert programs.run(command, check=False).returncode == -signal.SIGKILL
    assert not list(tmp_path.glob("[!.]*.rows"))
    _, found = batches_of(path, cache_dir=str(tmp_path))
    assert equal(found, batches_of(path)[1])
    (left, whole) = sorted(path.name for files in mapped_files(tmp_path).values() for path in files)
    assert "partial" in left and whole.startswith("obs.camera-")
    (tmp_path / "mine.rows").write_text("of the user")
    assert main(["cache", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert left in shown and whole in shown and "13.9 kB  in all" in shown
    assert equal(found, batches_of(path, cache_dir=str(tmp_path))[1])
    for _ in range(2):
        main(["cache", str(tmp_path), "--clear"])
        assert [path.name for path in tmp_path.iterdir()] == ["mine.rows"]


# -- the guard ------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_before_it_is_read(files, monkeypatch):
    monkeypatch.setattr(placement, "free_memory", lambda: 4000.0)
    monkeypatch.setattr("offrl.data.steps.Files.read", None)
    with pytest.raises(ValueError) as error:
        SequenceDataset(files / "jpeg.hdf5", KEYS, hdf5_cache_mode="all")
    message = str(error.value)
    assert message.startswith(str(files / "jpeg.hdf5")) and "\n" not in message
    for words in ("7.31 kB", "obs/camera", "4 kB are free", '"auto"', "cache_dir", "demo_limit"):
        assert words in message


def test_the_place_of_keys():
    sizes = {"obs/a": 600, "obs/b": 300, "obs/v": 50, "obs/w": 20}
    vectors, others = {"obs/v": 50, "obs/w": 20}, {"actions": 30}

    def placed(mode, room):
        found = place_keys("data", sizes, vectors, others, mode, room / 1e9)
        return sorted(found.in_memory), dict(found.cached)

    everything = sorted(sizes), {}
    assert placed("all", 1) == placed("auto", 1000) == everything
    assert placed("low_dim", 1) == (["obs/v", "obs/w"], {"obs/a": 0, "obs/b": 0})
    assert placed(None, 1)[0] == [] and set(placed(None, 1)[1]) == set(sizes)
    assert placed("auto", 400) == (["obs/v", "obs/w"], {"obs/a": 200, "obs/b": 100})
    assert placed("auto", 60)[0] == ["obs/w"]

    def read_by(num):
        return place_keys("data", {"obs/a": 10**9}, {}, {}, "auto", 0.5, num).cached["obs/a"]

    assert (read_by(0), read_by(2), read_by(9)) == (5 * 10**8, 25 * 10**7, 0)
    with pytest.raises(ValueError, match="null, auto, all, low_dim"):
        placed("some", 1)


def test_a_cache_larger_than_memory_becomes_half_of_what_is_free(monkeypatch, caplog):
    monkeypatch.setattr(placement, "free_memory", lambda: 1000.0)
    sizes, vectors, others = {"obs/a": 600, "obs/v": 100}, {"obs/v": 100}, {"actions": 30}
    found = place_keys("data", sizes, vectors, others, "auto", 1)
    assert found.in_memory == {"obs/a", "obs/v"} and not caplog.text
    found = place_keys("data", {**sizes, "obs/a": 6000}, vectors, others, "auto", 1)
    assert found.in_memory == {"obs/v"} and found.cached == {"obs/a": 370}
    assert "1 GB, but 1 kB are free" in caplog.text


def test_held_out_data_takes_what_the_training_leaves_of_the_cache(files):
    path = files / "masked.hdf5"
    path.write_bytes((files / "plain.hdf5").read_bytes())
    with h5py.File(path, "r+") as file:
        file["mask/train"], file["mask/valid"] = np.array([b"demo_0", b"demo_1"]), [b"demo_2"]
    whole = 21 * np.prod(IMAGE) + 4 * 21 * 5
    for room, are_streamed in ((0.5, (True, True)), (1.1, (False, True)), (2, (False, False))):
        modalities = {"obs": {"low_dim": ["speed"], "rgb": ["camera"]}}
        overrides = {
            "train": {
                "data": str(path),
                "cache_gb": room * whole / 1e9,
                "num_data_workers": 0,
                "hdf5_filter_key": "train",
                "hdf5_validation_filter_key": "valid",
                "batch_size": 4,
            },
            "experiment": {"validate": True},
            "observation": {"modalities": modalities},
        }
        data = open_data(config_factory("bc", overrides), {}, torch.device("cpu"))
        datasets = data.loader.dataset, data.valid_loader.dataset
        assert tuple(dataset.is_streamed for dataset in datasets) == are_streamed
        assert sum(dataset.nbytes for dataset in datasets) <= max(1, room) * whole + 4 * 8 * 5


def test_readers_share_the_cores_with_the_processes_of_a_training(monkeypatch):
    train = config_factory("bc").train
    for cores, local, readers in ((1, 1, 0), (2, 1, 1), (16, 1, 4), (8, 2, 3), (8, 4, 1)):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: range(cores))
        monkeypatch.setattr("offrl.parallel.num_local", lambda local=local: local)
        monkeypatch.setattr("offrl.parallel.num_ranks", lambda local=local: local)
        assert num_readers(train) == readers
    train.num_data_workers = 7
    assert num_readers(train) == 7


def test_a_config_says_where_data_is():

    config = config_factory("bc")
    assert config.train.hdf5_cache_mode == "auto" and config.train.cache_gb is None
    with pytest.raises(ValueError, match="train.cache_gb"):
        config_factory("bc", {"train": {"cache_gb": 0}})
    assert json.loads(config.dump())["train"]["cache_dir"] is None
