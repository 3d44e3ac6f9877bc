"""Windows over demonstrations, by index arithmetic on one contiguous array per key."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from offrl.data.actions import encode_actions
from offrl.data.computed import COMPUTED, transformed
from offrl.data.demos import Demos
from offrl.data.files import open_demos
from offrl.data.statistics import Statistics, obs_statistics
from offrl.specs import LANGUAGE
from offrl.tree import map_leaves

log = logging.getLogger(__name__)


@cache
def _say_once(message: str) -> None:
    log.info(message)


@dataclass
class Source:
    """One of the files: its demonstrations, and what environment they were recorded in."""

    path: str
    demos: list[str]
    lengths: np.ndarray
    env_args: dict[str, Any] | None
    num_windows: int = 0


class SequenceDataset(Dataset):
    """Windows of ``T = frame_stack - 1 + seq_length`` steps from files of demonstrations.

    Item ``i`` is a nested dict of numpy arrays: ``obs/KEY`` and ``next_obs/KEY`` ``[T, ...]``,
    ``goal_obs/KEY`` ``[...]``, ``actions`` ``[T, A]`` (all ``action_keys``, normalised and
    joined; discrete ones one-hot), every other dataset key ``[T, ...]`` (zeros ``[T, 1]`` where the
    file has none) and ``pad_mask`` ``[T, 1]``, true for steps inside the demonstration.
    ``frame_stack`` repeats the first step of a demonstration and ``seq_length`` its last, as far as
    padding is on; without padding such windows are left out. ``get_batch`` gives many windows at
    once.

    The arrays are never copied per window: memory is that of the data. Observations are float32
    (images uint8) and are *not* normalised here; actions are.

    hdf5_path: a file or several, whose demonstrations are strung together and share statistics;
        for several, ``filter_by_attribute``, ``demo_limit`` and ``top_share`` may be lists, too.
    top_share: only this share of the demonstrations, those with the highest returns.
    hdf5_cache_mode: ``"all"``, all in memory; ``"low_dim"``, only vectors, images are read from
        the file; ``None``, no observation in memory.
    constants: for each file, observations ``{key: [...]}`` that are the same at all its steps
        (an instruction's embedding), instead of stored ones. They are not normalised.
    action_stats: normalise actions by these instead of by the data's own: held-out demonstrations
        by those of the training.
    rewards: see ``train.rewards``; reward_stats: normalise them by these, not by the data's own.
    discount: of the rewards in the dataset key ``returns``, which is computed (``COMPUTED``).
    goal_mode: ``"last"``, the goal is the last ``next_obs`` (of the last window's first step if
        sequences are not padded).
    """

    def __init__(
        self,
        hdf5_path: str | Sequence[str],
        obs_keys: Sequence[str],
        action_keys: Sequence[str] = ("actions",),
        dataset_keys: Sequence[str] = ("actions", "rewards", "dones"),
        action_config: Mapping[str, Any] | None = None,
        frame_stack: int = 1,
        seq_length: int = 1,
        pad_frame_stack: bool = True,
        pad_seq_length: bool = True,
        get_pad_mask: bool = False,
        goal_mode: Literal["last"] | None = None,
        hdf5_cache_mode: Literal["all", "low_dim"] | None = "all",
        hdf5_use_swmr: bool = True,
        hdf5_normalize_obs: bool = False,
        filter_by_attribute: str | Sequence[str | None] | None = None,
        load_next_obs: bool = True,
        demo_limit: int | Sequence[int | None] | None = None,
        top_share: float | Sequence[float | None] | None = None,
        action_stats: Mapping[str, Statistics] | None = None,
        rewards: Mapping[str, Any] | None = None,
        reward_stats: Mapping[str, float] | None = None,
        constants: Sequence[Mapping[str, np.ndarray]] | None = None,
        discount: float = 1.0,
    ):
        if goal_mode not in (None, "last"):
            raise ValueError(f"goal_mode: {goal_mode!r}; allowed: null, 'last'")
        if hdf5_cache_mode not in (None, "low_dim", "all"):
            raise ValueError(f"hdf5_cache_mode: {hdf5_cache_mode!r}; allowed: null, low_dim, all")
        paths = [hdf5_path] if isinstance(hdf5_path, (str, os.PathLike)) else list(hdf5_path)
        self.hdf5_path = ", ".join(map(str, paths))
        self.obs_keys = tuple(sorted(obs_keys))
        self.action_keys = tuple(action_keys)
        self.dataset_keys = tuple(dict.fromkeys((*dataset_keys, *action_keys)))
        self.action_config = dict(action_config or {})
        self._given_action_stats = action_stats or {}
        self._reward_config, self.reward_stats = rewards or {}, reward_stats
        self._discount = discount
        self.n_frame_stack, self.seq_length = frame_stack, seq_length
        self.pad_frame_stack, self.pad_seq_length = pad_frame_stack, pad_seq_length
        self.get_pad_mask = get_pad_mask
        self.goal_mode = goal_mode
        self.hdf5_cache_mode = hdf5_cache_mode
        self.hdf5_use_swmr = hdf5_use_swmr
        self.hdf5_normalize_obs = hdf5_normalize_obs
        self.load_next_obs = load_next_obs
        # Of streamed keys; each process opens them for itself, where they are used.
        self._open_files: dict[tuple[int, int], Demos] = {}

        with ExitStack() as stack:
            files = [stack.enter_context(open_demos(p, hdf5_use_swmr)) for p in paths]
            filters = _one_for_each(filter_by_attribute, paths)
            limits = _one_for_each(demo_limit, paths)
            shares = _one_for_each(top_share, paths)
            self.sources = []
            for file, filter_key, limit, share in zip(files, filters, limits, shares, strict=True):
                demos = file.demos(filter_key, limit)
                demos = demos if share is None else file.best(demos, share)
                lengths = file.lengths(demos, self.action_keys[0])
                self.sources.append(Source(str(file.path), demos, lengths, file.env_args))
            self.env_args = self.sources[0].env_args
            self.demos = [demo for source in self.sources for demo in source.demos]
            self.lengths = np.concatenate([source.lengths for source in self.sources])
            self._constants = _stack_constants(constants or [{}] * len(paths))
            self._index_windows(self.lengths - self._without_end(files))
            self._load(files)

    # -- construction -----------------------------------------------------------------------------

    def _index_windows(self, lengths: np.ndarray) -> None:
        """For each window: the row of its current step, and the first and last of its demo, of
        which it may see ``lengths`` steps."""
        skipped_start = 0 if self.pad_frame_stack else self.n_frame_stack - 1
        skipped_end = 0 if self.pad_seq_length else self.seq_length - 1
        counts = lengths - skipped_start - skipped_end
        if self.pad_seq_length:
            counts = np.where(lengths > skipped_start, np.maximum(counts, 1), counts)
        counts[lengths == 0] = 0
        short = int(np.argmin(self.lengths))
        if self.lengths[short] < 1:
            raise ValueError(
                f"{self.hdf5_path}: {self.demos[short]} has no steps; leave it out with a filter "
                "key, or delete it"
            )
        if (counts[lengths > 0] < 1).any() or not counts.any():
            raise ValueError(
                f"{self.hdf5_path}: {self.demos[short]} has {self.lengths[short]} steps, too few "
                f"for windows of frame_stack {self.n_frame_stack} and seq_length {self.seq_length} "
                "without padding; set train.pad_seq_length and train.pad_frame_stack to true"
            )
        first_demo = np.cumsum([0, *(len(source.demos) for source in self.sources)])
        self._first_demo = first_demo[:-1]
        for source, start, stop in zip(self.sources, first_demo, first_demo[1:], strict=False):
            source.num_windows = int(counts[start:stop].sum())
        ends = np.cumsum(self.lengths)
        begins = ends - self.lengths
        first_window = np.cumsum(counts) - counts
        self._demo_begins = begins
        self._file_begins = torch.from_numpy(begins[self._first_demo])
        within_demo = np.arange(counts.sum()) - np.repeat(first_window, counts)
        self._start = torch.from_numpy(np.repeat(begins, counts) + skipped_start + within_demo)
        self._begin = torch.from_numpy(np.repeat(begins, counts))
        self._last = torch.from_numpy(np.repeat(begins + lengths - 1, counts))
        self._end = torch.from_numpy(np.repeat(ends - 1, counts))
        self._goal_shift = skipped_end
        self._offsets = torch.arange(1 - self.n_frame_stack, self.seq_length)

    def _load(self, files: Sequence[Demos]) -> None:
        self._arrays: dict[str, Tensor] = {}
        self._streamed: set[str] = set()
        stored = [key for key in self.obs_keys if key not in self._constants]
        # A number per step is a vector of one.
        self.obs_shapes = {k: self._shape(files, f"obs/{k}") or (1,) for k in stored}
        self.obs_shapes |= {k: tuple(values.shape[1:]) for k, values in self._constants.items()}
        self._obs_stats: dict[str, Statistics] = {}

        wants_next = self.load_next_obs or self.goal_mode is not None
        has_next = [key for key in stored if self._is_in_all(files, f"next_obs/{key}")]
        self._derived = {key for key in stored if wants_next and key not in has_next}
        if self._derived:
            _say_once(
                f"{self.hdf5_path} has no next_obs of {', '.join(sorted(self._derived))}: taken "
                "from the obs one step later"
            )
        for key in stored:
            groups = ["obs", "next_obs"] if wants_next and key in has_next else ["obs"]
            is_vector = len(self.obs_shapes[key]) <= 1
            cached = self.hdf5_cache_mode == "all" or (self.hdf5_cache_mode and is_vector)
            for group in groups:
                path = f"{group}/{key}"
                if cached:
                    self._arrays[path] = torch.from_numpy(self._read(files, path))
                else:
                    for file, source in zip(files, self.sources, strict=True):
                        file.check(source.demos, path, source.lengths)
                    self._streamed.add(path)
            if self.hdf5_normalize_obs and is_vector and key != LANGUAGE:
                path = f"obs/{key}"
                rows = self._arrays[path].numpy() if cached else self._read(files, path)
                self._obs_stats[key] = obs_statistics(rows.reshape(len(rows), -1))

        for key in [key for key in self.dataset_keys if key not in COMPUTED]:
            if key in self.action_keys or self._is_in_all(files, key):
                self._shape(files, key)
                self._arrays[key] = torch.from_numpy(self._read(files, key))
            else:
                self._arrays[key] = torch.zeros(int(self.lengths.sum()), 1)
        self._compute()
        self._join_actions(files)

    def _compute(self) -> None:
        if "rewards" not in self._arrays:
            return
        stored = self._arrays["rewards"]
        rewards, self.reward_stats = transformed(
            stored.numpy().reshape(-1), self.lengths, self._reward_config, self.reward_stats
        )
        self._arrays["rewards"] = torch.from_numpy(rewards).view(stored.shape)
        for key in set(self.dataset_keys) & set(COMPUTED):
            values = COMPUTED[key](rewards, self.lengths, self._discount)
            self._arrays[key] = torch.from_numpy(values)

    def _without_end(self, files: Sequence[Demos]) -> np.ndarray:
        """Of each demonstration, 1 if it stops without having terminated and the file has no
        ``next_obs``: its last step is then only what follows the one before, else 0."""
        keys = [f"next_obs/{key}" for key in self.obs_keys if key not in self._constants]
        has_next = all(self._is_in_all(files, key) for key in keys)
        if has_next or not self.load_next_obs or not self._is_in_all(files, "dones"):
            return np.zeros_like(self.lengths)
        dones = self._read(files, "dones").reshape(-1)[np.cumsum(self.lengths) - 1]
        return (dones == 0).astype(self.lengths.dtype)

    def _read(self, files: Sequence[Demos], path: str) -> np.ndarray:
        """``[sum(lengths), ...]`` of all files."""
        parts = [f.read(s.demos, path, s.lengths) for f, s in zip(files, self.sources, strict=True)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _shape(self, files: Sequence[Demos], path: str) -> tuple[int, ...]:
        """Shape of one step; ``ValueError`` if the files do not agree on it."""
        shapes = [f.shape(s.demos[0], path) for f, s in zip(files, self.sources, strict=True)]
        for source, shape in zip(self.sources, shapes, strict=True):
            if shape != shapes[0]:
                raise ValueError(
                    f"{path} has shape {list(shapes[0])} in {self.sources[0].path}, but "
                    f"{list(shape)} in {source.path}; train on files that agree"
                )
        return shapes[0]

    def _is_in_all(self, files: Sequence[Demos], key: str) -> bool:
        return all(f.has(s.demos[0], key) for f, s in zip(files, self.sources, strict=True))

    def _join_actions(self, files: Sequence[Demos]) -> None:
        first = [(file, source.demos[0]) for file, source in zip(files, self.sources, strict=True)]
        parts, self._action_stats = encode_actions(
            {key: self._arrays[key].numpy() for key in self.action_keys},
            [k for k in self.action_keys if any(f.holds_integers(demo, k) for f, demo in first)],
            self.action_config,
            self._given_action_stats,
            self._place,
        )
        self.largest_actions = {key: float(np.abs(part).max()) for key, part in parts.items()}
        self._arrays["actions"] = torch.from_numpy(np.concatenate([*parts.values()], axis=-1))
        self.ac_dim = self._arrays["actions"].shape[-1]

    # -- what it holds ----------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._start)

    @property
    def n_demos(self) -> int:
        return len(self.demos)

    @property
    def first_rows(self) -> Tensor:
        """The row of each demonstration's first step."""
        return torch.from_numpy(self._demo_begins).to(self.device)

    @property
    def nbytes(self) -> int:
        """Memory of the cached arrays."""
        return sum(a.numel() * a.element_size() for a in self._arrays.values())

    @property
    def device(self) -> torch.device:
        """Where the cached arrays, and so the batches, are."""
        return self._start.device

    @property
    def is_streamed(self) -> bool:
        """Whether some observations are read from the file window by window."""
        return bool(self._streamed)

    def get_obs_normalization_stats(self) -> dict[str, Statistics]:
        """``{key: {"scale": [1, D], "offset": [1, D]}}``; empty unless ``hdf5_normalize_obs``."""
        return self._obs_stats

    def get_action_normalization_stats(self) -> dict[str, Statistics]:
        """``{key: {"scale": [1, D], "offset": [1, D]}}``; ones and zeros if not normalised."""
        return self._action_stats

    def values(self, key: str, first: bool = False) -> Tensor:
        """All steps ``[sum(lengths), ...]`` of a dataset key, or the first of each demonstration;
        zeros if the file has none."""
        return self._arrays[key][self.first_rows] if first else self._arrays[key]

    def constant_obs(self, key: str) -> list[np.ndarray | None]:
        """For each file, the value ``[...]`` of an observation that is in memory and the same at
        all of the file's steps."""
        rows = self._arrays.get(f"obs/{key}")
        if rows is None:
            return [None] * len(self.sources)
        parts = np.split(rows.cpu().numpy(), self._file_begins[1:].cpu().numpy())
        return [part[0] if (part == part[0]).all() else None for part in parts]

    def to(self, device: torch.device | str) -> SequenceDataset:
        """Move the cached arrays, so that batches are gathered where they are used."""
        self._arrays = {k: a.to(device) for k, a in self._arrays.items()}
        self._constants = {k: values.to(device) for k, values in self._constants.items()}
        for name in ("_start", "_begin", "_last", "_end", "_offsets", "_file_begins"):
            setattr(self, name, getattr(self, name).to(device))
        return self

    # -- windows ----------------------------------------------------------------------------------

    def get_batch(self, indices: Tensor) -> dict[str, Any]:
        """Windows ``indices`` ``[B]`` as one nested dict of tensors ``[B, T, ...]``."""
        steps = self._start[indices][:, None]
        begin = last = end = None
        if self._reaches_ends:
            steps = steps + self._offsets
            begin, last = self._begin[indices][:, None], self._last[indices][:, None]
            end = self._end[indices][:, None]
        rows = steps if begin is None else torch.minimum(torch.maximum(steps, begin), last)

        keys = dict.fromkeys((*self.dataset_keys, "actions"))
        batch: dict[str, Any] = {key: self._gather(key, rows) for key in keys}
        batch["obs"] = self._gather_obs("obs", rows, end)
        if self.load_next_obs:
            batch["next_obs"] = self._gather_obs("next_obs", rows, end)
        if self.goal_mode == "last":
            goal = self._gather_obs("next_obs", last - self._goal_shift, end)
            batch["goal_obs"] = {k: v[:, 0] for k, v in goal.items()}
        if self.get_pad_mask:
            mask = ((steps >= begin) & (steps <= last))[..., None]
            batch["pad_mask"] = mask
            for group in {"obs", "next_obs"} & batch.keys():
                batch[group]["pad_mask"] = mask
        return batch

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        batch = self.get_batch(torch.tensor([index % len(self)], device=self.device))
        return map_leaves(lambda x: x[0].cpu().numpy(), batch)

    @property
    def _reaches_ends(self) -> bool:
        """Whether a batch depends on where demonstrations begin and end: single steps do not."""
        return bool(len(self._offsets) > 1 or self.goal_mode or self.get_pad_mask or self._derived)

    def _gather_obs(self, group: str, rows: Tensor, end: Tensor | None) -> dict[str, Tensor]:
        derived = self._derived if group == "next_obs" else set()
        later = torch.minimum(rows + 1, end) if derived and end is not None else rows
        return {
            key: self._gather(f"obs/{key}", later)
            if key in derived
            else self._gather(f"{group}/{key}", rows)
            for key in self.obs_keys
        }

    def _gather(self, path: str, rows: Tensor) -> Tensor:
        """Rows ``[B, T]`` of one key, ``[B, T, ...]``."""
        constant = self._constants.get(path.partition("/")[2])
        if constant is not None:
            return constant[torch.bucketize(rows, self._file_begins, right=True) - 1]
        if path in self._streamed:
            return torch.stack([self._read_window(path, window) for window in rows.cpu().numpy()])
        array = self._arrays[path]
        shape = self._step_shape(path, array)
        return array.index_select(0, rows.flatten()).view(*rows.shape, *shape)

    def _step_shape(self, path: str, array: Tensor) -> tuple[int, ...]:
        group, _, key = path.partition("/")
        return self.obs_shapes[key] if group in ("obs", "next_obs") else tuple(array.shape[1:])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open_files": {}}

    def _locate(self, row: int) -> tuple[int, int]:
        """The file and the demonstration of a row."""
        demo = int(np.searchsorted(self._demo_begins, row, side="right")) - 1
        return int(np.searchsorted(self._first_demo, demo, side="right")) - 1, demo

    def _place(self, key: str, row: int) -> str:
        source, demo = self._locate(row)
        step = row - self._demo_begins[demo]
        return f"{self.sources[source].path}: {self.demos[demo]}/{key} at step {step}"

    def _read_window(self, path: str, rows: np.ndarray) -> Tensor:
        source, demo = self._locate(rows[0])
        handle = (os.getpid(), source)
        if handle not in self._open_files:
            self._open_files[handle] = open_demos(self.sources[source].path, self.hdf5_use_swmr)
        steps = rows - self._demo_begins[demo]
        read = self._open_files[handle].read_rows(
            self.demos[demo], path, int(steps.min()), int(steps.max()) + 1
        )
        window = torch.from_numpy(read[steps - steps.min()])
        return window.view(len(rows), *self._step_shape(path, window))


def _stack_constants(constants: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Tensor]:
    """``{key: [files, ...]}``"""
    return {k: torch.from_numpy(np.stack([c[k] for c in constants])) for k in constants[0]}


def _one_for_each(value: Any, paths: Sequence[Any]) -> list[Any]:
    if isinstance(value, (list, tuple)):
        if len(value) != len(paths):
            raise ValueError(f"{len(value)} filter keys or demo limits for {len(paths)} files")
        return list(value)
    return [value] * len(paths)
