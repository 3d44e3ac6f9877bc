"""The columns of a store of steps: in memory, constant, in files, or partly in memory.

A column holds the values of a key at every step. It knows the ``shape`` of a step and its
``nbytes`` in memory, takes rows ``[B, T]`` as ``[B, T, ...]``, and moves ``to`` a device. The rows
``[T]`` of a window are of one demonstration.
"""

import math
import mmap
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

# Fills the windows ``[N]`` of ``[B, T, ...]`` with the rows ``[B, T]``.
Fill = Callable[[np.ndarray, np.ndarray, np.ndarray], None]


class Column:
    """A column in memory, which the device of the training can hold."""

    shape: tuple[int, ...]
    nbytes = 0
    is_streamed = False  # True if rows are read when they are taken

    def take(self, rows: Tensor) -> Tensor:
        """Gather rows ``[B, T]`` as ``[B, T, ...]``."""
        raise NotImplementedError

    def to(self, device: torch.device | str) -> "Column":
        """Return the column on a device, copied if need be."""
        raise NotImplementedError


class ArrayColumn(Column):
    """Rows in memory, ``[N, ...]``."""

    def __init__(self, array: Tensor):
        self.array = array
        self.shape = tuple(array.shape[1:])
        self.nbytes = array.nbytes

    def take(self, rows: Tensor) -> Tensor:
        return self.array.index_select(0, rows.flatten()).view(*rows.shape, *self.shape)

    def to(self, device: torch.device | str) -> "ArrayColumn":
        return ArrayColumn(self.array.to(device))


class ConstantColumn(Column):
    """A few ``values`` ``[K, ...]`` that many steps share, and the number of each row's ``[N]``."""

    def __init__(self, values: Tensor, numbers: Tensor):
        self.values, self.numbers = values, numbers
        self.shape = tuple(values.shape[1:])
        self.nbytes = values.nbytes + numbers.nbytes

    def take(self, rows: Tensor) -> Tensor:
        return self.values[self.numbers[rows]]

    def to(self, device: torch.device | str) -> "ConstantColumn":
        return ConstantColumn(self.values.to(device), self.numbers.to(device))


class StreamedColumn(Column):
    """Rows that are read, or decoded, when they are taken. They stay in main memory."""

    is_streamed = True

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype):
        self.shape, self.dtype = shape, np.dtype(dtype)

    @property
    def row_bytes(self) -> int:
        """The bytes of one row."""
        return math.prod(self.shape) * self.dtype.itemsize

    def fill(self, taken: np.ndarray, rows: np.ndarray, windows: np.ndarray) -> None:
        """Fill the windows ``[N]`` of ``[B, T, ...]`` with the rows ``[B, T]``."""
        raise NotImplementedError

    def take(self, rows: Tensor) -> Tensor:
        taken = np.empty((*rows.shape, *self.shape), self.dtype)
        self.fill(taken, rows.cpu().numpy(), np.arange(len(rows)))
        return torch.from_numpy(taken)

    def to(self, device: torch.device | str) -> "StreamedColumn":
        return self


class FileColumn(StreamedColumn):
    """Rows that stay in their files, and are read window by window."""

    def __init__(self, read: Fill, shape: tuple[int, ...], dtype: np.dtype):
        super().__init__(shape, dtype)
        self._read = read

    def fill(self, taken: np.ndarray, rows: np.ndarray, windows: np.ndarray) -> None:
        self._read(taken, rows, windows)


class DecodedColumn(StreamedColumn):
    """Images that are decoded from a column of image files ``[B]``, padded with zeros."""

    def __init__(self, packed: StreamedColumn, shape: tuple[int, ...], decode: Callable[..., None]):
        super().__init__(shape, np.dtype(np.uint8))
        self._packed, self._decode = packed, decode

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return self._packed.nbytes

    def fill(self, taken: np.ndarray, rows: np.ndarray, windows: np.ndarray) -> None:
        files = np.empty((*rows.shape, *self._packed.shape), np.uint8)
        self._packed.fill(files, rows, windows)
        for window in windows:
            self._decode(taken[window], files[window], rows[window])


class CachedColumn(StreamedColumn):
    """A streamed column, of which the rows ``first:stop`` stay in memory once they were taken.

    The rows that stay are settled beforehand: in each pass over shuffled data every row is taken
    about once, so that no choice by what was taken lately would find more. The memory is shared
    with processes that are forked from this one, so that readers fill one cache.
    """

    def __init__(self, column: StreamedColumn, first: int, stop: int):
        super().__init__(column.shape, column.dtype)
        self._column, self._first, self._stop = column, first, stop
        memory = mmap.mmap(-1, max(1, (stop - first) * column.row_bytes))
        shape = (stop - first, *column.shape)
        self._kept = np.frombuffer(memory, column.dtype, math.prod(shape)).reshape(shape)
        marks = mmap.mmap(-1, max(1, stop - first))
        self._is_there = np.frombuffer(marks, np.bool_)

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return self._kept.nbytes + self._column.nbytes

    def fill(self, taken: np.ndarray, rows: np.ndarray, windows: np.ndarray) -> None:
        places = rows - self._first
        may_be = (rows >= self._first) & (rows < self._stop)
        found = may_be & self._is_there[np.where(may_be, places, 0)]
        is_whole = found.all(axis=1)[windows]
        for window in windows[is_whole]:
            np.take(self._kept, places[window], axis=0, out=taken[window], mode="clip")
        missing = windows[~is_whole]
        if not len(missing):
            return
        self._column.fill(taken, rows, missing)
        for window in missing[may_be[missing].any(axis=1)]:
            keeps = may_be[window]
            self._kept[places[window][keeps]] = taken[window][keeps]
            self._is_there[places[window][keeps]] = True  # behind the rows: others may read by now
