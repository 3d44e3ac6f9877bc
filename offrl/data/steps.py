"""The steps of demonstrations, filled at once from files or growing by episodes.

What a key holds at every step is a column: of the ``shape`` of a step, and ``nbytes`` in memory. It
gives rows ``[B, T]`` as ``[B, T, ...]``, ``to`` moves it to a device.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offrl.data.computed import COMPUTED


def ranges(begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """``count`` integers from each begin on, all in one array."""
    return np.repeat(begins - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())


class ArrayColumn:
    """Rows in memory, ``[N, ...]``."""

    def __init__(self, array: Tensor):
        self.array = array
        self.shape = tuple(array.shape[1:])
        self.nbytes = array.nbytes

    def take(self, rows: Tensor) -> Tensor:
        return self.array.index_select(0, rows.flatten()).view(*rows.shape, *self.shape)

    def to(self, device: torch.device | str) -> "ArrayColumn":
        return ArrayColumn(self.array.to(device))

    def lengthened(self, num_rows: int) -> "ArrayColumn":
        """The same rows with room after them, ``num_rows`` in all."""
        array = self.array.new_empty(num_rows, *self.shape)
        array[: len(self.array)] = self.array
        return ArrayColumn(array)


class ConstantColumn:
    """The same at all steps of a file: ``values`` ``[F, ...]`` of files from ``first_rows`` on."""

    def __init__(self, values: Tensor, first_rows: Tensor):
        self.values, self.first_rows = values, first_rows
        self.shape = tuple(values.shape[1:])
        self.nbytes = values.nbytes

    def take(self, rows: Tensor) -> Tensor:
        return self.values[torch.bucketize(rows, self.first_rows, right=True) - 1]

    def to(self, device: torch.device | str) -> "ConstantColumn":
        return ConstantColumn(self.values.to(device), self.first_rows.to(device))


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
        """Add columns ``[sum(lengths), ...]``, which are not copied."""
        for key, array in arrays.items():
            self.columns[key] = ArrayColumn(torch.from_numpy(array))

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns.values())

    def to(self, device: torch.device | str) -> "StepStore":
        """The same steps on a device; a copy, if they are elsewhere."""
        if torch.device(device) == self.device:
            return self
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
        arrays = {key: _as_stored(key, x).to(self.device) for key, x in episode.items()}
        length = max(map(len, arrays.values()), default=0)
        if not 0 < length <= self.capacity:
            raise ValueError(
                f"an episode of {length} steps, but the store has room for 1 to {self.capacity}; "
                "raise its capacity, or end episodes earlier"
            )
        columns = self.columns or {key: ArrayColumn(array[:0]) for key, array in arrays.items()}
        given = {key: _layout(ArrayColumn(array), len(array)) for key, array in arrays.items()}
        needed = {key: _layout(column, length) for key, column in columns.items()}
        for key in sorted(given.keys() | needed.keys()):
            has, needs = given.get(key, "none"), needed.get(key, "none")
            if has != needs:
                raise ValueError(f"{key}: the episode has {has}, but the store needs {needs}")
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


def _layout(column: Any, length: int) -> str:
    if not isinstance(column, ArrayColumn):
        return "what is not in memory"
    return f"{column.array.dtype} {[length, *column.shape]}"
