"""The steps of all demonstrations as columns, and the files that they are read from."""

import copy
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offrl.data.columns import (
    ArrayColumn,
    CachedColumn,
    Column,
    DecodedColumn,
    FileColumn,
    StreamedColumn,
)
from offrl.data.demos import TASK, Demos
from offrl.data.formats.files import open_demos
from offrl.data.mapped import map_rows
from offrl.data.provenance import fingerprint, last_change
from offrl.data.remarks import LOST
from offrl.data.storage import decode_image, unreadable
from offrl.memory import check_memory
from offrl.specs import LANGUAGE

log = logging.getLogger(__name__)


def ranges(begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return ``counts[i]`` integers from ``begins[i]`` on for each ``i``, in one array."""
    return np.repeat(begins - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())


class StepStore:
    """Holds a column per key over all steps of demonstrations of ``lengths`` ``[D]`` steps. A
    demonstration's rows are contiguous, so that windows are index arithmetic."""

    def __init__(self, lengths: Sequence[int] | np.ndarray = ()):
        self.columns: dict[str, Column] = {}
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


MOST_FILES = 256  # that a process has open; systems allow 1024 or more
OpenFile = tuple[Demos, Source]  # an open file, and its selected demonstrations


class Files(AbstractContextManager):
    """Files of demonstrations as one sequence of rows. Each process opens the files for itself when
    it reads them. A context manager.

    images: the forms of images that are turned as they are read, by file and key.
    """

    def __init__(self, swmr: bool, images: Mapping[str, Any]):
        self._swmr, self._images = swmr, images
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

    def shape(self, key: str, sources: Sequence[Source] = ()) -> tuple[int, ...]:
        """Return the shape of one step; ``ValueError`` if the files do not agree on it."""
        (path, shape), *others = (
            (source.path, self._file(source.path).shape(source.demos[0], key))
            for source in sources or self.sources
        )
        for other, found in others:
            if found != shape:
                words = f"{list(found)} in {other}; use what agrees"
                raise ValueError(f"{key} has shape {list(shape)} in {path}, but {words}")
        return shape

    def told(
        self, instructions: Mapping[str, np.ndarray]
    ) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Return for the number of each file that tells tasks in words, and stores no embeddings of
        them, the ``instructions`` ``[K, E]`` of its tasks, and the number of each step's ``[N]``.
        """
        found = {}
        for k, (file, source) in enumerate(self._pairs()):
            if not file.tasks or file.has(source.demos[0], f"obs/{LANGUAGE}"):
                continue
            steps = file.read(source.demos, TASK, source.lengths).reshape(-1).astype(int)
            tasks, numbers = np.unique(steps, return_inverse=True)
            sentences = {task: file.tasks.get(task) for task in tasks.tolist()}
            if lacking := [task for task, x in sentences.items() if x not in instructions]:
                words = f"is {sentences[lacking[0]]!r}, which has no embedding here"
                raise ValueError(f"{source.path}: the {TASK} {lacking[0]} {words}")
            values = [instructions[str(sentence)] for sentence in sentences.values()]
            found[k] = np.stack(values), numbers.reshape(-1)
        return found

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
        parts = []
        have = [not or_zeros or file.all_have(source.demos, key) for file, source in self._pairs()]
        if not any(have):
            return np.zeros((sum(source.num_steps for source in self.sources), 1), np.float32)
        shape = self.shape(key, list(compress(self.sources, have)))
        for (file, source), has in zip(self._pairs(), have, strict=True):
            if not has:
                log.warning(f"{source.path} has no {key}: taken as zero")
                parts.append(np.zeros((source.num_steps, *shape), np.float32))
                continue
            parts.append(file.read(source.demos, key, source.lengths))
            if lost := file.lost(source.demos, key):
                log.warning(f"{source.path}: {key} {LOST} {', '.join(map(str, lost))}")
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def size(self, key: str) -> int:
        """Count the bytes that a key of all files takes in memory; 0 if they lack it."""
        num = sum(
            source.num_steps * math.prod(file.shape(source.demos[0], key))
            for file, source in self._having(key)
        )
        return num and num * self._dtype(key).itemsize

    def streamed(self, key: str, shape: tuple[int, ...], cache_bytes: int) -> StreamedColumn:
        """Make a column that is read from the files, of which so many bytes are kept in memory:
        decoded images as far as there is room for the files of all others, else these."""
        self.check(key)
        num = sum(source.num_steps for source in self.sources)
        widths = [file.packed_bytes(source.demos, key) for file, source in self._pairs()]
        column: StreamedColumn = FileColumn(partial(self._fill, key), shape, self._dtype(key))
        row, file = column.row_bytes, max(widths)
        check_memory(row, f"{self.sources[0].path}: a row of {key}")
        num_decoded = min(num, cache_bytes // row)
        if num_decoded < num and all(widths) and file < row:
            packed = FileColumn(partial(self._fill, key, packed=True), (file,), column.dtype)
            num_decoded = max(0, cache_bytes - num * file) // (row - file)
            num_packed = min(num - num_decoded, (cache_bytes - num_decoded * row) // file)
            kept = CachedColumn(packed, num_decoded, num_decoded + num_packed)
            column = DecodedColumn(kept, shape, partial(self._decode, key))
        return CachedColumn(column, 0, num_decoded) if num_decoded else column

    def mapped(
        self, shapes: Mapping[str, tuple[int, ...]], folder: str
    ) -> Iterator[tuple[str, ArrayColumn]]:
        """Yield keys, whose steps have these shapes, with columns of rows that are in files of a
        folder, and are written there if they are not (``train.cache_dir``)."""
        for key in shapes:
            self.check(key)
        num, identity = sum(source.num_steps for source in self.sources), []
        for file, source in self._pairs():
            paths = [Path(source.path), *sorted({other for _, other in file.external})]
            marks = fingerprint(paths), last_change(paths)
            identity.append([*marks, source.demos, self._images.get(source.path)])
        for key, shape in shapes.items():
            dtype = self._dtype(key)
            parts = partial(self._parts, key, shape, dtype)
            rows = map_rows(folder, key, identity, (num, *shape), dtype, parts)
            yield key, ArrayColumn(rows)

    def _parts(self, key: str, shape: tuple[int, ...], dtype: np.dtype) -> Iterator[np.ndarray]:
        """Read the rows of a key, one demonstration after the other."""
        for file, source in self._pairs():
            for demo, length in zip(source.demos, source.lengths, strict=True):
                rows = np.empty((length, *shape), dtype)
                file.read_into(demo, key, rows, 0)
                yield rows

    def _having(self, key: str) -> Iterator[OpenFile]:
        return (pair for pair in self._pairs() if pair[0].has(pair[1].demos[0], key))

    def _dtype(self, key: str) -> np.dtype:
        """Return the type of a key's rows: that of all files that have it together."""
        kinds = [file.dtype(source.demos[0], key) for file, source in self._having(key)]
        return np.result_type(*kinds)

    def _fill(
        self,
        key: str,
        taken: np.ndarray,
        rows: np.ndarray,
        windows: np.ndarray,
        packed: bool = False,
    ) -> None:
        """Fill the windows ``[N]`` of ``[B, T, ...]`` with the rows ``[B, T]``."""
        numbers = np.searchsorted(self._first_rows, rows[windows, 0], side="right") - 1
        steps = rows[windows] - self._first_rows[numbers, None]
        places = (numbers, steps.min(axis=1), steps.max(axis=1) + 1, windows)
        ordered = sorted(
            zip(*(place.tolist() for place in places), range(len(windows)), strict=True)
        )
        for number, begin, end, window, i in ordered:  # as they lie in the files
            path, demo = self._demos[number]
            file = self._file(path)
            read = file.read_packed if packed else file.read_into
            if end - begin == rows.shape[1]:
                read(demo, key, taken[window], begin)
            else:  # padded: some are repeated
                some = np.empty((end - begin, *taken.shape[2:]), taken.dtype)
                read(demo, key, some, begin)
                taken[window] = some[steps[i] - begin]

    def _decode(self, key: str, images: np.ndarray, files: np.ndarray, rows: np.ndarray) -> None:
        for image, file, row in zip(images, files, rows, strict=True):
            try:
                decode_image(file, image)
            except Exception as error:
                path, place = self._locate(row)[0], self.place(key, row).partition(": ")[2]
                raise unreadable(path, place, error) from None

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
            if len(self._open) >= MOST_FILES:
                self._open.pop(next(iter(self._open))).close()
            self._open[handle] = open_demos(path, self._swmr, self._images.get(path))
        return self._open[handle]

    def _pairs(self) -> Iterator[OpenFile]:
        """Yield each file, which may be closed when the next one is opened."""
        return ((self._file(source.path), source) for source in self.sources)
