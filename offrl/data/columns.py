"""What a key holds at every step: rows in memory, constants, or rows that stay in files.

A column has the ``shape`` of a step; it gives rows ``[B, T]`` as ``[B, T, ...]``.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offrl.data.demos import Demos
from offrl.data.files import open_demos
from offrl.data.sources import Source


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


class FileColumn:
    """Rows that stay in their files, read window by window."""

    nbytes = 0

    def __init__(self, files: "FileRows", key: str, shape: tuple[int, ...]):
        self.files, self.key, self.shape = files, key, shape

    def take(self, rows: Tensor) -> Tensor:
        windows = [self.files.read(self.key, window) for window in rows.cpu().numpy()]
        return torch.stack(windows).view(*rows.shape, *self.shape)

    def to(self, device: torch.device | str) -> "FileColumn":
        return self


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
        path, demo, first_row = self._locate(row)
        return f"{path}: {demo}/{key} at step {row - first_row}"

    def read(self, key: str, rows: np.ndarray) -> Tensor:
        """Rows ``[T]`` of one demonstration."""
        path, demo, first_row = self._locate(rows[0])
        handle = (os.getpid(), path)
        if handle not in self._open:
            self._open[handle] = open_demos(path, self._swmr)
        steps = rows - first_row
        read = self._open[handle].read_rows(demo, key, int(steps.min()), int(steps.max()) + 1)
        return torch.from_numpy(read[steps - steps.min()])

    def _locate(self, row: int) -> tuple[str, str, int]:
        k = int(np.searchsorted(self._first_rows, row, side="right")) - 1
        return *self._demos[k], self._first_rows[k]
