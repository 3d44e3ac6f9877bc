"""D4RL's HDF5 layout (Fu et al., 2020, arXiv:2004.07219), read without the package d4rl."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from offrl.data.demos import DemoArrays
from offrl.data.hdf5 import is_written, located, open_hdf5

# D4RL's datasets and what they are called here.
KEYS = {
    "observations": "obs/flat",
    "next_observations": "next_obs/flat",
    "actions": "actions",
    "rewards": "rewards",
    "terminals": "dones",
    "timeouts": "timeouts",
}
OPTIONAL = {"next_observations", "timeouts"}
NUMBERS = ("rewards", "terminals", "timeouts")  # one for each step


class D4RLFile(DemoArrays):
    """A flat file ``{observations [N, D], actions [N, A], rewards [N], terminals [N], timeouts
    [N]}``, where files have it with ``next_observations [N, D]``.

    Its episodes are demonstrations with the observation ``flat``. ``dones`` are the terminals: what
    stops at a timeout, or with the file, goes on unseen.
    """

    layout = "D4RL"

    def __init__(self, path: Path, swmr: bool = False):
        self._file = open_hdf5(path, swmr)
        with located(path, "its list of datasets"):
            present = [key for key in KEYS if key in self._file]
        missing = sorted(set(KEYS) - set(present) - OPTIONAL)
        if missing:
            raise ValueError(
                f"{path}: has observations, as D4RL's files have, but no {', '.join(missing)}"
            )
        self._check_shapes(path, present)
        arrays = {KEYS[key]: self._file[key] for key in present}
        arrays["dones"] = self._mark("terminals").astype(np.float32)
        lengths = np.diff(np.flatnonzero(self._ends()), prepend=-1)
        super().__init__(path, arrays, lengths)

    def read(self, demos: Sequence[str], key: str, lengths: np.ndarray) -> np.ndarray:
        with located(self.path, key):
            return super().read(demos, key, lengths)

    def read_rows(self, demo: str, key: str, start: int, stop: int) -> np.ndarray:
        with located(self.path, key):
            return super().read_rows(demo, key, start, stop)

    def trajectory(self, demo: str) -> dict[str, Any]:
        with located(self.path, demo):
            return super().trajectory(demo)

    def close(self) -> None:
        self._file.close()

    def _check_shapes(self, path: Path, present: list[str]) -> None:
        obs = self._file["observations"].shape
        if not obs or not obs[0]:
            raise ValueError(f"{path}: observations is empty; copy the file again")
        allowed = {key: [obs[:1], (obs[0], 1)] for key in NUMBERS} | {"next_observations": [obs]}
        for key in present:
            with located(path, key):
                dataset = self._file[key]
                shape = getattr(dataset, "shape", None)
                if not shape:
                    raise ValueError(f"{path}: {key} is no array of steps; copy the file again")
                if not is_written(dataset.id):
                    raise ValueError("not all of it was ever written")
            if shape[:1] != obs[:1] or shape not in allowed.get(key, [shape]):
                raise ValueError(
                    f"{path}: {key} has shape {list(shape)}, which does not go with observations "
                    f"{list(obs)}; copy the file again"
                )

    def _ends(self) -> np.ndarray:
        """Whether an episode ends ``[N]``: at terminals, at timeouts, where the next observation
        is not that of the next row (not all files mark each of their resets), and with the file.
        """
        marks = [self._mark(key) for key in ("terminals", "timeouts") if key in self._file]
        ends = np.any(marks, axis=0)
        if "next_observations" in self._file:
            with located(self._file.filename, "observations or next_observations"):
                following = self._file["observations"][1:]
                expected = self._file["next_observations"][:-1]
            ends[:-1] |= ~np.isclose(expected, following).all(axis=1)
        elif "timeouts" not in self._file:
            raise ValueError(
                f"{self._file.filename}: does not say where time limits cut episodes off, so that "
                "steps across resets would be taken for the environment's; add a dataset "
                "timeouts, 1 at the last step of each such episode, else 0"
            )
        ends[-1:] = True
        return ends

    def _mark(self, key: str) -> np.ndarray:
        """What is 1 or 0 at each step ``[N]``."""
        path = self._file.filename
        with located(path, key):
            mark = self._file[key][()].reshape(-1)
        odd = np.flatnonzero((mark != 0) & (mark != 1))
        if len(odd):
            raise ValueError(
                f"{path}: {key} is {mark[odd[0]]} at row {odd[0]}, where 0 or 1 is needed; copy "
                "the file again"
            )
        return mark


def is_d4rl(path: Path) -> bool:
    """Whether an HDF5 file is flat, not a tree of demonstrations."""
    with open_hdf5(path) as file, located(path, "observations"):
        return isinstance(file.get("observations"), h5py.Dataset)
