"""A store of steps."""

import h5py
import numpy as np
import pytest
import torch

from offrl.data import steps
from offrl.data.sequence import SequenceDataset
from offrl.data.steps import StepStore


def test_what_is_filled_in_is_not_copied():
    actions = np.arange(5, dtype=np.float32)[:, None]
    store = StepStore([3, 2])
    store.fill({"actions": actions})
    assert store.columns["actions"].array.data_ptr() == actions.ctypes.data
    assert store.first_rows.tolist() == [0, 3] and store.nbytes == actions.nbytes
    assert store.values("actions").tolist() == actions.tolist()


@pytest.mark.parametrize("mode", ["all", None])
def test_few_of_many_files_are_open_at_a_time(tmp_path, monkeypatch, mode):
    paths, lengths = [tmp_path / f"{i}.hdf5" for i in range(5)], [2, 3, 1, 4, 2]
    rows = np.arange(sum(lengths), dtype=np.float32)[:, None]
    for path, part in zip(paths, np.split(rows, np.cumsum(lengths)[:-1]), strict=True):
        with h5py.File(path, "w") as file:
            file["data/demo_0/actions"] = file["data/demo_0/obs/x"] = part
    opened, most = set(), []
    open_demos = steps.open_demos

    def counted(path, *args):
        demos = open_demos(path, *args)
        close = demos.close
        demos.close = lambda: (close(), opened.discard(demos))
        opened.add(demos)
        most.append(len(opened))
        return demos

    monkeypatch.setattr(steps, "open_demos", counted)
    monkeypatch.setattr(steps, "MOST_FILES", 2)
    options = {"dataset_keys": [], "load_next_obs": False, "hdf5_cache_mode": mode}
    data = SequenceDataset(paths, ["x"], **options)
    order = np.random.default_rng(0).permutation(len(data))
    batch = data.get_batch(torch.from_numpy(order))
    assert batch["obs"]["x"][:, 0].tolist() == rows[order].tolist()
    assert max(most) == 2
