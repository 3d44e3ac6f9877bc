"""What a key holds at every step: rows in memory, rows that stay in files, or constants."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offrl.data.demos import Demos
from offrl.data.files import open_demos
from offrl.data.sources import Source


class Column(ABC):
    """One key over all steps; ``shape`` is that of a step."""

    shape: tuple[int, ...]
    nbytes = 0  # in memory

    @abstractmethod
    def take(self, rows: Tensor) -> Tensor:
        """Rows ``[B, T]`` as ``[B, T, ...]``."""

    def to(self, device: torch.device | str) -> Column:
        return self


class ArrayColumn(Column):
    """Rows in memory, ``[N, ...]``."""

    def __init__(self, array: Tensor):
        self.array = array
        self.shape = tuple(array.shape[1:])
        self.nbytes = array.nbytes

    def take(self, rows: Tensor) -> Tensor:
        return self.array.index_select(0, rows.flatten()).view(*rows.shape, *self.shape)

    def to(self, device: torch.device | str) -> ArrayColumn:
        return ArrayColumn(self.array.to(device))

    def lengthened(self, num_rows: int) -> ArrayColumn:
        """The same rows with room after them, ``num_rows`` in all."""
        array = self.array.new_empty(num_rows, *self.shape)
        array[: len(self.array)] = self.array
        return ArrayColumn(array)


class ConstantColumn(Column):
    """The same at all steps of a file: ``values`` ``[F, ...]``, the files' ``first_rows`` ``[F]``."""

    def __init__(self, values: Tensor, first_rows: Tensor):
        self.values, self.first_rows = values, first_rows
        self.shape = tuple(values.shape[1:])

    def take(self, rows: Tensor) -> Tensor:
        return self.values[torch.bucketize(rows, self.first_rows, right=True) - 1]

    def to(self, device: torch.device | str) -> ConstantColumn:
        return ConstantColumn(self.values.to(device), self.first_rows.to(device))


class FileColumn(Column):
    """Rows that stay in their files, read window by window."""

    def __init__(self, files: FileRows, key: str, shape: tuple[int, ...]):
        self.files, self.key, self.shape = files, key, shape

    def take(self, rows: Tensor) -> Tensor:
        windows = [self.files.read(self.key, window) for window in rows.cpu().numpy()]
        return torch.stack(windows).view(*rows.shape, *self.shape)


class FileRows:
    """Rows of files that are strung together. Each process opens them for itself, where they are
    read."""

    def __init__(self, sources: Sequence[Source], swmr: bool):
        lengths = np.concatenate([source.lengths for source in sources])
        self._demos = [(source.path, demo) for source in sources for demo in source.demos]
        self._first_rows = np.cumsum(lengths) - lengths
        self._swmr = swmr
        self._open: dict[tuple[int, str], Demos] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": {}}

    def place(self, key: str, row: int) -> str:
        """The file, demonstration and step of a row, for messages."""
        k = self._demo_of(row)
        path, demo = self._demos[k]
        return f"{path}: {demo}/{key} at step {row - self._first_rows[k]}"

    def read(self, key: str, rows: np.ndarray) -> Tensor:
        """Rows ``[T]`` of one demonstration."""
        k = self._demo_of(rows[0])
        path, demo = self._demos[k]
        handle = (os.getpid(), path)
        if handle not in self._open:
            self._open[handle] = open_demos(path, self._swmr)
        steps = rows - self._first_rows[k]
        first = int(steps.min())
        read = self._open[handle].read_rows(demo, key, first, int(steps.max()) + 1)
        return torch.from_numpy(read[steps - first])

    def _demo_of(self, row: int) -> int:
        return int(np.searchsorted(self._first_rows, row, side="right")) - 1
