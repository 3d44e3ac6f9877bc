"""D4RL's HDF5 layout (Fu et al., 2020, arXiv:2004.07219), read without the package d4rl."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from offrl.data.demos import DemoArrays
from offrl.data.hdf5 import open_hdf5


class D4RLFile(DemoArrays):
    """A flat file ``{observations [N, D], actions [N, A], rewards [N], terminals [N], timeouts
    [N]}``, where files have it with ``next_observations [N, D]``.

    Its episodes are demonstrations with the observation ``flat``. ``dones`` are the terminals: what
    stops at a timeout, or with the file, goes on unseen.
    """

    def __init__(self, path: Path, swmr: bool = False):
        self._file = open_hdf5(path, swmr)
        keys = {"observations": "obs/flat", "actions": "actions", "rewards": "rewards"}
        missing = [key for key in (*keys, "terminals") if key not in self._file]
        if missing:
            raise ValueError(
                f"{path}: looks like D4RL's but has no {', '.join(missing)}; D4RL's datasets are "
                "observations, actions, rewards, terminals, timeouts"
            )
        if "next_observations" in self._file:
            keys["next_observations"] = "next_obs/flat"
        arrays = {ours: self._file[theirs] for theirs, ours in keys.items()}
        arrays["dones"] = self._file["terminals"][()].reshape(-1).astype(np.float32)
        super().__init__(path, arrays, np.diff(np.flatnonzero(self._ends()), prepend=-1))

    def close(self) -> None:
        self._file.close()

    def _ends(self) -> np.ndarray:
        """Whether an episode ends ``[N]``: at terminals, at timeouts, where the next observation
        is not that of the next row (not all files mark each of their resets), and with the file.
        """
        if not {"timeouts", "next_observations"} & self._file.keys():
            raise ValueError(
                f"{self._file.filename}: does not say where time limits cut episodes off, so that "
                "steps across resets would be taken for the environment's; add a dataset "
                "timeouts, 1 at the last step of each such episode, else 0"
            )
        ends = self._file["terminals"][()].reshape(-1).astype(bool)
        if "timeouts" in self._file:
            ends |= self._file["timeouts"][()].reshape(-1).astype(bool)
        if "next_observations" in self._file:
            followed, following = (
                self._file["next_observations"][:-1],
                self._file["observations"][1:],
            )
            ends[:-1] |= ~np.isclose(followed, following).all(axis=1)
        ends[-1:] = True
        return ends


def is_d4rl(path: Path) -> bool:
    """Whether an HDF5 file is flat, not a tree of demonstrations."""
    with open_hdf5(path) as file:
        return isinstance(file.get("observations"), h5py.Dataset)
