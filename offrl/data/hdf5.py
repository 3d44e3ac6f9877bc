"""Reading robomimic's HDF5 layout: ``data/demo_N/{actions, rewards, dones, states, obs/KEY}``.

Reads go through h5py's low-level interface: a data set of short demonstrations is thousands of
small arrays, and the high-level one spends twice the time of the read itself on each. Every
error names file, demonstration and key.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np


class DemoFile:
    """An open, validated file of demonstrations. A context manager."""

    def __init__(self, path: str | Path, swmr: bool = False):
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"{path}: no such dataset (train.data, or --dataset)")
        self._file = _open(self.path, swmr)
        if "data" not in self._file or not len(self._file["data"]):
            raise ValueError(f"{path}: no demonstrations: the group data/ is missing or empty")
        self._groups: dict[str, h5py.h5g.GroupID] = {}

    def __enter__(self) -> DemoFile:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self._groups.clear()
        self._file.close()

    @property
    def env_args(self) -> dict[str, Any] | None:
        """What ``make_env`` needs to build the recording environment, if the file says."""
        text = self._file["data"].attrs.get("env_args")
        try:
            return None if text is None else json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{self.path}: the attribute env_args of data is not JSON ({error}); mend it, or "
                "delete it and train with experiment.rollout.enabled=false"
            ) from None

    def demos(self, filter_key: str | None = None, limit: int | None = None) -> list[str]:
        """Names of the demonstrations, of those under ``mask/filter_key`` if given, in the order
        of the number in ``demo_N``; the first ``limit`` of them."""
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

    def best(self, demos: Sequence[str], share: float) -> list[str]:
        """The ``share`` of the demonstrations with the highest sums of rewards, in their order; of
        equal ones the first."""
        missing = [demo for demo in demos if not self.has(demo, "rewards")]
        if missing:
            raise ValueError(
                f"{self.path}: {missing[0]} has no rewards, by which train.data.top_share chooses; "
                "label the data, or leave that out"
            )
        returns = [self._file[f"data/{demo}/rewards"][()].sum() for demo in demos]
        ranked = np.argsort(-np.array(returns), kind="stable")[: math.ceil(share * len(demos))]
        return [demos[i] for i in sorted(ranked)]

    def has(self, demo: str, key: str) -> bool:
        return f"data/{demo}/{key}" in self._file

    def lengths(self, demos: Sequence[str], key: str = "actions") -> np.ndarray:
        """Number of steps of each demonstration, by the length of ``key``."""
        return np.array([self._dataset(demo, key).shape[0] for demo in demos])

    def shape(self, demo: str, key: str) -> tuple[int, ...]:
        """Shape of one step."""
        return self._dataset(demo, key).shape[1:]

    def holds_integers(self, demo: str, key: str) -> bool:
        return self._dataset(demo, key).dtype.kind in "iu"

    def check(self, demos: Sequence[str], key: str, lengths: np.ndarray) -> None:
        """``ValueError`` for a key that a demonstration lacks, a length that differs from that of
        the actions, a shape that differs between demonstrations, or values that are no numbers."""
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
        """``[sum(lengths), ...]`` of ``key`` over ``demos``: uint8 as it is, all else float32.

        Raises as ``check`` does, and for values that are not finite.
        """
        self.check(demos, key, lengths)
        kind = np.uint8 if self._dataset(demos[0], key).dtype == np.uint8 else np.float32
        rows = np.empty((int(lengths.sum()), *self.shape(demos[0], key)), dtype=kind)
        start = 0
        for demo, length in zip(demos, lengths, strict=True):
            part = rows[start : start + length]
            self._dataset(demo, key).read(h5py.h5s.ALL, h5py.h5s.ALL, part)
            start += length
        self._check_finite(rows, demos, key, lengths)
        return rows

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
        """Steps ``start:stop`` of one demonstration, for data that stays in the file."""
        rows = self._file[f"data/{demo}/{key}"][start:stop]
        rows = rows if rows.dtype == np.uint8 else rows.astype(np.float32)
        self._check_finite(rows, [demo], key, np.array([len(rows)]), start)
        return rows

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

    def _check_finite(
        self,
        rows: np.ndarray,
        demos: Sequence[str],
        key: str,
        lengths: np.ndarray,
        first_step: int = 0,
    ) -> None:
        # One sum is the cheap test for all: any NaN or infinity makes it not finite.
        if rows.dtype == np.uint8 or np.isfinite(np.sum(rows, dtype=np.float64)):
            return
        row = int(np.argwhere(~np.isfinite(rows))[0, 0])
        ends = np.cumsum(lengths)
        demo = int(np.searchsorted(ends, row, side="right"))
        step = first_step + row - int(ends[demo] - lengths[demo])
        raise ValueError(
            f"{self.path}: data/{demos[demo]}/{key} holds NaN or infinity at step {step}; remove "
            "the demo or use a filter key"
        )


def _open(path: Path, swmr: bool) -> h5py.File:
    # A file that this process has open already can only be opened in the same mode.
    modes = (True, False) if swmr else (False, True)
    for mode in modes:
        try:
            return h5py.File(path, "r", swmr=mode)
        except OSError as failed:
            error = failed
    raise ValueError(
        f"{path}: not a readable HDF5 file ({error}); it may be cut off: copy it again"
    )


def fingerprint(paths: Iterable[str | Path]) -> str:
    """A hash of files by size and 64 evenly spaced blocks: as quick for 50 GB as for 5 MB."""
    digest = hashlib.sha256()
    for path in paths:
        size = os.path.getsize(path)
        digest.update(str(size).encode())
        with open(path, "rb") as file:
            for i in range(64):
                file.seek(size * i // 64)
                digest.update(file.read(65536))
    return digest.hexdigest()[:16]
