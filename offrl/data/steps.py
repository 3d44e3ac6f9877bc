"""The steps of all demonstrations as columns, in memory and in files.

A column holds the values of a key at every step. It knows the ``shape`` of a step and its
``nbytes`` in memory, takes rows ``[B, T]`` as ``[B, T, ...]``, and moves ``to`` a device.
"""

import copy
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offrl.data.demos import Demos
from offrl.data.formats.files import open_demos
from offrl.data.remarks import LOST

log = logging.getLogger(__name__)


def ranges(begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return ``counts[i]`` integers from ``begins[i]`` on for each ``i``, in one array."""
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
    """One value per file for all of its steps: ``values`` ``[F, ...]``, from ``first_rows`` on."""

    def __init__(self, values: Tensor, first_rows: Tensor):
        self.values, self.first_rows = values, first_rows
        self.shape = tuple(values.shape[1:])
        self.nbytes = values.nbytes

    def take(self, rows: Tensor) -> Tensor:
        return self.values[torch.bucketize(rows, self.first_rows, right=True) - 1]

    def to(self, device: torch.device | str) -> "ConstantColumn":
        return ConstantColumn(self.values.to(device), self.first_rows.to(device))


class StepStore:
    """Holds a column per key over all steps of demonstrations of ``lengths`` ``[D]`` steps. A
    demonstration's rows are contiguous, so that windows are index arithmetic."""

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
        """The bytes that the columns take in memory."""
        return sum(column.nbytes for column in self.columns.values())

    def to(self, device: torch.device | str) -> "StepStore":
        """Return the same steps on a device, copied if need be."""
        if torch.device(device) == self.device:
            return self
        moved = copy.copy(self)
        moved.columns = {key: column.to(device) for key, column in self.columns.items()}
        moved.device = torch.device(device)
        return moved

    def values(self, key: str) -> Tensor:
        """Return all steps ``[sum(lengths), ...]`` of a column in memory."""
        rows = torch.from_numpy(ranges(self.first_rows, self.lengths))
        return self.columns[key].take(rows.to(self.device))


@dataclass
class Source:
    """The selected demonstrations of a file, and the environment of their recording."""

    path: str
    demos: list[str]
    lengths: np.ndarray
    env_args: dict[str, Any] | None
    num_windows: int = 0

    @property
    def num_steps(self) -> int:
        return int(self.lengths.sum())


OpenFile = tuple[Demos, Source]  # an open file, and its selected demonstrations


class Files(AbstractContextManager):
    """Files of demonstrations as one sequence of rows. Each process opens the files for itself when
    it reads them. A context manager."""

    def __init__(self, swmr: bool):
        self._swmr = swmr
        self._open: dict[tuple[int, str], Demos] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": {}}

    def __exit__(self, *_: Any) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def choose(
        self, paths: Sequence[str | Path], filters: Any, limits: Any, shares: Any, key: str
    ) -> list[Source]:
        """Select the demonstrations to read from now on.

        filters, limits, shares: see ``SequenceDataset``, one for all files or one for each.
        key: the array whose length is that of a demonstration.
        """
        self.sources: list[Source] = []
        choices = []
        for choice in (filters, limits, shares):
            choices.append(choice if isinstance(choice, (list, tuple)) else [choice] * len(paths))
            if (num := len(choices[-1])) != len(paths):
                raise ValueError(f"{num} filter keys or demo limits for {len(paths)} files")
        for path, filter_key, limit, share in zip(map(str, paths), *choices, strict=True):
            file = self._file(path)
            demos = file.demos(filter_key, limit)
            demos = demos if share is None else file.best(demos, share)
            lengths = file.lengths(demos, key)
            if lengths.min() < 1:
                words = "has no steps; leave it out with a filter key, or delete it"
                raise ValueError(f"{path}: {demos[lengths.argmin()]} {words}")
            self.sources.append(Source(path, demos, lengths, file.env_args))
        self._demos = [(source.path, demo) for source in self.sources for demo in source.demos]
        lengths = np.concatenate([source.lengths for source in self.sources])
        self._first_rows = np.cumsum(lengths) - lengths
        return self.sources

    def all_have(self, key: str) -> bool:
        return all(file.all_have(source.demos, key) for file, source in self._pairs())

    def shape(self, key: str, pairs: Sequence[OpenFile] | None = None) -> tuple[int, ...]:
        """Return the shape of one step; ``ValueError`` if the files do not agree on it."""
        (first, source), *others = pairs or self._pairs()
        shape = first.shape(source.demos[0], key)
        for file, other in others:
            if file.shape(other.demos[0], key) != shape:
                words = f"{list(file.shape(other.demos[0], key))} in {other.path}; use what agrees"
                raise ValueError(f"{key} has shape {list(shape)} in {source.path}, but {words}")
        return shape

    def hold_integers(self, key: str) -> bool:
        return any(file.holds_integers(source.demos[0], key) for file, source in self._pairs())

    def num_actions(self, path: str, given: int | None) -> int | None:
        """Return the number of discrete actions: ``given`` (by the config, at ``path``), or that of
        the files; ``ValueError`` if these disagree."""
        for file, source in self._pairs():
            if file.num_actions is not None and given not in (None, file.num_actions):
                raise ValueError(
                    f"{path}: {given} actions, but {source.path} is of an environment with "
                    f"{file.num_actions}; set it to null, and train on files that agree"
                )
            given = given or file.num_actions
        return given

    def check(self, key: str) -> None:
        for file, source in self._pairs():
            file.check(source.demos, key, source.lengths)

    def read(self, key: str, or_zeros: bool = False) -> np.ndarray:
        """Read a key of all files, ``[sum(lengths), ...]``. With ``or_zeros``, files that lack it
        give zeros, ``[sum(lengths), 1]`` if all do."""
        pairs, parts = self._pairs(), []
        have = [not or_zeros or file.all_have(source.demos, key) for file, source in pairs]
        if not any(have):
            return np.zeros((sum(source.num_steps for source in self.sources), 1), np.float32)
        shape = self.shape(key, list(compress(pairs, have)))
        for (file, source), has in zip(pairs, have, strict=True):
            if not has:
                log.warning(f"{source.path} has no {key}: taken as zero")
                parts.append(np.zeros((source.num_steps, *shape), np.float32))
                continue
            parts.append(file.read(source.demos, key, source.lengths))
            if lost := file.lost(source.demos, key):
                log.warning(f"{source.path}: {key} {LOST} {', '.join(map(str, lost))}")
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def read_window(self, key: str, rows: np.ndarray) -> Tensor:
        """Read the rows ``[T]`` of one demonstration."""
        path, demo, first_row = self._locate(rows[0])
        steps = rows - first_row
        read = self._file(path).read_rows(demo, key, int(steps.min()), int(steps.max()) + 1)
        return torch.from_numpy(read[steps - steps.min()])

    def place(self, key: str, row: int) -> str:
        """Name the file, demonstration and step of a row, for messages."""
        path, demo, first_row = self._locate(row)
        return f"{path}: {demo}/{key} at step {row - first_row}"

    def _locate(self, row: int) -> tuple[str, str, int]:
        k = int(np.searchsorted(self._first_rows, row, side="right")) - 1
        return *self._demos[k], self._first_rows[k]

    def _file(self, path: str) -> Demos:
        handle = (os.getpid(), path)
        if handle not in self._open:
            self._open[handle] = open_demos(path, self._swmr)
        return self._open[handle]

    def _pairs(self) -> list[OpenFile]:
        return [(self._file(source.path), source) for source in self.sources]


class FileColumn:
    """Rows that stay in their files, and are read window by window."""

    nbytes = 0

    def __init__(self, files: Files, key: str, shape: tuple[int, ...]):
        self.files, self.key, self.shape = files, key, shape

    def take(self, rows: Tensor) -> Tensor:
        windows = [self.files.read_window(self.key, window) for window in rows.cpu().numpy()]
        return torch.stack(windows).view(*rows.shape, *self.shape)

    def to(self, device: torch.device | str) -> "FileColumn":
        return self
