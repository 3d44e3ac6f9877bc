"""D4RL's HDF5 layout (Fu et al., 2020, arXiv:2004.07219), without the package d4rl."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from offrl.data.arrays import StepArray
from offrl.data.demos import DemoArrays
from offrl.data.formats import exchange
from offrl.data.formats.exchange import Conversion, StepType
from offrl.data.formats.hdf5 import located, open_hdf5
from offrl.data.remarks import followed, wrong_values
from offrl.data.storage import CHUNK_BYTES, StoredArray
from offrl.outputs import check_space, new_file, whole_file

# D4RL's names of datasets, and offrl's.
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
NOTES = "metadata/offrl"  # in files that offrl wrote


class D4RLFile(DemoArrays):
    """A flat file ``{observations [N, D], actions [N, A], rewards [N], terminals [N], timeouts
    [N]}``, optionally with ``next_observations [N, D]``.

    Its episodes are demonstrations with the observation ``flat``, or, in a file that offrl wrote,
    with the observations that were joined. ``dones`` are the terminals; timeouts are not done.
    """

    layout = "D4RL"

    def __init__(self, path: Path, swmr: bool = False):
        self._file = open_hdf5(path, swmr)
        self.external = self._file.external
        self._columns, notes = self._open_arrays(path), None
        arrays: dict[str, Any] = {KEYS[key]: column for key, column in self._columns.items()}
        arrays["dones"] = self._mark("terminals").astype(np.float32)
        if NOTES in self._file:
            with located(path, NOTES):
                notes = exchange.read_notes(path, self._file[NOTES][()])
                lengths = np.array(notes["lengths"])
            steps, joined = notes["steps"], arrays
            arrays = {key: array for key, array in joined.items() if key in steps}
            for group in ("obs/", "next_obs/"):
                for key, columns, step in exchange.vector_columns(steps, group):
                    arrays[key] = _Columns(joined[f"{group}flat"], columns, step)
        else:
            lengths = np.diff(np.flatnonzero(self._ends()), prepend=-1)
        super().__init__(path, arrays, lengths, notes)

    def unread(self) -> list[str]:
        return [key for key in self._file if key not in (*KEYS, "metadata")]

    def close(self) -> None:
        self._file.close()

    def _open_arrays(self, path: Path) -> dict[str, StoredArray]:
        """Open the datasets, by D4RL's names; ``ValueError`` unless their shapes agree."""
        with located(path, "its list of datasets"):
            present = [key for key in KEYS if key in self._file]
        if missing := sorted(set(KEYS) - set(present) - OPTIONAL):
            raise ValueError(f"{path}: has observations, as D4RL has, but no {', '.join(missing)}")
        found = dict[str, StoredArray]()
        for key in present:
            with located(path, key):
                dataset = self._file[key]
                if not getattr(dataset, "shape", None):
                    raise ValueError(f"{path}: {key} is no array of steps; copy the file again")
                found[key] = StoredArray(dataset.id)
                found[key].check_fits()
                found[key].check_written()
                self.external |= {(key, other) for other in found[key].external}
        obs = found["observations"].shape
        if not obs[0]:
            raise ValueError(f"{path}: observations is empty; copy the file again")
        allowed = {key: [obs[:1], (obs[0], 1)] for key in NUMBERS} | {"next_observations": [obs]}
        for key, column in found.items():
            shape = column.shape
            if shape[:1] != obs[:1] or shape not in allowed.get(key, [shape]):
                words = f"which does not go with observations {list(obs)}; copy the file again"
                raise ValueError(f"{path}: {key} has shape {list(shape)}, {words}")
        return found

    def _ends(self) -> np.ndarray:
        """Say at which steps ``[N]`` an episode ends: at terminals, at timeouts, where the next
        observation is not that of the next row (not all files mark resets), and at the end."""
        columns = self._columns
        marks = [self._mark(key) for key in ("terminals", "timeouts") if key in columns]
        ends = np.any(marks, axis=0)
        if "next_observations" in columns:
            ends[:-1] |= ~followed(columns["observations"], columns["next_observations"])
        elif "timeouts" not in columns:
            raise ValueError(
                f"{self._file.filename}: does not say where time limits cut episodes off, so that "
                "steps across resets would be taken for the environment's; add a dataset "
                "timeouts, 1 at the last step of each such episode, else 0"
            )
        ends[-1:] = True
        return ends

    def _mark(self, key: str) -> np.ndarray:
        """Read an array that is 1 or 0 at each step ``[N]``."""
        mark = self._columns[key].read().reshape(-1)
        if words := wrong_values(key, mark, 0):
            raise ValueError(f"{self._file.filename}: {key} {words}; copy the file again")
        return mark


def is_d4rl(file: h5py.File) -> bool:
    """Say whether a file is flat, not a tree of demonstrations."""
    return file.id.links.exists(b"observations")


class _Columns(StepArray):
    """Columns of a dataset ``[N, D]`` in the shape ``[N, ...]`` of the array that was joined."""

    def __init__(self, dataset: StoredArray, columns: slice, step: StepType):
        self.dtype = np.dtype(step.dtype)
        self.shape = (len(dataset), *step.shape)
        self._dataset, self._columns = dataset, columns

    def rows(self, start: int, stop: int) -> np.ndarray:
        values = self._dataset[start:stop][:, self._columns].astype(self.dtype, copy=False)
        return values.reshape(-1, *self.shape[1:])


def holds(key: str, step: StepType) -> bool:
    """Say whether D4RL's layout has a place for an array."""
    if key.startswith(("obs/", "next_obs/")):
        return step.is_vector
    return key in ("actions", "rewards", "dones", "timeouts")


@contextmanager
def writing(output: str, plan: Conversion) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Make a function that adds an episode to a new file, which appears when all are written.
    Observations are joined to one vector, in the order of their names."""
    path, obs, lengths = new_file(output), exchange.vector_keys(plan.steps), []
    with whole_file(path) as partial, h5py.File(partial, "x") as file:

        def write(trajectory: Mapping[str, Any]) -> None:
            later = {key: exchange.next_observations(trajectory, key) for key in obs}
            rows = {
                "observations": exchange.join_vectors(trajectory, obs),
                "next_observations": exchange.join_vectors(later, obs),
                "actions": exchange.as_float32(trajectory["actions"]),
                "rewards": exchange.as_float32(trajectory["rewards"]).reshape(-1),
                "terminals": exchange.as_booleans(trajectory, "dones"),
                "timeouts": exchange.timeouts(trajectory),
            }
            check_space(path, sum(array.nbytes for array in rows.values()))
            for key, array in rows.items():
                _append(file, key, array)
            file.flush()
            lengths.append(len(rows["actions"]))

        yield write
        check_space(path, 0)
        file[NOTES] = json.dumps(plan.notes(lengths=lengths))


def _append(file: h5py.File, key: str, rows: np.ndarray) -> None:
    if key not in file:
        shape = rows.shape[1:]
        chunks = (max(1, CHUNK_BYTES // max(1, rows[0].nbytes)), *shape)
        file.create_dataset(
            key, (0, *shape), rows.dtype, maxshape=(None, *shape), chunks=chunks, fletcher32=True
        )
    dataset = file[key]
    dataset.resize(len(dataset) + len(rows), axis=0)
    dataset[-len(rows) :] = rows
