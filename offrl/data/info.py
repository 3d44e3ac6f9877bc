"""Facts about demonstrations: counts, keys, ranges, successes, masks, sizes, and oddities."""

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from offrl.data.arrays import StepArray
from offrl.data.demos import OF_STEPS, Demos, Episodes
from offrl.data.formats.external import in_other_files
from offrl.data.formats.files import open_episodes
from offrl.data.formats.hdf5 import located
from offrl.data.provenance import provenance_of
from offrl.data.remarks import KEPT, Vectors, features, odd_image, unusual, wrong_values

TIMED = 3  # demonstrations that are read to tell the time of reading all
SAMPLED = 64  # images per camera for ranges, unless all are read
ENVIRONMENT = ("env_name", "env_version", "type")
NUMBERS = ("actions", "rewards", "dones")  # must hold numbers
EACH_DIMENSION = 64  # the largest number of dimensions that have ranges of their own


class DataInfo:
    """Reads facts about demonstrations in one pass; ``facts()`` is a nested dict of plain values.

    reads_all: compute ranges of all images, not of a sample.
    advance: called with the number of demonstrations that were read.
    """

    def __init__(
        self,
        path: str | Path,
        reads_all: bool = False,
        advance: Callable[[int], object] = lambda num_demos: None,
    ):
        self.path, self._reads_all = Path(path), reads_all
        self.wrong: list[str] = []
        self.lengths: list[int] = []
        self._arrays: dict[str, ArrayFacts] = {}
        self._returns: list[float] = []
        self._features: list[dict[str, float]] = []
        self._successes: list[bool | None] = []
        self._alike: defaultdict[bytes, list[str]] = defaultdict(list)
        with open_episodes(self.path) as demos:
            self.names = demos.demos()
            self.env_args = demos.env_args
            sampled = {*np.linspace(0, len(self.names) - 1, SAMPLED).astype(int)}
            for i, demo in enumerate(self.names):
                self._read(demos, demo, is_sampled=i in sampled)
                advance(1)
            for facts in self._arrays.values():
                facts.widen_by_vectors()
            self._seconds = self._time_to_read(demos)
            # masks() would raise what is reported here.
            self.masks = {key: demos.mask(key) for key in demos.filter_keys()}
            self.layout, self._external = demos.layout, demos.external
        for key, names in self.masks.items():
            if absent := sorted(set(names) - set(self.names)):
                words = f"names what is not there: {', '.join(absent[:5])}"
                self.wrong.append(f"{self.path}: mask/{key} {words}")

    def _read(self, demos: Episodes, demo: str, is_sampled: bool) -> None:
        trajectory, digest = demos.stored(demo), hashlib.sha256()
        read: dict[str, Any] = {}
        shape = trajectory["actions"].shape if "actions" in trajectory else (0,)
        length = shape[0]
        if 0 not in shape and isinstance(demos, Demos):
            demos.lengths([demo])  # reports most errors
        for name, array in trajectory.items():
            if not isinstance(array, StepArray):
                read[name] = array
                continue
            place = f"{demos.root}{demo}/{name}"
            with located(self.path, place):
                if name not in self._arrays:
                    self._arrays[name] = ArrayFacts(name, array)
                facts = self._arrays[name]
                if array.dtype.kind not in "fiub" or 0 in array.shape[1:]:
                    if name in NUMBERS:
                        self.wrong.append(f"{self.path}: {place} holds no numbers")
                elif not facts.is_image or self._reads_all:
                    digest.update(name.encode())
                    for first, rows in array.pieces():
                        facts.add(rows, place)
                        if words := wrong_values(name, rows, first):
                            self.wrong.append(f"{self.path}: {place} {words}")
                        if not facts.is_image:
                            digest.update(rows.tobytes())
                            if len(rows) == array.shape[0] and rows.nbytes <= KEPT:
                                read[name] = rows
                elif is_sampled and array.shape[0]:
                    middle = len(array) // 2
                    facts.add(array[middle : middle + 1], place)
                facts.num_rows += array.shape[0]
                if length and name.startswith(OF_STEPS) and array.shape[0] != length:
                    self.wrong.append(
                        f"{self.path}: {place} has {array.shape[0]} steps, but the actions {length}"
                    )
                facts.bytes_on_disk += array.bytes_on_disk
        self.lengths.append(length)
        if "rewards" in read:
            self._returns.append(float(np.sum(read["rewards"], dtype=np.float64)))
        if not length:
            self.wrong.append(f"{self.path}: {demos.root}{demo} has no steps (actions)")
        elif "actions" in read:
            self._features.append(features(read))
        self._successes.append(demos.success(read))
        self._alike[digest.digest()].append(demo)

    def _time_to_read(self, demos: Episodes) -> float | None:
        """Measure the time in which a few demonstrations are read to be trained on, and return that
        for all."""
        few = {*np.linspace(0, len(self.names) - 1, TIMED).astype(int).tolist()}
        num_steps, started = sum(self.lengths[i] for i in few), time.perf_counter()
        try:
            for i in few:
                if not isinstance(demos, Demos):
                    demos.trajectory(self.names[i])
                    continue
                for key in filter(lambda key: key.startswith(OF_STEPS), self._arrays):
                    demos.read([self.names[i]], key, np.array(self.lengths[i : i + 1]))
        except ValueError:  # reported as wrong, or no numbers
            return None
        seconds = time.perf_counter() - started
        return seconds * sum(self.lengths) / num_steps if num_steps else None

    def facts(self) -> dict[str, Any]:
        """Return the facts that ``offrl info`` prints."""
        known = [success for success in self._successes if success is not None]
        success = {"demonstrations": len(known), "rate": float(np.mean(known))} if known else None
        shared = {
            f"{a} and {b}": len({*self.masks[a]} & {*self.masks[b]})
            for a, b in combinations(sorted(self.masks), 2)
        }
        environment = None
        if env_args := self.env_args:
            environment = {name: env_args[name] for name in ENVIRONMENT if name in env_args}
            environment["env_kwargs"] = env_args.get("env_kwargs", {})
        unusual_ones = []
        if len(self._features) == len(self.names):
            names = self._features[0]
            found = unusual({name: np.array([f[name] for f in self._features]) for name in names})
            unusual_ones = [f"{self.names[i]}: {sentence}" for i, sentence in found]
        remarks = [words for _, x in sorted(self._arrays.items()) for words in x.remarks()]
        remarks += in_other_files(self._external)
        for same in self._alike.values():
            if len(same) > 1:
                shown = ", ".join(same[:10]) + (", ..." if len(same) > 10 else "")
                remarks.append(f"{shown} are the same, but for images, which were not compared")
        files = self.path.rglob("*") if self.path.is_dir() else [self.path]
        return {
            "dataset": str(self.path),
            "layout": self.layout,
            "bytes_on_disk": sum(file.stat().st_size for file in files if file.is_file()),
            "bytes_in_memory": sum(array.bytes_in_memory for array in self._arrays.values()),
            "seconds_to_first_batch": self._seconds,
            "demonstrations": len(self.names),
            "steps": sum(self.lengths),
            "lengths": _spread(self.lengths),
            "returns": _spread(self._returns),
            "success": success,
            "keys": {name: array.facts() for name, array in sorted(self._arrays.items())},
            "filter_keys": {key: len(names) for key, names in self.masks.items()},
            "overlaps": {pair: number for pair, number in shared.items() if number},
            "environment": environment,
            "provenance": provenance_of(self.path),
            "wrong": self.wrong,
            "remarks": remarks,
            "unusual": unusual_ones,
        }


