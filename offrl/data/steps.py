"""The steps of demonstrations, filled at once from files or growing by episodes."""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offrl.data.columns import ArrayColumn
from offrl.data.computed import COMPUTED
from offrl.data.windows import ranges


class StepStore:
    """A column for each key over all steps, and where demonstrations begin and how long they are.

    A demonstration's rows lie one after the other, so that windows are index arithmetic. A store
    holds demonstrations of ``lengths`` ``[D]`` steps once it is filled with arrays over all of
    them, and grows by ``add``: memory doubles up to ``capacity`` rows, then the oldest
    demonstrations make room. As none is split, up to the length of one lies idle at the end.
    Demonstrations are in the order of their age.
    """

    def __init__(self, lengths: Sequence[int] | np.ndarray = (), capacity: float = math.inf):
        self.columns: dict[str, Any] = {}
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.first_rows = np.cumsum(self.lengths) - self.lengths
        self.capacity = capacity
        self.device = torch.device("cpu")
        self._next_row = self._num_rows = int(self.lengths.sum())

    def fill(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Columns ``[sum(lengths), ...]``, which are not copied."""
        for key, array in arrays.items():
            self.columns[key] = ArrayColumn(torch.from_numpy(array))

    @property
    def nbytes(self) -> int:
        """Memory of the columns."""
        return sum(column.nbytes for column in self.columns.values())

    def to(self, device: torch.device | str) -> "StepStore":
        """The same steps on a device."""
        moved = copy.copy(self)
        moved.columns = {key: column.to(device) for key, column in self.columns.items()}
        moved.device = torch.device(device)
        return moved

    def values(self, key: str) -> Tensor:
        """All steps ``[sum(lengths), ...]`` of a column that is in no file."""
        rows = torch.from_numpy(ranges(self.first_rows, self.lengths))
        return self.columns[key].take(rows.to(self.device))

    def add(self, episode: Mapping[str, np.ndarray]) -> None:
        """Append an episode ``{key: [T, ...]}``, of the same keys each time. Windows that were made
        before may show other steps from now on."""
        arrays = {key: _as_stored(key, values) for key, values in episode.items()}
        length = max(map(len, arrays.values()), default=0)
        if not 0 < length <= self.capacity:
            raise ValueError(
                f"an episode of {length} steps, but the store has room for 1 to {self.capacity}; "
                "raise its capacity, or end episodes earlier"
            )
        columns = self.columns or {
            key: ArrayColumn(array.new_empty(0, *array.shape[1:], device=self.device))
            for key, array in arrays.items()
        }
        _check_alike(arrays, columns, length)
        self.columns = columns
        start = self._make_room(length)
        for key, array in arrays.items():
            self.columns[key].array[start : start + length] = array
        self.first_rows = np.append(self.first_rows, start)
        self.lengths = np.append(self.lengths, length)

    def _make_room(self, length: int) -> int:
        """Drop what is in the way of ``length`` more rows, and return the first of them."""
        start = self._next_row if self._next_row + length <= self.capacity else 0
        self._next_row = stop = start + length
        overlaps = (self.first_rows < stop) & (self.first_rows + self.lengths > start)
        # What is older than one in the way goes with it, so that the most recent ones stay.
        num_dropped = int(np.flatnonzero(overlaps).max(initial=-1)) + 1
        self.first_rows = self.first_rows[num_dropped:]
        self.lengths = self.lengths[num_dropped:]
        if stop > self._num_rows:
            self._num_rows = int(min(max(2 * self._num_rows, stop), self.capacity))
            self.columns = {k: c.lengthened(self._num_rows) for k, c in self.columns.items()}
        return start


def _as_stored(key: str, values: np.ndarray) -> Tensor:
    """What files of the same values would give."""
    array = torch.as_tensor(values)
    if array.dtype != torch.uint8 and key not in COMPUTED:
        array = array.float()
    is_obs = key.startswith(("obs/", "next_obs/"))
    return array[:, None] if is_obs and array.ndim == 1 else array  # a number is a vector of one


def _check_alike(arrays: Mapping[str, Tensor], columns: Mapping[str, Any], length: int) -> None:
    given = {key: f"{array.dtype} {[*array.shape]}" for key, array in arrays.items()}
    held = {
        key: f"{column.array.dtype} {[length, *column.shape]}"
        if isinstance(column, ArrayColumn)
        else "what is not in memory"
        for key, column in columns.items()
    }
    for key in sorted(given.keys() | held.keys()):
        if given.get(key) != held.get(key):
            raise ValueError(
                f"{key}: the episode has {given.get(key, 'none')}, but the store needs "
                f"{held.get(key, 'none')}"
            )
