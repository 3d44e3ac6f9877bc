"""Windows over demonstrations, by index arithmetic on one contiguous array per key."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from offrl.data.sources import OpenSources
from offrl.data.statistics import Statistics, obs_statistics
from offrl.data.windows import Windows
from offrl.specs import LANGUAGE
from offrl.tree import gather, map_leaves

log = logging.getLogger(__name__)


@cache
def _say_once(message: str) -> None:
    log.info(message)


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

        choice = (filter_by_attribute, demo_limit, top_share)
        with OpenSources(paths, *choice, self.action_keys[0], hdf5_use_swmr) as files:
            self.sources = files.sources
            self.env_args = self.sources[0].env_args
            self.demos = [demo for source in self.sources for demo in source.demos]
            self.lengths = np.concatenate([source.lengths for source in self.sources])
            self._constants = gather(lambda x: torch.from_numpy(np.stack(x)), constants or [{}])
            self._make_windows(self.lengths - self._without_end(files))
            self._load(files)

    # -- construction -----------------------------------------------------------------------------

    def _make_windows(self, seen: np.ndarray) -> None:
        """Windows over the first ``seen`` steps of each demonstration."""
        self._windows = Windows(
            self.lengths,
            seen,
            self.n_frame_stack,
            self.seq_length,
            self.pad_frame_stack,
            self.pad_seq_length,
        )
        counts = self._windows.counts
        empty = np.flatnonzero(self.lengths < 1)
        if len(empty):
            raise ValueError(
                f"{self.hdf5_path}: {self.demos[empty[0]]} has no steps; leave it out with a "
                "filter key, or delete it"
            )
        if not seen.any():
            raise ValueError(
                f"{self.hdf5_path}: all demonstrations have one step and no end (dones), and there "
                "is no next_obs: nothing is known of what follows"
            )
        short = int(np.argmin(np.where(seen > 0, counts, counts.max())))
        if counts[short] < 1:
            raise ValueError(
                f"{self.hdf5_path}: {self.demos[short]} has {seen[short]} steps, too few "
                f"for windows of frame_stack {self.n_frame_stack} and seq_length {self.seq_length} "
                "without padding; set train.pad_seq_length and train.pad_frame_stack to true"
            )
        first_demo = np.cumsum([0, *(len(source.demos) for source in self.sources)])
        self._first_demo = first_demo[:-1]
        for source, start, stop in zip(self.sources, first_demo, first_demo[1:], strict=False):
            source.num_windows = int(counts[start:stop].sum())
        self._demo_begins = np.cumsum(self.lengths) - self.lengths
        self._file_begins = torch.from_numpy(self._demo_begins[self._first_demo])

    def _load(self, files: OpenSources) -> None:
        self._arrays: dict[str, Tensor] = {}
        self._streamed: set[str] = set()
        stored = [key for key in self.obs_keys if key not in self._constants]
        # A number per step is a vector of one.
        self.obs_shapes = {k: files.shape(f"obs/{k}") or (1,) for k in stored}
        self.obs_shapes |= {k: tuple(values.shape[1:]) for k, values in self._constants.items()}
        self._obs_stats: dict[str, Statistics] = {}

        wants_next = self.load_next_obs or self.goal_mode is not None
        has_next = [key for key in stored if files.all_have(f"next_obs/{key}")]
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
                    rows = torch.from_numpy(files.read(path))
                    self._arrays[path] = rows.view(len(rows), *self.obs_shapes[key])
                else:
                    files.check(path)
                    self._streamed.add(path)
            if self.hdf5_normalize_obs and is_vector and key != LANGUAGE:
                path = f"obs/{key}"
                values = self._arrays[path].numpy() if cached else files.read(path)
                self._obs_stats[key] = obs_statistics(values.reshape(len(values), -1))

        for key in [key for key in self.dataset_keys if key not in COMPUTED]:
            if key in self.action_keys:
                files.shape(key)
                self._arrays[key] = torch.from_numpy(files.read(key))
            elif files.some_have(key):
                self._arrays[key] = torch.from_numpy(files.read_or_zeros(key))
            else:
                self._arrays[key] = torch.zeros(int(self.lengths.sum()), 1)
        self._transform_rewards()
        self._join_actions(files)

    def _transform_rewards(self) -> None:
        for key in {"rewards", "dones"} & self._arrays.keys():
            if self._arrays[key].numel() != self.lengths.sum():
                shape = list(self._arrays[key].shape[1:])
                raise ValueError(
                    f"{self.hdf5_path}: {key} has shape {shape} at each step; it is to be a number"
                )
        if "rewards" in self._arrays:
            stored = self._arrays["rewards"]
            rewards, self.reward_stats = transformed(
                stored.numpy().reshape(-1), self.lengths, self._reward_config, self.reward_stats
            )
            self._arrays["rewards"] = torch.from_numpy(rewards).view(stored.shape)
        for key in set(self.dataset_keys) & set(COMPUTED):
            self._arrays[key] = self.values(key)

    def _without_end(self, files: OpenSources) -> np.ndarray:
        """Of each demonstration, 1 if it stops without having terminated and the file has no
        ``next_obs``: its last step is then only what follows the one before, else 0."""
        keys = [f"next_obs/{key}" for key in self.obs_keys if key not in self._constants]
        if not self.load_next_obs or all(files.all_have(key) for key in keys):
            return np.zeros_like(self.lengths)
        if not files.some_have("dones"):
            return np.ones_like(self.lengths)
        dones = files.read_or_zeros("dones").reshape(-1)[np.cumsum(self.lengths) - 1]
        return (dones == 0).astype(self.lengths.dtype)

    def _join_actions(self, files: OpenSources) -> None:
        parts, self._action_stats = encode_actions(
            {key: self._arrays[key].numpy() for key in self.action_keys},
            [key for key in self.action_keys if files.hold_integers(key)],
            self.action_config,
            self._given_action_stats,
            self._place,
        )
        self.largest_actions = {key: float(np.abs(part).max()) for key, part in parts.items()}
        self._arrays["actions"] = torch.from_numpy(np.concatenate([*parts.values()], axis=-1))
        self.ac_dim = self._arrays["actions"].shape[-1]

    # -- what it holds ----------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._windows)

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
        return self._windows.device

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
        zeros if the file has none. One of ``COMPUTED`` need not be among ``dataset_keys``."""
        needed = ("rewards", "dones") if key in COMPUTED else (key,)
        for name in needed:
            if name not in self._arrays:
                raise ValueError(f"train.dataset_keys: lacks {name!r}, which is needed; add it")
        rows = self._arrays.get(key)
        if rows is None:
            parts = (self._arrays[name].cpu().numpy().reshape(-1) for name in needed)
            computed = COMPUTED[key](*parts, self.lengths, self._discount)
            rows = torch.from_numpy(computed).to(self.device)
        return rows[self.first_rows] if first else rows

    def single_steps(self) -> SequenceDataset:
        """The same data, not copied: every step by itself, with its stack of frames."""
        view = copy.copy(self)
        view.seq_length, view.pad_seq_length, view.pad_frame_stack = 1, True, True
        view.get_pad_mask = view.load_next_obs = False
        view.sources = [replace(source) for source in self.sources]
        view._make_windows(self.lengths)
        view._windows.to(self.device)
        view._file_begins = self._file_begins
        return view

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
        self._file_begins = self._file_begins.to(device)
        self._windows.to(device)
        return self

    # -- windows ----------------------------------------------------------------------------------

    def get_batch(self, indices: Tensor) -> dict[str, Any]:
        """Windows ``indices`` ``[B]`` as one nested dict of tensors ``[B, T, ...]``."""
        windows = self._windows
        if windows.num_steps > 1 or self.get_pad_mask:
            rows, mask = windows.rows(indices)
        else:  # single steps are whole
            rows, mask = windows.current(indices), None

        keys = dict.fromkeys((*self.dataset_keys, "actions"))
        batch: dict[str, Any] = {key: self._gather(key, rows) for key in keys}
        batch["obs"] = {key: self._gather(f"obs/{key}", rows) for key in self.obs_keys}
        if self.load_next_obs:
            batch["next_obs"] = self._gather_next(rows, indices)
        if self.goal_mode == "last":
            goal = self._gather_next(windows.goal(indices), indices)
            batch["goal_obs"] = {k: v[:, 0] for k, v in goal.items()}
        if self.get_pad_mask:
            batch["pad_mask"] = mask[..., None]
            for group in {"obs", "next_obs"} & batch.keys():
                batch[group]["pad_mask"] = batch["pad_mask"]
        return batch

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        batch = self.get_batch(torch.tensor([index % len(self)], device=self.device))
        return map_leaves(lambda x: x[0].cpu().numpy(), batch)

    def _gather_next(self, rows: Tensor, indices: Tensor) -> dict[str, Tensor]:
        """The observations after ``rows``: stored ones, or those one row later."""
        later = self._windows.after(rows, indices) if self._derived else rows
        return {
            key: self._gather(f"obs/{key}", later)
            if key in self._derived
            else self._gather(f"next_obs/{key}", rows)
            for key in self.obs_keys
        }

    def _gather(self, path: str, rows: Tensor) -> Tensor:
        """Rows ``[B, T]`` of one key, ``[B, T, ...]``."""
        array = self._arrays.get(path)
        if array is not None:
            return array.index_select(0, rows.flatten()).view(*rows.shape, *array.shape[1:])
        key = path.partition("/")[2]
        if path in self._streamed:
            windows = [self._read_window(path, window) for window in rows.cpu().numpy()]
            return torch.stack(windows).view(*rows.shape, *self.obs_shapes[key])
        return self._constants[key][torch.bucketize(rows, self._file_begins, right=True) - 1]

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
        return torch.from_numpy(read[steps - steps.min()])
