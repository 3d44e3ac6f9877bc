"""Reading robomimic's HDF5 layout: ``data/demo_N/{actions, rewards, dones, states, obs/KEY}``.

Reads go through h5py's low-level interface: a data set of short demonstrations is thousands of
small arrays, and the high-level one spends twice the time of the read itself on each. Every
error names file, demonstration and key.
"""

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from offrl.data.demos import Demos


class DemoFile(Demos):
    """An open, validated file of demonstrations."""

    root = "data/"

    def __init__(self, path: str | Path, swmr: bool = False):
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"{path}: no such dataset (train.data, or --dataset)")
        self._file = open_hdf5(self.path, swmr)
        if "data" not in self._file or not len(self._file["data"]):
            raise ValueError(f"{path}: no demonstrations: the group data/ is missing or empty")
        self._groups: dict[str, h5py.h5g.GroupID] = {}

    def close(self) -> None:
        self._groups.clear()
        self._file.close()

    @property
    def env_args(self) -> dict[str, Any] | None:
        text = self._file["data"].attrs.get("env_args")
        try:
            return None if text is None else json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{self.path}: the attribute env_args of data is not JSON ({error}); mend it, or "
                "delete it and train with experiment.rollout.enabled=false"
            ) from None

    def demos(self, filter_key: str | None = None, limit: int | None = None) -> list[str]:
        if filter_key is None:
            names = list(self._file["data"])
        else:
            masks = self._file.get("mask", {})
            if filter_key not in masks:
                raise ValueError(
                    f"{self.path}: no filter key {filter_key!r} (mask/{filter_key}); "
                    f"the file has: {', '.join(masks) or 'none'}; name one of them, or use all "
                    "demonstrations (train.hdf5_filter_key=null)"
                )
            names = list(masks[filter_key].asstr()[()])
            missing = sorted(set(names) - set(self._file["data"]))
            if missing or not names:
                what = f"names missing demos: {', '.join(missing)}" if missing else "is empty"
                raise ValueError(f"{self.path}: filter key mask/{filter_key} {what}")
        try:
            names.sort(key=lambda name: int(name.rpartition("_")[2]))
        except ValueError:
            raise ValueError(
                f"{self.path}: demonstrations must be named demo_0, demo_1, ...; "
                f"found {', '.join(names[:3])}"
            ) from None
        return names[:limit]

    def has(self, demo: str, key: str) -> bool:
        return f"data/{demo}/{key}" in self._file

    def lengths(self, demos: Sequence[str], key: str = "actions") -> np.ndarray:
        return np.array([self._dataset(demo, key).shape[0] for demo in demos])

    def check(self, demos: Sequence[str], key: str, lengths: np.ndarray) -> None:
        shape = self.shape(demos[0], key)
        for demo, length in zip(demos, lengths, strict=True):
            dataset = self._dataset(demo, key)
            if dataset.shape != (length, *shape):
                raise ValueError(
                    f"{self.path}: data/{demo}/{key} has shape {list(dataset.shape)}, but the "
                    f"demo's actions and the other demos ask for {[int(length), *shape]}"
                )
            if dataset.dtype.kind not in "fiub":
                raise ValueError(f"{self.path}: data/{demo}/{key} holds no numbers")

    def read(self, demos: Sequence[str], key: str, lengths: np.ndarray) -> np.ndarray:
        self.check(demos, key, lengths)
        kind = np.uint8 if self._dataset(demos[0], key).dtype == np.uint8 else np.float32
        rows = np.empty((int(lengths.sum()), *self.shape(demos[0], key)), dtype=kind)
        for demo, part in zip(demos, np.split(rows, np.cumsum(lengths)[:-1]), strict=True):
            self._dataset(demo, key).read(h5py.h5s.ALL, h5py.h5s.ALL, part)
        return self._numbers(rows, demos, key, lengths)

    def recording(self, demo: str) -> dict[str, Any]:
        """One demonstration with what plays it back: every array by its path, and ``model_file``.

        Raises ``ValueError`` if the simulator's states or model were not recorded.
        """
        group = self._file[f"data/{demo}"]
        if "states" not in group or "model_file" not in group.attrs:
            raise ValueError(
                f"{self.path}: data/{demo} cannot be played back: it lacks states or the attribute "
                "model_file; record with the simulator's states"
            )
        arrays: dict[str, Any] = {"model_file": group.attrs["model_file"]}
        group.visititems(
            lambda path, item: arrays.update({path: item[()]} if hasattr(item, "dtype") else {})
        )
        return arrays

    def read_rows(self, demo: str, key: str, start: int, stop: int) -> np.ndarray:
        rows = self._file[f"data/{demo}/{key}"][start:stop]
        return self._numbers(rows, [demo], key, [len(rows)], start)

    def _dataset(self, demo: str, key: str) -> h5py.h5d.DatasetID:
        if demo not in self._groups:
            self._groups[demo] = h5py.h5g.open(self._file.id, f"data/{demo}".encode())
        try:
            return h5py.h5d.open(self._groups[demo], key.encode())
        except KeyError:
            group, _, name = key.rpartition("/")
            inside = sorted(self._file[f"data/{demo}"].get(group or ".", {}))
            raise ValueError(
                f"{self.path}: data/{demo} has no {key!r}; it has "
                f"{', '.join(f'{group}/{k}' if group else k for k in inside) or 'nothing there'}"
            ) from None


def open_hdf5(path: Path, swmr: bool = False) -> h5py.File:
    """The file, to read; ``ValueError`` if it is not one of HDF5."""
    # A file that this process has open already can only be opened in the same mode.
    for mode in (swmr, not swmr):
        try:
            return h5py.File(path, "r", swmr=mode)
        except OSError as failed:
            error = failed
    raise ValueError(
        f"{path}: not a readable HDF5 file ({error}); it may be cut off: copy it again"
    )


def fingerprint(paths: Iterable[str | Path]) -> str:
    """A hash of files, also of those in folders, by size and 64 evenly spaced blocks: as quick for
    50 GB as for 5 MB."""
    digest = hashlib.sha256()
    inside = [sorted(Path(p).rglob("*")) if os.path.isdir(p) else [p] for p in paths]
    for path in filter(os.path.isfile, itertools.chain(*inside)):
        size = os.path.getsize(path)
        digest.update(str(size).encode())
        with open(path, "rb") as file:
            for i in range(64):
                file.seek(size * i // 64)
                digest.update(file.read(65536))
    return digest.hexdigest()[:16]
