"""The writer of data sets in robomimic's layout, one episode at a time."""

import json
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np

from offrl.data import storage
from offrl.data.arrays import StepArray
from offrl.data.formats.hdf5 import OWN_ATTRIBUTES, located, text_sum
from offrl.data.remarks import wrong_values
from offrl.data.storage import CHUNK_BYTES, COMPRESSIONS, StoredArray, create, kind_of_step
from offrl.memory import check_memory
from offrl.outputs import DiskFull, check_space, explained_errors, new_file, put

log = logging.getLogger(__name__)
T = TypeVar("T")

METADATA_BYTES = 2**11  # of an array, at most


class DemoWriter(AbstractContextManager):
    """Writes demonstrations to an HDF5 file, as
    ``data/demo_N/{actions, rewards, dones, states, obs/KEY}``. It is a context manager.

    Numbers are stored as float32, except integers (images, discrete actions) and simulator states
    (float64, for playback), with HDF5's checksums (``fletcher32``). The file appears under its name
    when it is complete; none is overwritten. Until then ``NAME.partial.hdf5`` beside it is a valid
    file of all finished episodes, which stays there if the recording is cut off.

    path: the new file.
    env_args: the arguments of ``make_env`` for the environment, if there is one.
    compression: ``png`` or ``jpeg`` (for images only), ``gzip``, ``lzf``, or ``None``.
    provenance: the origin of the file (``offrl.data.provenance``); an attribute of ``data``.
    resume: continue a recording to this path that was cut off, if there is one.
    durable: keep finished episodes even if the process is killed; false is faster.
    chunk_bytes: the size of chunks, which are read and checked at once; at least one step.
    """

    def __init__(
        self,
        path: str | Path,
        env_args: Mapping[str, Any] | None = None,
        *,
        compression: str | None = None,
        provenance: Mapping[str, Any] | None = None,
        resume: bool = False,
        durable: bool = True,
        chunk_bytes: int = CHUNK_BYTES,
    ):
        if env_args is not None and not isinstance(env_args, Mapping):
            raise ValueError(f"{path}: env_args is {env_args!r:.80}, not a map with env_name")
        if compression not in (None, *COMPRESSIONS):
            raise ValueError(f"{path}: compression is {compression!r}, none of {COMPRESSIONS}")
        given = {"env_args": env_args, "provenance": provenance}
        try:
            notes = {k: json.dumps(value, indent=4) for k, value in given.items() if value}
        except (TypeError, ValueError) as error:
            words = f"env_args cannot be text ({error}); give plain values"
            raise ValueError(f"{path}: {words}") from None
        self.path = new_file(path)
        self.compression, self.chunk_bytes = compression, chunk_bytes
        self._partial, is_there = self._place_beside(resume)
        self._check_space(0, notes)
        self._steps: dict[str, str] = {}  # type and shape of each key's
        self.num_demos = self._total = 0
        # _is_kept: finished episodes stay if the recording is cut off.
        self._is_durable = self._is_kept = durable
        try:
            self._open(notes, is_there)
        except BaseException:
            if not is_there:
                self._partial.unlink(missing_ok=True)
            raise

    def _open(self, notes: Mapping[str, str], is_there: bool) -> None:
        with explained_errors(self.path):
            if not is_there:
                # In an older format, a file that was never closed can be opened; in a newer one,
                # single chunks need no index, and metadata has checksums.
                h5py.File(self._partial, "x", libver=("v108", "v110")).close()
            with located(self._partial, "what was recorded before"):
                self._file = h5py.File(self._partial, "r+", libver=("v110", "v110"))
            if self._is_durable:
                # HDF5 keeps the file's metadata in memory: 0.2 MB per episode.
                config = self._file.id.get_mdc_config()
                config.evictions_enabled = False
                config.incr_mode = config.flash_incr_mode = config.decr_mode = 0  # needed for that
                self._file.id.set_mdc_config(config)
        self._data = self._file.require_group("data")
        if is_there:
            self._go_on(notes)
        elif notes:
            # Fixed-length text is covered by checksums; other text is in a heap without any.
            self._set_notes({key: np.bytes_(text) for key, text in notes.items()})
        self._file.flush()

    def annotate(self, /, **attributes: Any) -> None:
        """Write attributes of ``data``, which describe the whole file."""
        self._change(lambda: self._set_notes(attributes))

    def _set_notes(self, notes: Mapping[str, Any]) -> None:
        self._data.attrs.update(notes)
        self._data.attrs["text_crc32"] = text_sum(self._data.attrs)

    def _go_on(self, notes: Mapping[str, str]) -> None:
        """Continue a recording that was cut off; ``ValueError`` if it is of another kind."""
        with located(self._partial, "what was recorded before"):
            found = {key: self._data.attrs.get(key) for key in ("env_args", "provenance")}
            before = {key: text.decode() for key, text in found.items() if text is not None}
            demos = [f"demo_{i}" for i in range(len(self._data))]
            lengths = [int(self._data[demo].attrs["num_samples"]) for demo in demos]
            last = dict(storage.arrays_below(self._data[demos[-1]].id)) if demos else {}
        if before != notes:
            self._file.close()
            raise ValueError(
                f"{self._partial}: was cut off in another recording (of another environment, or "
                "with other options); give it another name, or do as it was done then"
            )
        self._total, self.num_demos = sum(lengths), len(demos)
        self._steps = {key: kind_of_step(array) for key, array in last.items()}

    @contextmanager
    def repeatable(self, *errors: type[Exception]) -> Iterator[None]:
        """Keep nothing after ``errors`` or on a full disk: a command can record it again."""
        try:
            yield
        except Exception as error:
            self._is_kept &= not isinstance(error, (DiskFull, *errors))
            raise

    def write(self, trajectory: Mapping[str, Any], /, **attributes: Any) -> str:
        """Add one episode, ``{"actions": [T, A], "obs/KEY": [T, ...], ...}``, and return its name.
        Strings and numbers become attributes, as do ``attributes``; HDF5 datasets are copied.

        Raises ``ValueError``, and adds nothing, for data that cannot be trained on: lists, NaN,
        arrays of unequal lengths, or of other shapes than in earlier episodes.
        """
        name = f"demo_{self.num_demos}"
        arrays, notes = self._checked(name, trajectory)
        notes |= attributes | {"num_samples": len(arrays["actions"])}
        sizes = (x.bytes_on_disk if isinstance(x, StepArray) else x.nbytes for x in arrays.values())
        size = sum(num_bytes + METADATA_BYTES for num_bytes in sizes)
        self._check_space(size, notes)
        # Nothing refers to the episode until all of it is in the file.
        demo = self._data.create_group(None)
        for key, array in arrays.items():
            if isinstance(array, StoredArray):
                demo.copy(array.dataset, demo, key)
            else:
                create(demo, key, array, self.compression, self.chunk_bytes)
        for key, value in notes.items():
            try:
                demo.attrs[key] = value
            except (TypeError, ValueError) as error:
                raise ValueError(f"{self.path}: {name}: the attribute {key!r}: {error}") from None
        demo.attrs["text_crc32"] = text_sum(demo.attrs)
        self._change(lambda: self._data.__setitem__(name, demo))
        self._steps = {key: kind_of_step(array) for key, array in arrays.items()}
        self._total += len(arrays["actions"])
        self.num_demos += 1
        return name

    def _change(self, change: Callable[[], object]) -> None:
        """Change the file's metadata so that a kill cannot tear it, although HDF5 writes several
        times: a child process, which signals to this one do not reach, makes the change first; then
        this process, which has not read that, writes the same bytes."""
        if not self._is_durable:
            change()
            return
        self._file.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads; it starts none
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
        """Write a filter key: a name for the demonstrations ``demos``."""
        check_filter_key(self.path, filter_key)
        strange = [name for name in demos if name not in self._data]
        if strange or not len(demos):
            what = f"there is no {strange[0]}" if strange else "it names no demonstration"
            raise ValueError(f"{self.path}: mask/{filter_key}: {what}; name recorded ones")
        names = np.array(demos, dtype="S")
        self._check_space(names.nbytes + METADATA_BYTES)
        self._change(lambda: create(self._file, f"mask/{filter_key}", names))

    def write_split(self, valid_fraction: float = 0.1, seed: int = 0) -> None:
        """Split the demonstrations at random (``split``) into ``mask/train`` and ``mask/valid``."""
        demos = [f"demo_{i}" for i in range(self.num_demos)]
        for key, part in zip(("train", "valid"), split(demos, valid_fraction, seed), strict=True):
            if part:
                self.write_mask(key, part)

    def __exit__(self, kind: Any, *_: Any) -> None:
        is_free = not self.path.exists()  # another program may have made it
        try:
            with explained_errors(self.path):
                self._change(lambda: self._data.attrs.__setitem__("total", self._total))
                self._file.close()
                if kind is None and is_free and self.num_demos:
                    put(self._partial, self.path)
                    return
        except BaseException:
            if not self._is_kept:
                self._partial.unlink(missing_ok=True)
            raise
        if self.num_demos and self._is_kept:
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

    # -- checks of an episode ---------------------------------------------------------------

    def _checked(self, name: str, trajectory: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Return the arrays of an episode as they are stored, and its attributes."""
        arrays, notes = {}, {}
        place = f"{self.path}: {name}"
        if not isinstance(trajectory, Mapping):
            raise ValueError(f"{place} is a {type(trajectory).__name__}; give a dict of arrays")
        for key, value in trajectory.items():
            parts = key.split("/") if isinstance(key, str) else [""]
            if {"", ".", ".."} & set(parts) or "\0" in key:
                words = "is no name of an array; give one such as actions, obs/joints"
                raise ValueError(f"{place}: {key!r:.80} {words}")
            groups = {"/".join(parts[:depth]) for depth in range(1, len(parts))}
            for both in groups & trajectory.keys():
                raise ValueError(f"{place}: {both} cannot be an array and hold {key}; rename one")
            value = StoredArray(value.id) if isinstance(value, h5py.Dataset) else value
            if isinstance(value, (np.ndarray, StepArray)):
                arrays[key] = _as_stored(key, value, f"{place}/{key}")
            elif key in OWN_ATTRIBUTES:
                continue
            elif isinstance(value, str | bytes | int | float | np.generic):
                notes[key] = value
            else:
                words = "give an array with a row for each step, e.g. numpy.stack(rows)"
                raise ValueError(f"{place}/{key} is a {type(value).__name__}; {words}")
        if "actions" not in arrays:
            raise ValueError(f"{place} has no actions")
        for key in {"rewards", "dones"} & arrays.keys():
            if math.prod(arrays[key].shape[1:]) != 1:
                raise ValueError(f"{place}/{key} is to be one number for each step")
        if "dones" in arrays and not np.isin(arrays["dones"][:], (0, 1)).all():
            raise ValueError(f"{place}/dones is to be 0 or 1 at each step")
        steps, length = {k: kind_of_step(x) for k, x in arrays.items()}, len(arrays["actions"])
        before = self._steps or steps
        for key in sorted(steps.keys() | before.keys()):
            if key in arrays and len(arrays[key]) != length:
                words = f"has {len(arrays[key])} steps, but actions {length}; give both as many"
                raise ValueError(f"{place}/{key} {words}")
            has, others = steps.get(key), before.get(key)
            if has != others:
                what = "is missing, which the episodes before have"
                if has and others:
                    what = f"has steps of {has}, but the episodes before {others}"
                elif has:
                    what = "is in none of the episodes before"
                raise ValueError(f"{place}/{key} {what}; record episodes of one kind in one file")
        return arrays, notes

    # -- the disk ---------------------------------------------------------------------------------

    def _place_beside(self, resume: bool) -> tuple[Path, bool]:
        """Choose the file to record to: a free name, or with ``resume`` an earlier recording.
        Returns it and whether it exists; logs recordings that were cut off."""
        for number in count():
            dash = f"-{number}" if number else ""
            partial = self.path.with_name(f"{self.path.stem}.partial{dash}{self.path.suffix}")
            if resume or not partial.exists():
                return partial, partial.exists()
            words = f"or is going on, lies in {partial}; give it another name to use it"
            log.warning(f"an earlier recording that was cut off, {words}")
        raise AssertionError

    def _check_space(self, needed: int, notes: Mapping[str, Any] | None = None) -> None:
        check_space(self.path, needed + sum(len(str(value)) for value in (notes or {}).values()))


def split(demos: Sequence[T], valid_fraction: float, seed: int) -> tuple[list[T], list[T]]:
    """Split demonstrations at random for training and validation (at least one each), in order."""
    order = np.random.default_rng(seed).permutation(len(demos))
    num_valid = max(round(valid_fraction * len(demos)), int(len(demos) > 1))
    train, valid = sorted(order[num_valid:]), sorted(order[:num_valid])
    return [demos[i] for i in train], [demos[i] for i in valid]


def check_filter_key(path: str | Path, name: str) -> None:
    """Raise ``ValueError`` for an invalid name of a filter key."""
    if not name or "/" in name or "\0" in name:
        raise ValueError(f"{path}: {name!r} is no name of a filter key; give one without /")


def _as_stored(key: str, array: Any, place: str) -> Any:
    """Return an array in its stored form; ``ValueError`` if it cannot be trained on."""
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{place} holds no numbers ({array.dtype})")
    if not array.shape or not math.prod(array.shape):
        raise ValueError(f"{place} has no steps (shape {list(array.shape)})")
    if isinstance(array, StoredArray):
        # Content in other files is copied, too.
        return array.read() if array.dataset.is_virtual else array
    if isinstance(array, StepArray):
        check_memory(array.nbytes, place)
        array = array.read()
    if array.dtype.kind in "iu":
        return array
    if words := wrong_values(key, array, 0):
        raise ValueError(f"{place} {words}; correct or scale it")
    return array if key == "states" else array.astype(np.float32)
