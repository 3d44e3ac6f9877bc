"""Recording episodes as a data set in robomimic's layout."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import h5py
import numpy as np


class DemoWriter(AbstractContextManager):
    """Writes ``data/demo_N/{actions, rewards, dones, states, obs/KEY}``. A context manager.

    Everything is float32 but integers (images, discrete actions) and simulator states (float64:
    playing back needs all their bits). The file appears under its name when it is complete; an
    existing file is never overwritten.
    """

    def __init__(self, path: str | Path, env_args: Mapping[str, Any]):
        self.path = Path(path)
        if self.path.exists():
            raise FileExistsError(f"{path} exists; choose another name or move it away")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._partial = self.path.with_name(f".{self.path.name}.{os.getpid()}.partial")
        self._file = h5py.File(self._partial, "w", libver=("earliest", "v110"))
        self._data = self._file.create_group("data")
        self._data.attrs["env_args"] = json.dumps(env_args, indent=4)
        self._total = 0
        self.num_demos = 0

    def write(self, trajectory: Mapping[str, Any], **attributes: Any) -> str:
        """Add one episode, ``{"actions": [T, A], "obs/KEY": [T, ...], ...}``; its name."""
        name = f"demo_{self.num_demos}"
        demo = self._data.create_group(name)
        for key, value in trajectory.items():
            if isinstance(value, np.ndarray):
                keeps_type = key == "states" or value.dtype.kind in "iu"
                demo.create_dataset(key, data=value if keeps_type else value.astype(np.float32))
            else:
                demo.attrs[key] = value
        length = len(trajectory["actions"])
        demo.attrs["num_samples"] = length
        demo.attrs.update(attributes)
        self._total += length
        self.num_demos += 1
        return name

    def write_mask(self, filter_key: str, demos: Sequence[str]) -> None:
        """Name a subset of the demonstrations."""
        self._file[f"mask/{filter_key}"] = np.array(demos, dtype="S")

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
        self._data.attrs["total"] = self._total
        self._file.close()
        if kind is None:
            self._partial.replace(self.path)
        else:
            self._partial.unlink()
