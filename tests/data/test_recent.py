"""What was asked for last is kept, up to a limit: as a plain list of it says."""

import h5py
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from offrl.data import separate
from offrl.data.formats.hdf5 import DemoFile
from offrl.data.recent import Recent

WORK = st.lists(st.tuples(st.sampled_from(["get", "discard"]), st.integers(0, 5)))


@given(WORK, st.integers(0, 12))
def test_the_oldest_are_dropped_first_and_once(work, limit):
    dropped = []
    recent = Recent(limit, size=lambda key: key, dropped=lambda key, _: dropped.append(key))
    kept, expected = [], []  # the oldest first
    for what, key in work:
        is_there = key in kept
        if is_there:
            kept.remove(key)
        if what == "discard":
            recent.discard(key)
            expected += [key] * is_there
            continue
        made = []
        assert recent.get(key, lambda key=key, made=made: made.append(key) or key) == key
        assert made == [key] * (not is_there)
        kept.append(key)
        while not is_there and sum(kept) > limit and len(kept) > 1:
            expected.append(kept.pop(0))
        assert dropped == expected
    recent.clear()
    assert sorted(dropped) == sorted(expected + kept)


def test_few_arrays_of_a_file_stay_open_and_all_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(separate, "MOST_OPEN", 3)
    with h5py.File(tmp_path / "demos.hdf5", "w") as file:
        for i in range(7):
            file[f"data/demo_{i}/actions"] = np.full((2, 1), i)
            file.create_dataset(f"data/demo_{i}/obs/x", data=np.full((2, 1), i), chunks=(1, 1))
    with DemoFile(tmp_path / "demos.hdf5") as demos:
        for i in [*range(7), 2, 6, 0]:
            for key in ("actions", "obs/x"):
                assert demos.array(f"demo_{i}", key).rows(1, 2) == i
                num_open = h5py.h5f.get_obj_count(demos._file.id, h5py.h5f.OBJ_DATASET)
                assert num_open <= 3 and len(demos._opened._values) <= 3
