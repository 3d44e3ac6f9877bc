"""The validation of a file of demonstrations: every byte of it is read."""

import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from offrl.data.arrays import StepArray
from offrl.data.demos import OF_STEPS, Demos, Episodes
from offrl.data.formats.d4rl import KEYS, D4RLFile
from offrl.data.formats.external import in_other_files
from offrl.data.formats.files import open_episodes, recognise
from offrl.data.formats.hdf5 import DemoFile, check_text, held_out_key, located, open_hdf5
from offrl.data.formats.robosuite import RobosuiteRaw
from offrl.data.remarks import NOT_FOLLOWED, Vectors, followed, odd_image, wrong_values
from offrl.data.storage import StoredArray, check_group


class Validation:
    """Looks for damage and mistakes in a file of demonstrations.

    ``wrong`` lists errors, which training refuses or should; ``remarks`` lists oddities that may be
    intended; ``counts`` holds numbers of demonstrations, steps, arrays, bytes and checksums.

    advance: called with the number of bytes that were read.
    """

    def __init__(self, path: str | Path, advance: Callable[[int], object] = lambda num_bytes: None):
        self.path = Path(path)
        self.wrong: list[str] = []
        self.remarks: list[str] = []
        self.counts: Counter[str] = Counter()
        self._advance = advance
        self._keys: set[str] = set()  # keys of a demonstration without errors
        self._first_break = ""
        self._layout: dict[str, str] = {}  # type and shape of each key's steps
        self._vectors: dict[str, Vectors] = {}
        self._external: set[tuple[str, Path]] = set()
        with self._noted():
            if not self.path.exists():
                raise FileNotFoundError(f"{path}: no such file")
            layout = recognise(self.path)
            if layout.demos is D4RLFile:
                with open_hdf5(self.path) as raw:
                    self._external |= raw.external
                    self._read_all(raw, set(raw))
                with D4RLFile(self.path) as file:
                    self.counts["demonstrations"] = len(file.demos())
                    self.counts["steps"] = int(file.lengths(file.demos()).sum())
            elif layout.demos in (DemoFile, RobosuiteRaw):
                self._check_demos()
            else:
                self._check_episodes()
            if self.counts["breaks"]:
                share = f"{self.counts['breaks']} of {self.counts['followed']} steps"
                self.remarks.append(f"{self._first_break}{NOT_FOLLOWED}; so it is at {share}")
            self.remarks += in_other_files(self._external)
            for _, vectors in sorted(self._vectors.items()):
                self.remarks += vectors.remarks()

    # -- robomimic's layout -----------------------------------------------------------------------

    def _check_demos(self) -> None:
        with DemoFile(self.path) as file, open_hdf5(self.path) as raw:
            self._external |= raw.external
            with self._noted():
                _ = file.env_args
            demos, alike = file.demos(), defaultdict(list)
            for demo in demos:
                with self._noted():
                    alike[self._check_demo(file, demo, raw["data"])].append(demo)
            self.counts["demonstrations"] = len(demos)
            with self._noted():
                check_text(self.path, raw["data"], "data")
            total = None
            with self._noted(), located(self.path, "the attribute total of data"):
                total = int(raw["data"].attrs.get("total", self.counts["steps"]))
            if total not in (None, self.counts["steps"]) and not self.wrong:
                self.remarks.append(
                    f"data was recorded with {total} steps (the attribute total), but has "
                    f"{self.counts['steps']}: demonstrations were left out, lost or added"
                )
            self._check_masks(file, set(demos))
            self._read_all(raw, set(raw) - {"data"})
        self._remark_on(alike, "data: ")

    def _remark_on(self, alike: Mapping[bytes, Sequence[str]], place: str) -> None:
        for same in alike.values():
            if len(same) > 1:
                self.remarks.append(f"{place}{', '.join(same)} are the same demonstration")

    def _check_demo(self, file: DemoFile, demo: str, data: h5py.Group) -> bytes:
        """Read all of a demonstration, and return a hash of its content."""
        digest, length, arrays = hashlib.sha256(), None, dict[str, StoredArray]()
        with self._noted():
            length = int(file.lengths([demo])[0])
            self.counts["steps"] += length
        num_wrong = len(self.wrong)
        for place, dataset in self._arrays(data, demo, f"data/{demo}"):
            key = _key(place)
            with self._noted(), located(self.path, place):
                digest.update(key.encode())
                stored = self._read(dataset, place, digest.update)
                if key.startswith(OF_STEPS):
                    arrays[key] = stored
                    self._check_steps(place, key, stored, length)
        if length == 0:
            self.wrong.append(f"{self.path}: data/{demo} has no steps; leave it out, or delete it")
        if len(self.wrong) == num_wrong:  # else a missing key may only be damaged
            self._compare(arrays, f"data/{demo}")
        return digest.digest()

    def _compare(self, arrays: Mapping[str, Any], place: str) -> None:
        """Note the keys of a demonstration that differ from the first one's, and count breaks."""
        keys = self._keys = self._keys or {*arrays}
        differing = {"lacks": sorted(keys - arrays.keys()), "has": sorted(arrays.keys() - keys)}
        words = [f"{verb} {', '.join(found)}" for verb, found in differing.items() if found]
        if words:
            unlike = f"{' and '.join(words)}, unlike the first demonstration"
            self.wrong.append(f"{self.path}: {place} {unlike}")
        with self._noted(), located(self.path, f"{place}/next_obs"):
            self._count_breaks(arrays, place)

    def _count_breaks(self, arrays: Mapping[str, Any], place: str) -> None:
        """Count the steps, except ends, whose ``next_obs`` is not the next observation."""
        pairs = [(arrays[k], arrays[f"next_{k}"]) for k in arrays if f"next_{k}" in arrays]
        if not pairs:
            return
        breaks = ~np.all([followed(*pair) for pair in pairs], axis=0)
        if "dones" in arrays:
            breaks &= arrays["dones"][:-1].reshape(-1) != 1
        if breaks.any() and not self.counts["breaks"]:
            self._first_break = f"{place}/next_obs at step {np.argmax(breaks)}"
        self.counts.update(breaks=int(breaks.sum()), followed=len(breaks))

    def _check_steps(self, place: str, key: str, rows: Any, length: int | None) -> None:
        if length is not None and rows.shape[0] != length:
            words = f"has {rows.shape[0]} steps, but actions {length}"
            raise ValueError(f"{self.path}: {place} {words}")
        if key in ("rewards", "dones") and math.prod(rows.shape[1:]) != 1:
            raise ValueError(f"{self.path}: {place} is to be a number for each step")
        if key not in self._layout and len(rows.shape) > 2:
            middle = len(rows) // 2  # the first image may be black
            image = rows[middle : middle + 1]
            span = image.min(initial=0), image.max(initial=0)
            if odd := odd_image(key, rows.shape[1:], rows.dtype, *span):
                self.remarks.append(odd)
        kind = "bytes" if rows.dtype == np.uint8 else "numbers"
        step = f"{kind} {list(rows.shape[1:])}"
        if self._layout.setdefault(key, step) != step:
            words = f"has steps of {step}, but those before it of {self._layout[key]}"
            raise ValueError(f"{self.path}: {place} {words}")

    def _check_masks(self, file: DemoFile, demos: set[str]) -> None:
        masks: dict[str, list[str]] = {}
        with self._noted():
            for key in file.filter_keys():
                with self._noted():
                    masks[key] = file.mask(key)
        for key, names in masks.items():
            held_out = held_out_key(key)
            twice = [name for name, times in Counter(names).items() if times > 1]
            shared = sorted(set(names) & set(masks.get(held_out, ())))
            for found, words in (
                ([] if names else [key], "is empty"),
                (sorted(set(names) - demos), "names what is not there"),
                (twice, "names a demonstration more than once"),
                (shared, f"and mask/{held_out} have demonstrations in common"),
            ):
                if found:
                    self.wrong.append(f"{self.path}: mask/{key} {words}: {', '.join(found)}")

    # -- layouts that are read episode by episode --------------------------------------------------

    def _check_episodes(self) -> None:
        with open_episodes(self.path) as file:
            demos, alike = file.demos(), defaultdict(list)
            for demo in demos:
                with self._noted():
                    alike[self._check_episode(file, demo)].append(demo)
            self.counts["demonstrations"] = len(demos)
            self._external |= file.external
            self._remark_on(alike, "")

    def _check_episode(self, file: Episodes, demo: str) -> bytes:
        """Read all of an episode, and return a hash of its content."""
        digest, num_wrong, place = hashlib.sha256(), len(self.wrong), f"{file.root}{demo}"
        length = int(file.lengths([demo])[0]) if isinstance(file, Demos) else None
        arrays = {key: x for key, x in file.stored(demo).items() if isinstance(x, StepArray)}
        length = len(arrays["actions"]) if length is None else length
        self.counts["steps"] += length
        for key, array in arrays.items():
            with self._noted(), located(self.path, f"{place}/{key}"):
                digest.update(key.encode())
                self.counts.update(arrays=1, bytes=array.nbytes)
                self._advance(array.bytes_on_disk)
                self._read_rows(array, key, f"{place}/{key}", digest.update)
                self._check_steps(f"{place}/{key}", key, array, length)
        if not length:
            self.wrong.append(f"{self.path}: {place} has no steps; leave it out, or delete it")
        if len(self.wrong) == num_wrong:
            self._compare(arrays, place)
        return digest.digest()

    # -- every layout -----------------------------------------------------------------------------

    def _read_all(self, group: h5py.Group, names: set[str]) -> None:
        for name in sorted(names):
            for place, dataset in self._arrays(group, name, name):
                with self._noted(), located(self.path, place):
                    self._read(dataset, place)

    def _arrays(
        self, group: h5py.Group, name: str, place: str, seen: set[Any] | None = None
    ) -> Iterator[tuple[str, h5py.Dataset]]:
        """Yield all arrays under a name with their places, and note what is damaged."""
        found, inside, seen = None, [], set() if seen is None else seen
        with self._noted(), located(self.path, place):
            item = group.get(name)
            if item is None:
                raise ValueError("a link that leads nowhere")
            check_text(self.path, item, place)
            if isinstance(item, h5py.Group):
                check_group(item.id, place, seen)
                inside = list(item)
            elif isinstance(item, h5py.Dataset):
                found = item
        if found is not None:
            yield place, found
        for child in inside:
            yield from self._arrays(item, child, f"{place}/{child}", seen)

    def _read(
        self,
        dataset: h5py.Dataset,
        place: str,
        see: Callable[[bytes], object] = lambda content: None,
    ) -> StoredArray:
        """Read all of an array, and check its values; ``see`` is called with its bytes."""
        size = dataset.size * dataset.dtype.itemsize if dataset.size else 0
        self.counts.update(arrays=1, bytes=size, checksums=int(dataset.fletcher32))
        self._advance(dataset.id.get_storage_size())
        key, stored = _key(place), StoredArray(dataset.id)
        self._external |= {(place, other) for other in stored.external}
        self._read_rows(stored, key, place, see)
        return stored

    def _read_rows(
        self, array: StepArray, key: str, place: str, see: Callable[[bytes], object]
    ) -> None:
        is_of_steps = key.startswith(OF_STEPS) or key in KEYS
        if is_of_steps and not array.is_number:
            raise ValueError(f"{self.path}: {place} is no array of numbers, a row for each step")
        for first, rows in array.pieces():
            if array.is_number:
                see(rows.tobytes())
            if is_of_steps:
                if words := wrong_values(key, rows, first):
                    raise ValueError(f"{self.path}: {place} {words}")
                self._vectors.setdefault(key, Vectors(key)).add(rows, place)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, OSError) as error:
            if str(error) not in self.wrong:
                self.wrong.append(str(error))


def _key(place: str) -> str:
    return re.sub(r"^data/[^/]+/", "", place)