class ArrayFacts:
    """Facts about an array of all demonstrations."""

    def __init__(self, name: str, array: np.ndarray | StepArray):
        self.name = name
        self.shape, self.dtype = tuple(map(int, array.shape[1:])), str(array.dtype)
        self.is_image = len(self.shape) == 3
        self.storage = array.storage if isinstance(array, StepArray) else "plain"
        self.bytes_on_disk = self.num_rows = 0
        self._low: Any = None
        self._high: Any = None
        self._vectors = Vectors(name)

    @property
    def bytes_in_memory(self) -> int:
        """The size in training: bytes as they are, all else as float32."""
        size = 1 if self.dtype == "uint8" else 4
        return self.num_rows * size * int(np.prod(self.shape, dtype=np.int64))

    def add(self, rows: np.ndarray, place: str) -> None:
        if rows.size and not self._vectors.add(rows, place):
            self._widen(rows)

    def widen_by_vectors(self) -> None:
        """Widen the range by all kept vectors at once, as one by one would be slow."""
        if parts := [part for part in self._vectors.parts if part.shape[1:] == self.shape]:
            self._widen(np.concatenate(parts))

    def _widen(self, rows: np.ndarray) -> None:
        axis = None if self.is_image else 0
        low, high = np.minimum.reduce(rows, axis), np.maximum.reduce(rows, axis)
        if self._low is None:
            self._low, self._high = low, high
        elif self._low.shape == low.shape:
            self._low, self._high = np.minimum(self._low, low), np.maximum(self._high, high)

    def remarks(self) -> list[str]:
        if self._low is None:
            return []  # it holds no numbers
        span = np.min(self._low), np.max(self._high)
        if not np.isfinite(span).all():
            return []  # it holds errors, not oddities
        odd = odd_image(self.name, self.shape, np.dtype(self.dtype), *span)
        return [*([odd] if odd else []), *self._vectors.remarks()]

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"shape": list(self.shape), "dtype": self.dtype}
        if self._low is not None:
            facts |= {"min": _number(np.min(self._low)), "max": _number(np.max(self._high))}
            if 1 < np.size(self._low) <= EACH_DIMENSION:
                each = zip(np.ravel(self._low), np.ravel(self._high), strict=True)
                facts["ranges"] = [[_number(low), _number(high)] for low, high in each]
        sizes = {"bytes_on_disk": self.bytes_on_disk, "bytes_in_memory": self.bytes_in_memory}
        return facts | sizes | {"storage": self.storage}


def _spread(numbers: Sequence[float] | np.ndarray) -> dict[str, float | None] | None:
    if not len(numbers):
        return None
    spread = {"min": np.min(numbers), "median": np.median(numbers), "max": np.max(numbers)}
    return {name: _number(number) for name, number in spread.items()}


def _number(value: Any) -> float | None:
    """Return a number for JSON, which has no NaN."""
    return float(value) if np.isfinite(value) else None
