"""The steps of demonstrations, one after the other.

A column holds the values of a key at every step. It knows the ``shape`` of a step and its
``nbytes`` in memory, takes rows ``[B, T]`` as ``[B, T, ...]``, and moves ``to`` a device.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def ranges(begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return ``count`` integers from each begin on, all in one array."""
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


class ConstantColumn:
    """One value for all steps of a file: ``values`` ``[F, ...]`` of files from ``first_rows``
    on."""

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
    them.
    """

    def __init__(self, lengths: Sequence[int] | np.ndarray = ()):
        self.columns: dict[str, Any] = {}
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.first_rows = np.cumsum(self.lengths) - self.lengths
        self.device = torch.device("cpu")

    def fill(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Add columns ``[sum(lengths), ...]``, which are not copied."""
        for key, array in arrays.items():
            self.columns[key] = ArrayColumn(torch.from_numpy(array))

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns.values())

    def to(self, device: torch.device | str) -> "StepStore":
        """Return the same steps on a device; a copy, if they are elsewhere."""
        if torch.device(device) == self.device:
            return self
        moved = copy.copy(self)
        moved.columns = {key: column.to(device) for key, column in self.columns.items()}
        moved.device = torch.device(device)
        return moved

    def values(self, key: str) -> Tensor:
        """Return all steps ``[sum(lengths), ...]`` of a column that is in no file."""
        rows = torch.from_numpy(ranges(self.first_rows, self.lengths))
        return self.columns[key].take(rows.to(self.device))
