"""Demonstrations whose arrays are separate: each is opened when it is read, and stays open."""

import math
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from offrl.data.arrays import Turned
from offrl.data.demos import Demos
from offrl.data.recent import Recent
from offrl.images import Form
from offrl.memory import check_memory

MOST_OPEN = 4096  # arrays that stay open; each takes some kilobytes


class SeparateArrays(Demos):
    """Demonstrations with separate arrays, the latest of which are kept open.

    A format defines ``_open``, ``keys`` and ``_names``, and ``attributes`` if it has such.
    """

    def __init__(self) -> None:
        self._opened: Recent[Any] = Recent(MOST_OPEN)
        self._images: Mapping[str, Sequence[Form]] = {}

    def close(self) -> None:
        self._opened.clear()

    @abstractmethod
    def keys(self, demo: str) -> Collection[str]:
        """Return the keys of a demonstration's arrays."""

    @abstractmethod
    def _open(self, demo: str, key: str) -> Any:
        """Open an array (``StepArray``). Raises ``ValueError`` if it cannot be read."""

    def turn(self, images: Mapping[str, Sequence[Form]]) -> None:
        for key in images:
            if not self.has(demo := self.demos()[0], f"obs/{key}"):
                names = [k.removeprefix("obs/") for k in self.keys(demo) if k.startswith("obs/")]
                words = f"has no obs/{key}; correct it, or leave it out. There are"
                raise ValueError(
                    f"{self.path}: train.data.images: {demo} {words} {', '.join(names) or 'none'}"
                )
        self._images = images
        self._opened.clear()

    def place_of(self, demo: str, key: str) -> Any:
        """Return what ``keys`` says of a key, if it is a dict; ``ValueError`` for one that is not
        there."""
        keys: Any = self.keys(demo)
        if key in keys:
            return keys[key]
        group = key.partition("/")[0]
        alike = [k for k in keys if k.partition("/")[0] == group] or keys
        hint = "; a config names what it uses in observation.modalities" if "/" in key else ""
        has = ", ".join(sorted(alike)) or "nothing that is read"
        raise ValueError(f"{self.path}: {self.root}{demo} has no {key!r}; it has {has}{hint}")

    def has(self, demo: str, key: str) -> bool:
        return key in self.keys(demo)

    def lengths(self, demos: Sequence[str], key: str = "actions") -> np.ndarray:
        return np.array([self.array(demo, key).shape[0] for demo in demos])

    def stored(self, demo: str, keys: Collection[str] | None = None) -> dict[str, Any]:
        chosen = [key for key in self.keys(demo) if keys is None or key in keys]
        return {**self.attributes(demo), **{key: self.array(demo, key) for key in chosen}}

    def array(self, demo: str, key: str) -> Any:
        """Return an array of a demonstration, opened if need be."""
        return self._opened.get((demo, key), lambda: self._opened_anew(demo, key).light())

    def _opened_anew(self, demo: str, key: str) -> Any:
        """Open an array, which is turned if it is of images that ``turn`` named."""
        found, (group, _, name) = self._open(demo, key), key.partition("/")
        if name in self._images and group in ("obs", "next_obs"):
            return Turned(found, self._images[name], f"{self.path}: {self.root}{demo}/{key}")
        return found

    def check(self, demos: Sequence[str], key: str, lengths: np.ndarray) -> None:
        first = self.array(demos[0], key)
        for demo, length in zip(demos, lengths, strict=True):
            self._checked(demo, key, (int(length), *first.shape[1:]), first.dtype)

    def read(self, demos: Sequence[str], key: str, lengths: np.ndarray) -> np.ndarray:
        first, total = self.array(demos[0], key), int(lengths.sum())
        kind = np.uint8 if first.dtype == np.uint8 else np.float32
        num_bytes = total * math.prod(first.shape[1:]) * np.dtype(kind).itemsize
        remedy = "train on fewer (train.data.demo_limit), or set train.hdf5_cache_mode=low_dim"
        check_memory(num_bytes, f"{self.path}: {key}", remedy)
        rows = np.empty((total, *first.shape[1:]), dtype=kind)
        for demo, part in zip(demos, np.split(rows, np.cumsum(lengths)[:-1]), strict=True):
            self._checked(demo, key, part.shape, first.dtype).read_into(part)
        return self._numbers(rows, demos, key, lengths)

    def _checked(self, demo: str, key: str, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """Open an array; ``ValueError`` unless it has this shape and numbers (uint8 if ``dtype``
        is)."""
        array, wrong = self._opened_anew(demo, key), ""  # as it is read but once, it is not kept
        if array.shape != shape:
            asked = f"the demo's actions and the other demos ask for {list(shape)}"
            wrong = f"has shape {list(array.shape)}, but {asked}"
        elif array.dtype.kind not in "fiub":
            wrong = "holds no numbers"
        elif (array.dtype == np.uint8) != (dtype == np.uint8):
            wrong = f"holds {array.dtype}, the first demo {dtype}; store all as uint8, or none"
        if wrong:
            raise ValueError(f"{self.path}: {self.root}{demo}/{key} {wrong}")
        return array
