from functools import partial
from itertools import islice
from multiprocessing import active_children

import h5py
import numpy as np
import pytest
import torch

from offrl.data.loader import BatchLoader
from offrl.data.sequence import SequenceDataset
from offrl.outputs import new_file


@pytest.fixture
def dataset(demos):
    return SequenceDataset(demos, ["position"])


def take(loader, number):
    return [batch["obs"]["position"] for _, batch in zip(range(number), loader, strict=False)]


def test_a_pass_meets_every_window_once(dataset):
    loader = BatchLoader(dataset, batch_size=6, seed=1)
    assert loader.batches_per_pass == 3
    rows = torch.cat(take(loader, 3)).flatten(1)
    assert len(torch.unique(rows, dim=0)) == len(dataset) == 18


def test_passes_and_seeds_differ(dataset):
    first = take(BatchLoader(dataset, 18, seed=1), 2)
    other = take(BatchLoader(dataset, 18, seed=2), 1)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])


def test_batches_are_the_same_however_many_are_gathered_at_once(dataset, monkeypatch):
    several = take(BatchLoader(dataset, 4, seed=1), 30)
    monkeypatch.setattr("offrl.data.windows.GATHERED_BYTES", 1)
    assert all(map(torch.equal, several, take(BatchLoader(dataset, 4, seed=1), 30)))


@pytest.mark.parametrize("position", [0, 2, 3, 7])
def test_a_position_is_all_its_state(dataset, position):
    batches = take(BatchLoader(dataset, 5, seed=1), 10)
    later = BatchLoader(dataset, 5, seed=1)
    later.position = position
    for expected, actual in zip(batches[position:], later, strict=False):
        assert torch.equal(expected, actual["obs"]["position"])
    assert later.position == 10


def test_workers_that_read_ahead_change_nothing(tmp_path):
    path = tmp_path / "images.hdf5"
    with h5py.File(path, "w") as file:
        file["data/demo_0/obs/image"] = np.random.default_rng(0).integers(
            0, 256, (20, 4, 4, 3), dtype=np.uint8
        )
        file["data/demo_0/actions"] = np.zeros((20, 2))
    dataset = SequenceDataset(path, ["image"], hdf5_cache_mode=None, load_next_obs=False)
    batches = []
    for num_workers in (0, 2):
        loader = BatchLoader(dataset, 4, seed=3, num_workers=num_workers)
        batches.append([b["obs"]["image"] for _, b in zip(range(7), loader, strict=False)])
        assert loader.position == 7
    assert all(torch.equal(a, b) for a, b in zip(*batches, strict=True))


class Troubled:
    """Data of which one window is trouble."""

    is_streamed = True

    def __init__(self, trouble=lambda: None):
        self.trouble = trouble

    def __len__(self):
        return 100

    def get_batch(self, indices):
        if 50 in indices:
            self.trouble()
        return {"obs": {"position": indices}}


def test_what_offrl_says_in_a_reader_is_said_as_it_says_it():
    others = active_children()
    loader = BatchLoader(Troubled(partial(new_file, __file__)), 10, seed=0, num_workers=2)
    with pytest.raises(FileExistsError, match=f"^{__file__}"):
        list(islice(loader, 10))
    assert active_children() == others


def test_a_mistake_in_the_reading_keeps_its_traceback():
    loader = BatchLoader(Troubled(partial(int, "a mistake")), 10, seed=0, num_workers=2)
    with pytest.raises(RuntimeError, match="(?s)in get_batch.*ValueError.*a mistake"):
        list(islice(loader, 10))


def test_a_reader_that_is_killed_is_found_where_its_data_is_awaited():
    others = set(active_children())
    batches = iter(BatchLoader(Troubled(), 10, seed=0, num_workers=2))
    next(batches)
    readers = set(active_children()) - others
    min(readers, key=id).kill()
    with pytest.raises(ChildProcessError, match="signal 9.*train.num_data_workers"):
        list(islice(batches, 10_000))
    assert not readers & set(active_children())


def test_too_large_a_batch_is_refused(dataset):
    with pytest.raises(ValueError, match="train.batch_size"):
        BatchLoader(dataset, 19, seed=1)


def test_whatever_has_a_length_and_gives_batches_is_loaded():
    class Squares:
        def __len__(self):
            return 10

        def get_batch(self, indices):
            return {"obs": {"position": indices**2}}

    batches = take(BatchLoader(Squares(), 5, seed=0, num_workers=2), 2)
    assert torch.equal(torch.cat(batches).sort().values, torch.arange(10) ** 2)
