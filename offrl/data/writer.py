"""Recording episodes as a data set in robomimic's layout."""

import json
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from offrl.data.hdf5 import text_sum
from offrl.outputs import DiskFull, disk_full, in_words, new_file, put

log = logging.getLogger(__name__)

CHUNK_BYTES = 2**16  # read, and its checksum tested, at once: of images a few
METADATA_BYTES = 2**11  # of an array, at most
MARGIN_BYTES = 2**17  # left free: HDF5 ends the process where it runs into a full disk


class DemoWriter(AbstractContextManager):
    """Writes ``data/demo_N/{actions, rewards, dones, states, obs/KEY}``. A context manager.

    Everything is float32 but integers (images, discrete actions) and simulator states (float64:
    playing back needs all their bits), with HDF5's checksums (``fletcher32``). The file appears
    under its name when it is complete; an existing file is never overwritten. Until then
    ``NAME.partial.hdf5`` beside it is a valid file of all finished episodes: it stays there if the
    recording is cut off.

    env_args: what ``make_env`` makes the environment of, if there is one.
    """

    def __init__(self, path: str | Path, env_args: Mapping[str, Any] | None = None):
        if env_args is not None and not isinstance(env_args, Mapping):
            raise ValueError(f"{path}: env_args is {env_args!r:.80}, not a map with env_name")
        try:
            text = json.dumps(env_args, indent=4)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{path}: env_args cannot be text ({error}); give plain values"
            ) from None
        self.path = new_file(path)
        self._partial = self._place_beside()
        self._check_space(0)
        with in_words(self.path):
            # Made by an older HDF5's rules, a file that was never closed can be opened; by a newer
            # one's, single chunks need no index, and all that says where data lies has checksums.
            h5py.File(self._partial, "x", libver=("v108", "v110")).close()
            self._file = h5py.File(self._partial, "r+", libver=("v110", "v110"))
            _keep_metadata(self._file)
        self._data = self._file.create_group("data")
        if env_args is not None:
            # Of a fixed length it lies where checksums are; others lie in a heap that has none.
            self._data.attrs["env_args"] = np.bytes_(text)
            self._data.attrs["text_crc32"] = text_sum(self._data.attrs)
        self._file.flush()
        self._steps: dict[str, tuple[str, tuple[int, ...]]] = {}  # kind and shape of each key's
        self._total = 0
        self._is_kept = True  # whether finished episodes stay if the recording is cut off
        self.num_demos = 0

    @contextmanager
    def repeatable(self) -> Iterator[None]:
        """Keep nothing on a full disk: a command can simulate the episodes once more."""
        try:
            yield
        except DiskFull:
            self._is_kept = False
            raise

    def write(self, trajectory: Mapping[str, Any], **attributes: Any) -> str:
        """Add one episode, ``{"actions": [T, A], "obs/KEY": [T, ...], ...}``; its name. Strings and
        numbers in it become attributes, as ``attributes`` do.

        Raises ``ValueError``, and adds nothing, for what cannot be trained on: lists, NaN, arrays
        of unequal lengths or of other shapes than in the episodes before.
        """
        name = f"demo_{self.num_demos}"
        arrays, notes = self._checked(name, trajectory)
        notes |= attributes | {"num_samples": len(arrays["actions"])}
        self._check_space(sum(array.nbytes + METADATA_BYTES for array in arrays.values()), notes)
        # Nothing refers to the episode until all of it is in the file.
        demo = self._data.create_group(None)
        for key, array in arrays.items():
            _create(demo, key, array)
        for key, value in notes.items():
            try:
                demo.attrs[key] = value
            except (TypeError, ValueError) as error:
                raise ValueError(f"{self.path}: {name}: the attribute {key!r}: {error}") from None
        demo.attrs["text_crc32"] = text_sum(demo.attrs)
        self._file.flush()
        self._change(lambda: self._data.__setitem__(name, demo))
        self._steps = {key: _kind_and_shape(array) for key, array in arrays.items()}
        self._total += len(arrays["actions"])
        self.num_demos += 1
        return name

    def _change(self, change: Callable[[], object]) -> None:
        """Change what the file refers to. HDF5 takes several writes for that, and a kill between
        two of them would tear the file. So a child, which no signal to this process meets, makes
        them first; what this process writes then are the same bytes, as it reads nothing of what
        the child wrote."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which it starts none
            child = os.fork()
        if child == 0:
            try:
                os.setsid()
                change()
                self._file.flush()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        change()
        self._file.flush()

    def write_mask(self, filter_key: str, demos: Sequence[str]) -> None:
        """Name a subset of the demonstrations."""
        strange = [name for name in demos if name not in self._data]
        if strange or not len(demos):
            what = f"there is no {strange[0]}" if strange else "it names no demonstration"
            raise ValueError(f"{self.path}: mask/{filter_key}: {what}; name recorded ones")
        names = np.array(demos, dtype="S")
        self._check_space(names.nbytes + METADATA_BYTES)
        self._change(lambda: _create(self._file, f"mask/{filter_key}", names))

    def write_split(self, valid_fraction: float = 0.1, seed: int = 0) -> None:
        """Split the demonstrations at random into ``mask/train`` and ``mask/valid``.

        Of two or more at least one is for validation.
        """
        order = np.random.default_rng(seed).permutation(self.num_demos)
        num_valid = max(round(valid_fraction * self.num_demos), int(self.num_demos > 1))
        for key, part in (("valid", order[:num_valid]), ("train", order[num_valid:])):
            if len(part):
                self.write_mask(key, [f"demo_{i}" for i in sorted(part)])

    def __exit__(self, kind: Any, *_: Any) -> None:
        with in_words(self.path):
            self._change(lambda: self._data.attrs.__setitem__("total", self._total))
            self._file.close()
        is_free = not self.path.exists()  # which somebody may have changed
        if kind is None and is_free and self.num_demos:
            with in_words(self.path):
                put(self._partial, self.path)
        elif self.num_demos and self._is_kept:
            log.warning(
                f"{self.path}: the recording was cut off; its {self.num_demos} finished "
                f"demonstrations are in {self._partial} (without filter keys)"
            )
        else:
            self._partial.unlink()
        if kind is None and not self.num_demos:
            raise ValueError(f"{self.path}: no episode was written, so there is no file")
        if kind is None and not is_free:
            raise FileExistsError(f"{self.path} was made by another program meanwhile")

    # -- what an episode is held to ---------------------------------------------------------------

    def _checked(
        self, name: str, trajectory: Mapping[str, Any]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays of an episode as they are stored, and what is none."""
        arrays, notes = {}, {}
        _check_names(trajectory, f"{self.path}: {name}")
        for key, value in trajectory.items():
            if isinstance(value, np.ndarray):
                arrays[key] = _as_stored(key, value, f"{self.path}: {name}/{key}")
            elif isinstance(value, str | bytes | int | float | np.generic):
                notes[key] = value
            else:
                raise ValueError(
                    f"{self.path}: {name}/{key} is a {type(value).__name__}; give an array with a "
                    "row for each step, e.g. numpy.stack(rows)"
                )
        if "actions" not in arrays:
            raise ValueError(f"{self.path}: {name} has no actions")
        for key in {"rewards", "dones"} & arrays.keys():
            if arrays[key].size != len(arrays[key]):
                raise ValueError(f"{self.path}: {name}/{key} is to be one number for each step")
        if "dones" in arrays and not np.isin(arrays["dones"], (0, 1)).all():
            raise ValueError(f"{self.path}: {name}/dones is to be 0 or 1 at each step")
        steps = {key: _kind_and_shape(array) for key, array in arrays.items()}
        for key in sorted(steps.keys() | (self._steps or steps).keys()):
            place, length = f"{self.path}: {name}/{key}", len(arrays["actions"])
            if key in arrays and len(arrays[key]) != length:
                raise ValueError(
                    f"{place} has {len(arrays[key])} steps, but actions {length}; give both for "
                    "each step"
                )
            has, others = steps.get(key), (self._steps or steps).get(key)
            if has != others:
                what = f"has steps of {_words(has)}, but the episodes before {_words(others)}"
                what = what if has else "is missing, which the episodes before have"
                what = what if others else "is in none of the episodes before"
                raise ValueError(f"{place} {what}; record episodes of one kind in one file")
        return arrays, notes

    # -- the disk ---------------------------------------------------------------------------------

    def _place_beside(self) -> Path:
        """A name that is free; says of recordings that were cut off."""
        for number in count():
            dash = f"-{number}" if number else ""
            partial = self.path.with_name(f"{self.path.stem}.partial{dash}{self.path.suffix}")
            if not partial.exists():
                return partial
            log.warning(
                f"an earlier recording that was cut off, or is going on, lies in {partial}; give "
                "it another name to use it"
            )
        raise AssertionError

    def _check_space(self, needed: int, notes: Mapping[str, Any] | None = None) -> None:
        needed += sum(len(str(value)) for value in (notes or {}).values()) + MARGIN_BYTES
        if shutil.disk_usage(self.path.parent).free < needed:
            raise disk_full(self.path, needed)


