"""Diffusion Policy's replay buffers (Chi et al., 2023, arXiv:2303.04137): groups in zarr's format,
``data/KEY`` ``[N, ...]`` with all steps, and ``meta/episode_ends``."""

import logging
import zipfile
from itertools import pairwise
from pathlib import Path

import numpy as np

from offrl.data.arrays import Part
from offrl.data.formats.hdf5 import located
from offrl.data.formats.zarr_array import ZarrArray, ZarrGroup
from offrl.data.separate import SeparateArrays

log = logging.getLogger(__name__)

ENDS = "meta/episode_ends"
# Keys of other names than ``obs/KEY``.
KEYS = {
    "action": "actions",
    "actions": "actions",
    "reward": "rewards",
    "rewards": "rewards",
    "done": "dones",
    "dones": "dones",
    "timestamp": "timestamp",
}


class ReplayBufferEpisodes(SeparateArrays):
    """The episodes in a folder ``NAME.zarr`` or a file ``NAME.zarr.zip``. ``actions`` are
    ``action``, and what is no reward or the like is an observation of the same name."""

    layout = "Diffusion Policy"

    def __init__(self, path: Path):
        super().__init__()
        self.path = path
        self._group = ZarrGroup(path)
        if self._group.has("zarr.json"):
            remedy = "write it again with zarr_format=2"
            raise ValueError(f"{path}: is in zarr's format 3, and offrl reads format 2; {remedy}")
        if not self._group.has(f"{ENDS}/.zarray"):
            has = ", ".join(self._group.names) or "no arrays"
            raise ValueError(f"{path}: has no {ENDS}, as Diffusion Policy's data has; it has {has}")
        ends = ZarrArray(self._group, ENDS)
        self._names = self._ranges = self._episodes(ends.rows(0, len(ends)), ends.dtype)
        self._columns: dict[str, ZarrArray] = {}
        for name in self._group.names:
            group, _, own = name.partition("/")
            if group == "data":
                key = KEYS.get(own, f"obs/{own}")
                if key in self._columns:
                    raise ValueError(f"{path}: {name} and another would both be {key}; drop one")
                self._columns[key] = ZarrArray(self._group, name)
        if "actions" not in self._columns:
            has = ", ".join(self._group.names) or "no arrays"
            raise ValueError(f"{path}: has no data/action; it has {has}")
        for array in self._columns.values():
            self._check_length(array)

    def close(self) -> None:
        super().close()
        self._group.close()

    def keys(self, demo: str) -> dict[str, ZarrArray]:
        return self._columns

    def unread(self) -> list[str]:
        read = {array.place.rpartition(": ")[2] for array in self._columns.values()}
        return sorted({*self._group.names} - read - {ENDS})

    def _open(self, demo: str, key: str) -> Part:
        steps = self._ranges[demo]
        return Part(self.place_of(demo, key), steps.start, len(steps))

    def _episodes(self, ends: np.ndarray, kind: np.dtype) -> dict[str, range]:
        """Return the rows of each episode, by its name."""
        is_list = ends.ndim == 1 and kind.kind in "iu" and len(ends) > 0
        if not is_list or (np.diff(ends.astype(np.int64), prepend=0) < 0).any():
            words = "is no list of the ends of episodes in ascending order; copy the data again"
            raise ValueError(f"{self.path}: {ENDS} {words}")
        parts = pairwise([0, *ends.tolist()])
        return {f"demo_{i}": range(*part) for i, part in enumerate(parts)}

    def _check_length(self, array: ZarrArray) -> None:
        last = [*self._ranges.values()][-1].stop
        words = f"has {len(array)} rows, but the last episode ends at {last}"
        if len(array) < last:
            raise ValueError(f"{array.place} {words}; copy the data again")
        if len(array) > last:  # a recording that was cut off
            log.warning(f"{array.place} {words}: those behind it are left out")


def is_replay_buffer(path: Path) -> bool:
    """Say whether a folder or a zip file is a group in zarr's format 2 or 3."""
    marks = (f"{ENDS}/.zarray", ".zgroup", "zarr.json")
    if path.is_dir():
        return any((path / mark).is_file() for mark in marks)
    if not zipfile.is_zipfile(path):
        return False
    with located(path, "the list of its files"), zipfile.ZipFile(path) as file:
        return not {*marks}.isdisjoint(file.namelist())
