"""A store of steps."""

import numpy as np

from offrl.data.steps import StepStore


def test_what_is_filled_in_is_not_copied():
    actions = np.arange(5, dtype=np.float32)[:, None]
    store = StepStore([3, 2])
    store.fill({"actions": actions})
    assert store.columns["actions"].array.data_ptr() == actions.ctypes.data
    assert store.first_rows.tolist() == [0, 3] and store.nbytes == actions.nbytes
    assert store.values("actions").tolist() == actions.tolist()
