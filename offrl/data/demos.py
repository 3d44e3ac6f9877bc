"""The interfaces of demonstrations in any format, and demonstrations in flat arrays."""

import json
import math
import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from offrl.data.arrays import InMemory, Part, StepArray
from offrl.data.remarks import SWITCHES, lost_dimensions, wrong_values
from offrl.images import Form
from offrl.memory import check_memory

# Arrays, and groups of them, with a row for each step.
OF_STEPS = ("actions", "rewards", "dones", "states", "obs/", "next_obs/", "action_dict/")

TASK = "task_index"


class Episodes(AbstractContextManager):
    """Demonstrations in a format that is read one whole episode at a time. A context manager."""

    path: Path
    layout: str  # the format's name
    external: Set[tuple[str, Path]] = frozenset()  # content read so far that lies in other files
    root = ""  # prefix of demonstrations' names in errors
    _notes: Mapping[str, Any] | None = None  # see ``offrl.data.formats.exchange``

    @property
    def env_args(self) -> dict[str, Any] | None:
        """The arguments of ``make_env`` that build the environment of the recording."""
        return (self._notes or {}).get("env_args")

    @property
    def dones_are_successes(self) -> bool:
        """False if an episode may also terminate by failure."""
        return False

    @property
    def num_actions(self) -> int | None:
        """The number of discrete actions, if the format stores it."""
        return (self._notes or {}).get("num_actions")

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, if there is one."""

    @abstractmethod
    def demos(self) -> list[str]:
        """Return the names of the demonstrations, in the order of the number in ``demo_N``."""

    @abstractmethod
    def trajectory(self, demo: str, keys: Collection[str] | None = None) -> dict[str, Any]:
        """Read a demonstration in the form of ``DemoWriter.write``: every array by its path, as it
        is stored, and strings and numbers (attributes). keys: the only arrays to read."""

    def stored(self, demo: str, keys: Collection[str] | None = None) -> dict[str, Any]:
        """Return the ``trajectory``, in which each array is a ``StepArray``, to be read later."""
        found = self.trajectory(demo, keys)
        return {k: InMemory(x) if isinstance(x, np.ndarray) else x for k, x in found.items()}

    def attributes(self, demo: str | None = None) -> dict[str, Any]:
        """Return other attributes of a demonstration, or of the whole data."""
        return {}

    def masks(self) -> dict[str, list[str]]:
        """Return the names of the demonstrations under each filter key."""
        return (self._notes or {}).get("masks", {})

    def filter_keys(self) -> list[str]:
        return list(self.masks())

    def mask(self, filter_key: str) -> list[str]:
        """Return the names under ``filter_key`` as they are stored."""
        return self.masks()[filter_key]

    def unread(self) -> list[str]:
        """List the content that trajectories leave out."""
        return []

    def recording(self, demo: str, keys: Collection[str] | None = None) -> dict[str, Any]:
        """Read the ``trajectory`` of a demonstration that can be played back; ``ValueError`` if the
        simulator's states or model were not recorded."""
        recording, place = self.trajectory(demo, keys), f"{self.path}: {self.root}{demo}"
        if not {"states", "model_file"} <= recording.keys():
            raise ValueError(
                f"{place} cannot be played back: it lacks states or the attribute model_file, "
                "which recordings of robosuite have; offrl playback --use actions films others"
            )
        if "actions" not in recording:
            raise ValueError(f"{place} has no actions; leave it out")
        states, actions = recording["states"], recording["actions"]
        if len(states) != len(actions):
            words = f"{len(states)} states for {len(actions)} actions; leave it out"
            raise ValueError(f"{place} cannot be played back: it has {words}")
        return recording

    def success(self, trajectory: Mapping[str, Any]) -> bool | None:
        """Say whether a demonstration ends in success, by its attribute ``success`` or else by
        ``success_steps``; ``None`` if that is unknown."""
        said = np.asarray(trajectory.get("success", ""))
        if said.dtype.kind in "fiub":
            return bool((said > 0).any())
        steps = self.success_steps(trajectory)
        return None if steps is None else bool(steps.any())

    def success_steps(self, trajectory: Mapping[str, Any]) -> np.ndarray | None:
        """Say whether the task was done at each step ``[T]``, by rewards that are 0 at first and
        then 0 or 1, or else by ``dones``, if they are successes; ``None`` if that is unknown."""
        rewards = np.reshape(trajectory.get("rewards", np.nan), -1)
        is_alive = len(rewards) > 1 and rewards[0] == 1  # the reward of surviving a step
        if np.isin(rewards, (0, 1)).all() and not is_alive:
            return rewards == 1
        if self.dones_are_successes and "dones" in trajectory:
            return np.reshape(trajectory["dones"], -1) == 1
        return None


