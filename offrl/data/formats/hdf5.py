"""robomimic's HDF5 layout: ``data/demo_N/{actions, rewards, dones, states, obs/KEY}``.

Arrays are read through h5py's low-level interface: short demonstrations are thousands of small
arrays, and the high-level one takes twice the time of the read. Errors name the place.
"""

import json
import logging
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from offrl.data.formats.external import linked_files
from offrl.data.recent import Recent
from offrl.data.remarks import wrong_env_args
from offrl.data.separate import SeparateArrays
from offrl.data.storage import NO_CACHE, StoredArray, arrays_below, unreadable
from offrl.memory import check_memory
from offrl.processes import is_explained

log = logging.getLogger(__name__)

OWN_ATTRIBUTES = ("num_samples", "text_crc32")  # of a demonstration: computed from the rest
MOST_GROUPS = 1024  # that stay open
NAME_BYTES = 100  # of memory per name, besides its letters
OF_DATA = ("env_args", "provenance", "total", "text_crc32")  # attributes that are handled apart


class DemoFile(SeparateArrays):
    """An open, validated file of demonstrations."""

    root = "data/"
    layout = "robomimic"

    def __init__(self, path: str | Path, swmr: bool = False):
        super().__init__()
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"{path}: no such dataset (train.data, or --dataset)")
        self._file = open_hdf5(self.path, swmr)
        self.external = self._file.external
        self._groups: Recent[h5py.h5g.GroupID] = Recent(MOST_GROUPS)
        with located(self.path, "data"):
            data = self._file.get("data")
            if not isinstance(data, h5py.Group) or not len(data):
                raise ValueError(f"{path}: no demonstrations: the group data/ is missing or empty")

    def close(self) -> None:
        super().close()
        self._groups.clear()
        self._file.close()

    @property
    def env_args(self) -> dict[str, Any] | None:
        with located(self.path, "the attribute env_args of data"):
            text = self._file["data"].attrs.get("env_args")
        try:
            env_args = None if text is None else json.loads(text)
            wrong = wrong_env_args(env_args)
        except (ValueError, TypeError, RecursionError) as error:
            wrong = f"is not JSON ({error})"
        if wrong:
            remedy = "correct it, or delete it and train with experiment.rollout.enabled=false"
            raise ValueError(f"{self.path}: the attribute env_args of data {wrong}; {remedy}")
        try:
            check_text(self.path, self._file["data"], "data")
        except ValueError as error:
            log.warning(str(error))
        return env_args

    @property
    def dones_are_successes(self) -> bool:
        """True as in robomimic, except for gymnasium's environments, which also end in failure."""
        return (self.env_args or {}).get("type") != 2

    def demos(self, filter_key: str | None = None, limit: int | None = None) -> list[str]:
        with located(self.path, "data"):
            stored = list(self._file["data"])
        names = stored if filter_key is None else self._chosen(filter_key, set(stored))
        try:
            names.sort(key=lambda name: int(name.rpartition("_")[2]))
        except ValueError:
            words = f"demonstrations must be named demo_0, demo_1, ..., not {', '.join(names[:3])}"
            raise ValueError(f"{self.path}: {words}") from None
        return names[:limit]

    def filter_keys(self) -> list[str]:
        with located(self.path, "mask"):
            masks = self._file.get("mask", {})
            if not isinstance(masks, h5py.Group | dict):
                raise ValueError(f"{self.path}: mask is no group of filter keys; delete it")
            return list(masks)

    def mask(self, filter_key: str) -> list[str]:
        """Return the names under ``filter_key`` as they are stored."""
        with located(self.path, f"mask/{filter_key}"):
            mask = self._file.get(f"mask/{filter_key}")
            is_list = isinstance(mask, h5py.Dataset) and mask.ndim == 1
            if not (is_list and h5py.check_string_dtype(mask.dtype)):
                raise ValueError(
                    f"{self.path}: mask/{filter_key} is no list of names of demonstrations; write "
                    "it again, e.g. as numpy.array(['demo_0'], dtype='S')"
                )
            num_bytes = StoredArray(mask.id).nbytes + mask.size * NAME_BYTES
            check_memory(num_bytes, f"{self.path}: mask/{filter_key}")
            return list(mask.asstr()[()])

    def _chosen(self, filter_key: str, stored: set[str]) -> list[str]:
        """Return the demonstrations under a filter key, each once, and log oddities."""
        keys = self.filter_keys()
        if filter_key not in keys:
            raise ValueError(
                f"{self.path}: no filter key {filter_key!r} (mask/{filter_key}); "
                f"the file has: {', '.join(keys) or 'none'}; name one of them, or use all "
                "demonstrations (train.hdf5_filter_key=null, experiment.validate=false)"
            )
        listed = self.mask(filter_key)
        names = list(dict.fromkeys(listed))
        missing = sorted(set(names) - stored)
        if missing or not names:
            what = f"names missing demos: {', '.join(missing)}" if missing else "is empty"
            raise ValueError(f"{self.path}: filter key mask/{filter_key} {what}")
        if len(names) < len(listed):
            twice = next(name for name in names if listed.count(name) > 1)
            words = f"names {twice} more than once; each demonstration is used once"
            log.warning(f"{self.path}: mask/{filter_key} {words}")
        held_out = held_out_key(filter_key)
        if held_out in keys and (shared := sorted(set(names) & set(self.mask(held_out)))):
            log.warning(
                f"{self.path}: mask/{filter_key} and mask/{held_out} share {len(shared)} "
                f"demonstrations ({shared[0]}, ...): what is measured on held-out data is too "
                "good; take them out of one"
            )
        return names

    def keys(self, demo: str) -> list[str]:
        with located(self.path, f"data/{demo}"):
            return [key for key, _ in arrays_below(self._group(demo))]

    def has(self, demo: str, key: str) -> bool:
        links, parts = self._group(demo).links, key.encode().split(b"/")
        with located(self.path, f"data/{demo}/{key}"):
            # A dangling link counts as present; reading reports it.
            return all(links.exists(b"/".join(parts[:i])) for i in range(1, len(parts) + 1))

    def lengths(self, demos: Sequence[str], key: str = "actions") -> np.ndarray:
        lengths = []
        for demo in demos:
            length = recorded = self._open(demo, key).shape[0]
            group, name = self._group(demo), b"num_samples"
            with located(self.path, f"the attribute num_samples of data/{demo}"):
                attribute = h5py.h5a.open(group, name) if h5py.h5a.exists(group, name) else None
                if attribute and attribute.shape is not None:  # else the attribute is empty
                    value = np.empty(attribute.shape, np.int64)
                    attribute.read(value)
                    recorded = int(value.item())
            if recorded != length:
                raise ValueError(
                    f"{self.path}: data/{demo} was recorded with {recorded} steps (num_samples), "
                    f"but its {key} have {length}; copy the file again, or correct that attribute"
                )
            lengths.append(length)
        return np.array(lengths)

    def masks(self) -> dict[str, list[str]]:
        return {key: self.demos(key) for key in self.filter_keys()}

    def stored(self, demo: str, keys: Collection[str] | None = None) -> dict[str, Any]:
        with located(self.path, f"data/{demo}"):
            group = self._group(demo)
            kept = {
                key: value
                for key, value in check_text(self.path, h5py.Group(group), f"data/{demo}").items()
                if key not in OWN_ATTRIBUTES and not isinstance(value, (np.ndarray, h5py.Empty))
            }
            for key, array in arrays_below(group):
                if keys is None or key in keys:
                    kept[key] = array
                self.external |= {(f"data/{demo}/{key}", other) for other in array.external}
        return kept

    def attributes(self, demo: str | None = None) -> dict[str, Any]:
        place = "data" if demo is None else f"data/{demo}"
        with located(self.path, f"the attributes of {place}"):
            return {
                key: value
                for key, value in self._file[place].attrs.items()
                if key not in (OF_DATA if demo is None else OWN_ATTRIBUTES)
                and not isinstance(value, h5py.Empty)
            }

    def unread(self) -> list[str]:
        with located(self.path, "its list of groups"):
            return sorted(set(self._file) - {"data", "mask"})

    def _group(self, demo: str) -> h5py.h5g.GroupID:
        return self._groups.get(demo, lambda: self._open_group(demo))

    def _open_group(self, demo: str) -> h5py.h5g.GroupID:
        with located(self.path, f"data/{demo}"):
            group = h5py.h5o.open(self._file.id, f"data/{demo}".encode())
            if not isinstance(group, h5py.h5g.GroupID):
                raise ValueError(f"{self.path}: data/{demo} is no group of arrays; delete it")
            return group

    def _open(self, demo: str, key: str) -> StoredArray:
        name = f"data/{demo}/{key}".encode()
        try:
            dataset = StoredArray(h5py.h5d.open(self._file.id, name, NO_CACHE))
            if dataset.shape and 0 not in dataset.shape[1:]:
                self.external |= {(f"data/{demo}/{key}", other) for other in dataset.external}
                return dataset
        except Exception:
            with located(self.path, f"data/{demo}/{key}"):
                self._raise_what_is_wrong(demo, key)
                raise
        raise ValueError(
            f"{self.path}: data/{demo}/{key} is not one value or row for each step (shape "
            f"{list(dataset.shape)}); write it again, or leave the demonstration out"
        )

    def _checked(self, demo: str, key: str, shape: tuple[int, ...], dtype: np.dtype) -> StoredArray:
        dataset: StoredArray = super()._checked(demo, key, shape, dtype)
        dataset.check_written()
        return dataset

    def _raise_what_is_wrong(self, demo: str, key: str) -> None:
        """Raise ``ValueError`` that says why a key cannot be opened."""
        self._group(demo)
        group, _, name = key.rpartition("/")
        parent = self._file.get(f"data/{demo}/{group}")
        inside = sorted(parent) if isinstance(parent, h5py.Group) else []
        if name not in inside:
            has = ", ".join(f"{group}/{k}" if group else k for k in inside) or "nothing there"
            if group in ("obs", "next_obs"):
                has += "; a config names what it uses in observation.modalities"
            raise ValueError(f"{self.path}: data/{demo} has no {key!r}; it has {has}")
        link = parent.get(name, getlink=True)
        try:
            item = parent[name]
        except Exception:
            if isinstance(link, h5py.HardLink):
                raise
            target = f"{getattr(link, 'filename', '')} {link.path}".strip()
            raise ValueError(
                f"{self.path}: data/{demo}/{key} is a link to {target}, which leads nowhere; "
                "put that back, or leave the demonstration out"
            ) from None
        if isinstance(item, h5py.Group):
            raise ValueError(f"{self.path}: data/{demo}/{key} is a group, not an array")


