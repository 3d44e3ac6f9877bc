"""An array of a demonstration, some rows of which are read at a time; others are made of such."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np

from offrl.images import Form, step_after, turned

PIECE_BYTES = 2**26  # bytes of the parts in which larger arrays are read
TURNED_BYTES = 2**24  # of rows that are turned at once


class StepArray(ABC):
    """An array ``[T, ...]`` of a demonstration, with a row for each step, some of which are read at
    a time. ``shape`` and ``dtype`` are those of the rows that are read.

    packed: the image files ``[T, B]`` that the rows are decoded from, if there are such.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    packed: "StepArray | None" = None

    @abstractmethod
    def rows(self, start: int, stop: int) -> np.ndarray:
        """Read the rows ``start:stop``."""

    def read_into(self, rows: np.ndarray, start: int = 0) -> None:
        """Fill an array with the rows from ``start`` on, converted to its type."""
        with np.errstate(over="ignore"):  # becomes infinity, which is looked for
            rows[...] = self.rows(start, start + len(rows))

    def light(self) -> "StepArray":
        """Return the same rows in the form in which thousands of arrays may stay open."""
        return self

    def check_written(self) -> None:  # noqa: B027 (most formats cannot leave out a part)
        """Raise ``ValueError`` if a part of it was never written."""

    def read(self) -> np.ndarray:
        """Read all of it."""
        return self.rows(0, len(self))

    def pieces(self) -> Iterator[tuple[int, np.ndarray]]:
        """Read the rows in parts of about 64 MB, to bound memory. Yields the number of the first
        row with each."""
        block = max(1, PIECE_BYTES * len(self) // max(1, self.nbytes))
        for start in range(0, len(self), block):
            yield start, self.rows(start, min(start + block, len(self)))

    @cached_property
    def nbytes(self) -> int:
        """The bytes that all rows take in memory."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def bytes_on_disk(self) -> int:
        return self.nbytes

    @property
    def storage(self) -> str:
        """Say how it is stored, for people."""
        return "plain"

    @property
    def is_number(self) -> bool:
        """True if it has rows of numbers."""
        return bool(self.shape) and self.dtype.kind in "fiub" and 0 not in self.shape[1:]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, steps: Any) -> np.ndarray:
        begin, end, _ = steps.indices(len(self))
        return self.rows(begin, end)


class InMemory(StepArray):
    """Rows in memory."""

    def __init__(self, array: np.ndarray):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def rows(self, start: int, stop: int) -> np.ndarray:
        return self.array[start:stop]


class Turned(StepArray):
    """Images of other forms, which are turned as they are read.

    place: the array's name for errors. Raises ``ValueError`` for images that lack a form, also when
    rows are read whose values do not fit.
    """

    def __init__(self, array: StepArray, forms: Sequence[Form], place: str):
        self._array, self._forms, self._place = array, forms, place
        with self._located():
            step, self.dtype = step_after(array.shape[1:], array.dtype, forms)
        self.shape = (len(array), *step)

    def rows(self, start: int, stop: int) -> np.ndarray:
        rows = self._array.rows(start, stop)
        with self._located():
            return turned(rows, self._forms)

    def read_into(self, rows: np.ndarray, start: int = 0) -> None:
        row = math.prod(self._array.shape[1:]) * self._array.dtype.itemsize
        block = max(1, TURNED_BYTES // max(1, row))
        for first in range(0, len(rows), block):
            part = rows[first : first + block]
            part[...] = self.rows(start + first, start + first + len(part))

    def light(self) -> "Turned":
        self._array = self._array.light()
        return self

    def check_written(self) -> None:
        self._array.check_written()

    @contextmanager
    def _located(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            remedy = "correct images in its entry of train.data"
            raise ValueError(f"{self._place} {error}; {remedy}") from None


class Part(StepArray):
    """The ``length`` rows of another array from ``first`` on."""

    def __init__(self, array: StepArray, first: int, length: int):
        self._array, self._first = array, first
        self.shape, self.dtype = (length, *array.shape[1:]), array.dtype

    def rows(self, start: int, stop: int) -> np.ndarray:
        return self._array.rows(self._first + start, self._first + stop)

    def read_into(self, rows: np.ndarray, start: int = 0) -> None:
        self._array.read_into(rows, self._first + start)

    @property
    def bytes_on_disk(self) -> int:
        return self._array.bytes_on_disk * len(self) // max(1, len(self._array))

    @property
    def storage(self) -> str:
        return self._array.storage

    def check_written(self) -> None:
        self._array.check_written()