class Demos(Episodes):
    """Demonstrations ``demo_N`` with arrays ``actions``, ``rewards``, ``dones``, ``obs/KEY``,
    ``next_obs/KEY``, each with a row for every step. They can be trained on.

    tasks: sentences by their number, which the key ``TASK`` has for each step, if the format tells
        tasks in words.
    """

    tasks: Mapping[int, str] = {}
    _names: Collection[str]  # of all demonstrations, in order

    def demos(self, filter_key: str | None = None, limit: int | None = None) -> list[str]:
        """Return the names of the demonstrations, of those under ``filter_key`` if given, in the
        order of the number in ``demo_N``; the first ``limit`` of them."""
        return list(self._names if filter_key is None else self.under(filter_key))[:limit]

    def under(self, filter_key: str) -> list[str]:
        """Return the demonstrations under a filter key of ``masks``."""
        masks = self.masks()
        if filter_key not in masks:
            has = f"it has {', '.join(masks)}" if masks else "this kind of data has none"
            raise ValueError(
                f"{self.path}: no filter key {filter_key!r}: {has}; use all demonstrations "
                "(train.hdf5_filter_key=null, experiment.validate=false)"
            )
        return masks[filter_key]

    def turn(self, images: Mapping[str, Sequence[Form]]) -> None:
        """Turn images of these forms, by their keys, as they are read from now on. Raises
        ``ValueError`` for keys that are not there, and for layouts that cannot."""
        if images:
            remedy = f"convert it first: offrl convert {self.path} OUT --to robomimic"
            words = f"images of {self.layout}'s layout are not turned as they are read"
            raise ValueError(f"{self.path}: train.data.images: {words}; {remedy}")

    @abstractmethod
    def has(self, demo: str, key: str) -> bool:
        """Say whether a demonstration has a key."""

    def all_have(self, demos: Sequence[str], key: str) -> bool:
        """Say whether the first demonstration has a key; ``ValueError`` if only others have it.
        (Reading fails for others that lack it.)"""
        if self.has(demos[0], key):
            return True
        for demo in demos[1:]:
            if self.has(demo, key):
                raise ValueError(
                    f"{self.path}: {self.root}{demos[0]} has no {key}, but {demo} has; leave the "
                    "demonstration out with a filter key, or complete it"
                )
        return False

    @abstractmethod
    def lengths(self, demos: Sequence[str], key: str = "actions") -> np.ndarray:
        """Return the number of steps of each demonstration: the length of ``key``."""

    @abstractmethod
    def array(self, demo: str, key: str) -> StepArray:
        """Return an array of a demonstration; ``ValueError`` if it is not there, or damaged."""

    @abstractmethod
    def stored(self, demo: str, keys: Collection[str] | None = None) -> dict[str, Any]: ...

    def trajectory(self, demo: str, keys: Collection[str] | None = None) -> dict[str, Any]:
        stored = self.stored(demo, keys)
        arrays = {key: value for key, value in stored.items() if isinstance(value, StepArray)}
        num_bytes = sum(array.nbytes for array in arrays.values())
        check_memory(num_bytes, f"{self.path}: {self.root}{demo}")
        return {**stored, **{key: array.read() for key, array in arrays.items()}}

    def steps(self, demo: str, key: str) -> np.ndarray:
        """Read ``[T, ...]`` of one demonstration, as ``read`` does."""
        return self.read([demo], key, self.lengths([demo]))

    def shape(self, demo: str, key: str) -> tuple[int, ...]:
        """Return the shape of one step."""
        return self.array(demo, key).shape[1:]

    def holds_integers(self, demo: str, key: str) -> bool:
        """Say whether the values of a key are stored as integers."""
        return self.array(demo, key).dtype.kind in "iu"

    @abstractmethod
    def check(self, demos: Sequence[str], key: str, lengths: np.ndarray) -> None:
        """Raise ``ValueError`` for a key that a demonstration lacks, a length unlike that of the
        actions, a shape that differs between demonstrations, or values that are no numbers."""

    @abstractmethod
    def read(self, demos: Sequence[str], key: str, lengths: np.ndarray) -> np.ndarray:
        """Read ``[sum(lengths), ...]`` of ``key`` over ``demos``: uint8 as it is, all else float32.
        Raises as ``check`` does, and for values that are not finite."""

    def lost(self, demos: Sequence[str], key: str) -> list[int]:
        """Find the dimensions that are almost constant in float32, by a few demonstrations."""
        if self.array(demos[0], key).dtype.itemsize <= 4:
            return []
        few = demos[:: 1 + len(demos) // 8]
        return lost_dimensions([self.array(demo, key)[:] for demo in few])

    def dtype(self, demo: str, key: str) -> np.dtype:
        """Return the type that a key is read as: uint8 as it is, all else float32."""
        is_bytes = self.array(demo, key).dtype == np.uint8
        return np.dtype(np.uint8 if is_bytes else np.float32)

    def read_into(self, demo: str, key: str, rows: np.ndarray, start: int) -> None:
        """Fill rows with the steps of one demonstration from ``start`` on, as ``read`` does."""
        array = self.array(demo, key)
        array.read_into(rows.reshape(-1, *array.shape[1:]), start)
        if rows.dtype != np.uint8:
            self._numbers(rows, [demo], key, [len(rows)], start)

    def packed_bytes(self, demos: Sequence[str], key: str) -> int:
        """Return the size of the largest image file that rows are decoded from; 0 if not all are
        stored as such."""
        most = 0
        for demo in demos:
            packed = self.array(demo, key).packed
            if packed is None:
                return 0
            most = max(most, packed.shape[1])
        return most

    def read_packed(self, demo: str, key: str, rows: np.ndarray, start: int) -> None:
        """Fill rows ``[T, B]`` with the image files of steps from ``start`` on, padded with
        zeros."""
        packed: Any = self.array(demo, key).packed
        width = packed.shape[1]
        rows[:, width:] = 0
        rows[:, :width] = packed.rows(start, start + len(rows))

    def best(self, demos: Sequence[str], share: float) -> list[str]:
        """Choose the ``share`` of demonstrations with the highest returns; of equals, the first."""
        missing = [demo for demo in demos if not self.has(demo, "rewards")]
        if missing:
            words = "by which train.data.top_share chooses; label the data, or leave that out"
            raise ValueError(f"{self.path}: {missing[0]} has no rewards, {words}")
        lengths = self.lengths(demos, "rewards")
        rewards = np.split(self.read(demos, "rewards", lengths), np.cumsum(lengths)[:-1])
        returns = np.array([part.sum(dtype=np.float64) for part in rewards])
        if share < 1 and len(demos) > 1 and np.ptp(returns) == 0:
            raise ValueError(
                f"{self.path}: all demonstrations have the return {returns[0]:g}, by which "
                "train.data.top_share chooses; label the data, or leave that out"
            )
        ranked = np.argsort(-returns, kind="stable")[: math.ceil(share * len(demos))]
        return [demos[i] for i in sorted(ranked)]

    def _numbers(
        self, rows: np.ndarray, demos: Sequence[str], key: str, lengths: Any, first_step: int = 0
    ) -> np.ndarray:
        """Return rows as uint8 or float32; ``ValueError`` unless finite, and ``dones`` 0 or 1."""
        is_sound = key not in SWITCHES or ((rows == 0) | (rows == 1)).all()
        if rows.dtype != np.uint8:
            with np.errstate(over="ignore"):
                rows = rows.astype(np.float32, copy=False)
            # One sum is the cheap test for all: any NaN or infinity makes it not finite.
            is_sound = is_sound and np.isfinite(np.sum(rows, dtype=np.float64))
        if is_sound:
            return rows
        for demo, length in zip(demos, lengths, strict=True):
            stored = self.array(demo, key)[first_step : first_step + int(length)]
            if words := wrong_values(key, stored, first_step):
                break
        raise ValueError(
            f"{self.path}: {self.root}{demo}/{key} {words}; leave the demonstration out (with a "
            "filter key, where files have those), or correct it"
        )


class DemoArrays(Demos):
    """Demonstrations that lie one after the other in arrays ``{key: [N, ...]}``, numpy's or
    ``StepArray``. ``lengths`` ``[D]`` of them add up to ``N``.

    notes: ``env_args`` and ``masks``, where the format has no place for them.
    """

    layout = "Minari"

    def __init__(
        self,
        path: Path,
        arrays: Mapping[str, Any],
        lengths: np.ndarray,
        notes: Mapping[str, Any] | None = None,
    ):
        self.path, self._notes = path, notes or {}
        self._arrays: dict[str, StepArray] = {
            key: InMemory(x) if isinstance(x, np.ndarray) else x for key, x in arrays.items()
        }
        ends = [0, *np.cumsum(lengths).tolist()]
        self._ranges = {f"demo_{i}": steps for i, steps in enumerate(pairwise(ends))}
        self._names = self._ranges
        for key, array in self._arrays.items():
            if len(array) != ends[-1]:
                raise ValueError(f"{path}: {key} has {len(array)} rows, but actions {ends[-1]}")
            if array.dtype.kind not in "fiub":
                raise ValueError(f"{path}: {key} holds no numbers")

    def has(self, demo: str, key: str) -> bool:
        return key in self._arrays

    def lengths(self, demos: Sequence[str], key: str = "actions") -> np.ndarray:
        self._whole(key)
        return np.array([len(range(*self._ranges[demo])) for demo in demos])

    def check(self, demos: Sequence[str], key: str, lengths: np.ndarray) -> None:
        self._whole(key)

    def read(self, demos: Sequence[str], key: str, lengths: np.ndarray) -> np.ndarray:
        rows = self._whole(key).read()
        if len(demos) < len(self._ranges):
            rows = np.concatenate([rows[slice(*self._ranges[demo])] for demo in demos])
        return self._numbers(rows, demos, key, lengths)

    def stored(self, demo: str, keys: Collection[str] | None = None) -> dict[str, Any]:
        return {key: self.array(demo, key) for key in self._arrays if keys is None or key in keys}

    def array(self, demo: str, key: str) -> StepArray:
        first, stop = self._ranges[demo]
        return Part(self._whole(key), first, stop - first)

    def _whole(self, key: str) -> StepArray:
        if key not in self._arrays:
            remedy = ""
            if key.startswith("obs/"):
                names = [k.removeprefix("obs/") for k in self._arrays if k.startswith("obs/")]
                remedy = f"; set observation.modalities.obs.low_dim to {json.dumps(names)}"
            words = f"no {key!r}; it has {', '.join(sorted(self._arrays))}"
            if space := (self._notes or {}).get("left_out", {}).get(key):
                words = f"{key} is {space}, and networks see vectors and images"
            raise ValueError(f"{self.path}: {words}{remedy}")
        return self._arrays[key]


def numbers_of(names: Iterable[str], form: str, place: object) -> dict[str, int]:
    """Return the number of each name, in their order. Raises ``ValueError`` for a name of another
    ``form`` than, say, ``demo_N``, and for two of one number. place: of the names, for messages."""
    pattern, found = re.escape(form).replace("N", r"(\d{1,9})"), dict[int, str]()
    for name in names:
        match = re.fullmatch(pattern, name)
        if not match:
            raise ValueError(f"{place}: {name} is no {form}, as the others are; take it out")
        other = found.setdefault(int(match[1]), name)
        if other != name:
            raise ValueError(f"{place}: {other} and {name} have one number; take one out")
    return {name: number for number, name in sorted(found.items())}