def text_sum(attributes: Mapping[str, Any]) -> int:
    """Compute ``text_crc32``, the CRC-32 of text in attributes, for which HDF5 has no checksums."""
    texts = {
        key: value.decode(errors="replace") if isinstance(value, bytes) else value
        for key, value in attributes.items()
        if isinstance(value, str | bytes)
    }
    return zlib.crc32(json.dumps(texts, sort_keys=True).encode())


def check_text(path: str | Path, group: h5py.Group, place: str) -> dict[str, Any]:
    """Return the attributes of a group; ``ValueError`` if text does not match its checksum."""
    with located(path, f"the attributes of {place}"):
        attributes = dict(group.attrs)
    recorded = attributes.get("text_crc32")
    if recorded is not None and not np.array_equal(recorded, text_sum(attributes)):
        raise ValueError(
            f"{path}: the text in the attributes of {place} is not what was recorded: copy the "
            "file again, or, if you edited it, delete the attribute text_crc32 there"
        )
    return attributes


def attributes_of_data(file: h5py.File) -> Mapping[str, Any]:
    """Return the attributes of ``data``, or none if it is no group in this very file."""
    is_own = isinstance(file.get("data", getlink=True), h5py.HardLink)
    data = file["data"] if is_own else None
    return data.attrs if isinstance(data, h5py.Group) else {}