def _keep_metadata(file: h5py.File) -> None:
    """Have HDF5 keep in memory what it knows of a file: 0.2 MB for an episode of 16 arrays."""
    config = file.id.get_mdc_config()
    config.evictions_enabled = False
    config.incr_mode = config.flash_incr_mode = config.decr_mode = 0  # which goes with it
    file.id.set_mdc_config(config)


def _check_names(trajectory: Mapping[str, Any], place: str) -> None:
    if not isinstance(trajectory, Mapping):
        raise ValueError(f"{place} is a {type(trajectory).__name__}; give a dict of arrays")
    for key in trajectory:
        parts = key.split("/") if isinstance(key, str) else [""]
        if {"", ".", ".."} & set(parts) or "\0" in key:
            raise ValueError(
                f"{place}: {key!r:.80} is no name of an array; give one such as actions, obs/joints"
            )
        groups = {"/".join(parts[:depth]) for depth in range(1, len(parts))}
        for both in groups & trajectory.keys():
            raise ValueError(f"{place}: {both} cannot be an array and hold {key}; rename one")


def _as_stored(key: str, array: np.ndarray, place: str) -> np.ndarray:
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{place} holds no numbers ({array.dtype})")
    if array.ndim == 0 or not array.size:
        raise ValueError(f"{place} has no steps (shape {list(array.shape)})")
    wrong = np.argwhere(~np.isfinite(array))
    if len(wrong):
        raise ValueError(f"{place} holds NaN or infinity at step {wrong[0, 0]}; mend it")
    if key == "states" or array.dtype.kind in "iu":
        return array
    with np.errstate(over="ignore"):
        stored = array.astype(np.float32)
    wrong = np.argwhere(~np.isfinite(stored))
    if len(wrong):
        raise ValueError(
            f"{place} holds a value beyond what float32 can hold at step {wrong[0, 0]}; scale it"
        )
    return stored


def _kind_and_shape(array: np.ndarray) -> tuple[str, tuple[int, ...]]:
    return str(array.dtype), array.shape[1:]


def _words(step: tuple[str, tuple[int, ...]] | None) -> str:
    return f"{step[0]} {list(step[1])}" if step else ""


def _create(group: h5py.Group, key: str, array: np.ndarray) -> None:
    """An array with checksums, in one chunk unless it is large."""
    rows = max(1, CHUNK_BYTES // max(1, array[0].nbytes))
    chunks = (min(len(array), rows), *array.shape[1:])
    group.create_dataset(key, data=array, chunks=chunks, fletcher32=True)
