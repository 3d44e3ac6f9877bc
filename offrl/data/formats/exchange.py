"""The exchange between formats of demonstrations: plans of conversions, and shared functions.

Content that a format cannot store (``env_args``, filter keys, names and shapes of observations) is
in its *notes*: JSON that offrl writes beside the data and reads again.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from offrl.data.formats.hdf5 import located
from offrl.data.remarks import wrong_env_args, wrong_values


class StepType(NamedTuple):
    """The kind and shape of one step of an array; floats are float32, as networks see them."""

    dtype: str
    shape: tuple[int, ...]

    @staticmethod
    def of(array: Any) -> "StepType":
        dtype = "float32" if array.dtype.kind == "f" else str(array.dtype)
        return StepType(dtype, tuple(map(int, array.shape[1:])))

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def is_image(self) -> bool:
        return self.dtype == "uint8" and len(self.shape) == 3 and self.shape[2] == 3

    @property
    def is_vector(self) -> bool:
        """True if it can be part of one vector, unlike images and depth maps."""
        return len(self.shape) < (2 if self.dtype == "uint8" else 3)


StepTypes = Mapping[str, StepType]  # of arrays, by path


@dataclass(frozen=True)
class Conversion:
    """The content of a source that is written, and how.

    steps: the types of the arrays that are written, by path.
    fps: control steps per second, where that is known.
    task: an instruction in words, instead of the source's.
    attributes: attributes of the whole data, for formats that can store them.
    """

    source: Path
    num_demos: int
    steps: dict[str, StepType]
    env_args: dict[str, Any] | None
    masks: dict[str, list[str]]
    provenance: dict[str, Any]
    task: str | None
    fps: int | None = None
    attributes: dict[str, Any] = field(default_factory=dict)

    def notes(self, **more: Any) -> dict[str, Any]:
        kept = {"env_args": self.env_args, "masks": self.masks, "provenance": self.provenance}
        return {**kept, "steps": self.steps, **more}


def read_notes(path: str | Path, text: str | bytes) -> dict[str, Any]:
    """Read notes that were written as JSON, ``steps`` among them."""
    with located(path, "what offrl noted beside the data"):
        notes = json.loads(text)
        if lacking := {"env_args", "masks"} - notes.keys():
            raise ValueError(f"it lacks {', '.join(sorted(lacking))}")
        if wrong := wrong_env_args(notes["env_args"]):
            raise ValueError(f"env_args {wrong}")
        notes["masks"] = {key: [*map(str, demos)] for key, demos in notes["masks"].items()}
        return notes | {"steps": {key: StepType(*step) for key, step in notes["steps"].items()}}


def vector_keys(steps: StepTypes, group: str = "obs/") -> list[str]:
    """Return the keys of a group that make up one vector, in their order in it."""
    return sorted(k for k, step in steps.items() if k.startswith(group) and step.is_vector)


def join_vectors(trajectory: Mapping[str, Any], keys: Sequence[str]) -> np.ndarray:
    """Join several arrays ``[T, ...]`` to one vector ``[T, D]`` (float32)."""
    parts = [np.asarray(trajectory[key]).reshape(len(trajectory[key]), -1) for key in keys]
    return np.concatenate(parts, axis=1, dtype=np.float32)


def vector_columns(steps: StepTypes, group: str = "obs/") -> Iterator[tuple[str, slice, StepType]]:
    """Yield the keys of a group that make up one vector, and their columns in it."""
    start = 0
    for key in vector_keys(steps, group):
        stop = start + steps[key].size
        yield key, slice(start, stop), steps[key]
        start = stop


def select_arrays(trajectory: Mapping[str, Any], steps: StepTypes, place: str) -> dict[str, Any]:
    """Return the arrays of an episode that a format stores, and its attributes. ``ValueError`` if
    types or shapes differ from the first episode's, or values are no numbers."""
    arrays = {k: v for k, v in trajectory.items() if not isinstance(v, np.ndarray)}
    for key, step in steps.items():
        if key not in trajectory:
            remedy = "complete the demonstration, or leave it out"
            raise ValueError(f"{place}/{key} is missing, unlike in the first; {remedy}")
        array = arrays[key] = trajectory[key]
        if StepType.of(array) != step or len(array) != len(trajectory["actions"]):
            raise ValueError(
                f"{place}/{key} is {array.dtype} {list(array.shape)}, but the first demonstration "
                f"and the actions ask for {step.dtype} {[len(trajectory['actions']), *step.shape]}"
            )
        if words := wrong_values(key, array, 0):
            raise ValueError(f"{place}/{key} {words}; leave the demonstration out, or correct it")
    return arrays


def as_float32(array: np.ndarray) -> np.ndarray:
    """Convert floats to float32, which networks see; integers stay as they are."""
    return array.astype(np.float32) if array.dtype.kind == "f" else array


def as_booleans(trajectory: Mapping[str, Any], key: str) -> np.ndarray:
    """Return an array such as ``dones`` as booleans ``[T]``."""
    return np.asarray(trajectory[key]).reshape(-1).astype(bool)


def timeouts(trajectory: Mapping[str, Any]) -> np.ndarray:
    """Say at which steps ``[T]`` a time limit cuts the episode off; by default at the last step,
    unless the episode is done there."""
    if "timeouts" in trajectory:
        return as_booleans(trajectory, "timeouts")
    dones = as_booleans(trajectory, "dones")
    return (np.arange(len(dones)) == len(dones) - 1) & ~dones


def next_observations(trajectory: Mapping[str, Any], key: str) -> np.ndarray:
    """Return the observations after each step; the last one is repeated if none was recorded."""
    obs, next_key = trajectory[key], f"next_{key}"
    return trajectory[next_key] if next_key in trajectory else np.append(obs[1:], obs[-1:], axis=0)