def held_out_key(filter_key: str) -> str:
    """Return the filter key of held-out demonstrations that belongs to that of the training."""
    head, train, tail = filter_key.rpartition("train")
    return f"{head}valid{tail}" if train else ""


@contextmanager
def located(path: str | Path, place: str) -> Iterator[None]:
    """Turn HDF5's exceptions, which are of many types, into a ``ValueError`` with place and remedy.
    offrl's own errors, which begin with a path, pass unchanged."""
    try:
        yield
    except Exception as error:
        if str(error).startswith((f"{path}: ", f"{path}/")) and is_explained(error):
            raise
        raise unreadable(path, place, error) from None


def open_array(path: str | Path, file: h5py.File, place: str) -> StoredArray:
    """Open the array at a place in a file. Raises ``ValueError`` unless it has a row for each step,
    all of which were written."""
    group, _, name = place.rpartition("/")
    with located(path, place):
        parent = file.get(group or "/")
        inside = sorted(parent) if isinstance(parent, h5py.Group) else []
        if name not in inside:
            has = ", ".join(inside) or "nothing there"
            raise ValueError(f"{path}: has no {place}; it has {has}")
        item = parent.get(name)
        if not isinstance(item, h5py.Dataset):
            what = "a group, not an array" if isinstance(item, h5py.Group) else "a link to nothing"
            raise ValueError(f"{path}: {place} is {what}")
        array = StoredArray(h5py.h5d.open(file.id, place.encode(), NO_CACHE))
        if not array.shape or 0 in array.shape[1:]:
            words = f"is not one value or row for each step (shape {list(array.shape)})"
            raise ValueError(f"{path}: {place} {words}; write it again")
        array.check_written()
        return array


class CheckedFile(h5py.File):
    """An HDF5 file open for reading. ``external``: its links to other files, and those files."""

    external: set[tuple[str, Path]]


def open_hdf5(path: Path, swmr: bool = False) -> CheckedFile:
    """Open a file for reading; ``ValueError`` if it is no HDF5 file, or links to files that may not
    be read. swmr: also while another program writes it ("single writer, multiple readers")."""
    file = open_unchecked(path, swmr)
    try:
        file.external = {*linked_files(file).items()}
    except ValueError:
        file.close()
        raise
    return file


def open_unchecked(path: Path, swmr: bool = False) -> CheckedFile:
    """Open a file without checking its links."""
    try:
        return CheckedFile(path, "r")
    except OSError as failed:
        error = failed
    # Only if needed: with SWMR, HDF5 waits for ever if metadata is damaged.
    if swmr and "already open" in str(error):
        with located(path, "the file"):
            return CheckedFile(path, "r", swmr=True)
    words = f"not a readable HDF5 file ({error}); it may be cut off: copy it again"
    if "unable to lock file" in str(error):
        words = "another program is writing it; wait until that has ended"
    elif isinstance(error, PermissionError):
        words = "may not be read by you; ask for the right to read it"
    raise ValueError(f"{path}: {words}")
