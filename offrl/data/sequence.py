"""Windows over files of demonstrations: it opens files, selects demonstrations and normalises."""

import copy
import logging
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offrl.data.columns import ArrayColumn, ConstantColumn
from offrl.data.computed import (
    COMPUTED,
    Statistics,
    encode_actions,
    obs_statistics,
    stray_value,
    transformed,
)
from offrl.data.goals import DISCOUNT, GoalMode, Goals, make_goals
from offrl.data.placement import CacheMode, place_keys
from offrl.data.remarks import NOT_FOLLOWED, followed
from offrl.data.steps import Files, StepStore
from offrl.data.windows import Window, WindowDataset
from offrl.images import Form
from offrl.specs import LANGUAGE

log = logging.getLogger(__name__)
_say_once = cache(log.log)


class SequenceDataset(WindowDataset):
    """Samples of successive steps of the demonstrations in files, for training.

    ``actions`` ``[T, A]`` are all ``action_keys``, normalised and joined, discrete ones one-hot.
    Observations are float32 (images uint8), *not* normalised. Keys that no file has are zeros.
    Arguments that are not listed here are keys of the config's section ``train``.

    hdf5_path: a file or several, whose demonstrations share statistics; for several,
        ``filter_by_attribute``, ``demo_limit`` and ``top_share`` may be lists, too.
    obs_keys: the observations to load.
    get_pad_mask: add a ``pad_mask`` to batches.
    filter_by_attribute: the filter key whose demonstrations are used; ``None`` for all.
    load_next_obs: as ``train.hdf5_load_next_obs``.
    demo_limit: use only so many demonstrations, the first ones.
    top_share: use only this share of demonstrations, those with the highest returns.
    hdf5_cache_mode: ``"all"``, all in memory; ``"low_dim"``, only vectors, images are read from
        the file; ``None``, no observation in memory; ``"auto"``, all if it fits into ``cache_gb``,
        else vectors, and as many rows of the others as fit.
    cache_gb: the memory for ``"auto"``, in GB; ``None``: half of what is free.
    cache_dir: a folder for images, as ``train.cache_dir``.
    num_readers: the processes that will read ahead, whose memory is a part of ``cache_gb``.
    images: for each file, the forms of images by their keys, as ``train.data.images``.
    constants: for each file, observations ``{key: [...]}`` that are constant, such as an
        instruction's embedding, and replace stored ones. They are not normalised.
    instructions: the embeddings ``[E]`` of sentences, of which files that tell each step's task in
        words make the observation ``lang_emb``, if they have neither that nor a constant for it.
    action_stats: normalise actions by these statistics, not by the data's own.
    rewards: as ``train.rewards``.
    reward_stats: normalise rewards by these statistics, not by the data's own.
    discount: of the rewards in the dataset key ``returns``, which is computed (``COMPUTED``).
    subgoal_steps, obs_steps: as ``WindowDataset`` says.
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
        goal_mode: GoalMode | None = None,
        hdf5_cache_mode: CacheMode | None = "all",
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
        goal_shares: Mapping[str, float] | None = None,
        goal_discount: float = DISCOUNT,
        goal_rewards: bool = False,
        subgoal_steps: int | None = None,
        cache_gb: float | None = None,
        cache_dir: str | None = None,
        num_readers: int = 0,
        images: Sequence[Mapping[str, Sequence[Form]]] | None = None,
        instructions: Mapping[str, np.ndarray] | None = None,
        obs_steps: int | None = None,
    ):
        goals = make_goals(goal_mode, goal_shares, goal_discount, goal_rewards)
        _check_choices(goal_rewards, dataset_keys)
        paths = [hdf5_path] if isinstance(hdf5_path, (str, os.PathLike)) else list(hdf5_path)
        self.hdf5_path = ", ".join(map(str, paths))
        self._discount = discount
        self._obs_stats: dict[str, Statistics] = {}
        choice = (filter_by_attribute, demo_limit, top_share)
        with Files(hdf5_use_swmr, _by_path(paths, images or [{}] * len(paths))) as self._files:
            self._choose(paths, choice, action_keys[0])
            self._add_constants(constants or [{}] * len(paths), instructions or {})
            wants_next = load_next_obs or goal_mode is not None or subgoal_steps is not None
            stored = [key for key in obs_keys if f"obs/{key}" not in self.store.columns]
            shapes = self._shapes(stored, wants_next)
            others = {*dataset_keys} - {*action_keys, *COMPUTED}
            known = self.store.columns.keys() | shapes.keys()
            if load_next_obs and any(f"next_obs/{k}" not in known for k in obs_keys):
                others.add("dones")  # tells if a last step terminates
            always = {key: self._files.size(key) for key in (*others, *action_keys)}
            self._load_obs(shapes, cache_dir, always, hdf5_cache_mode, cache_gb, num_readers)
            if hdf5_normalize_obs:
                self._normalize(stored)
            self._load_others(others, rewards or {}, reward_stats)
            self._load_actions(action_keys, action_config or {}, action_stats or {})
            if load_next_obs:
                self._warn_of_breaks(obs_keys)
        keys = (*dataset_keys, *action_keys, "actions")
        window = Window(frame_stack, seq_length, pad_frame_stack, pad_seq_length)
        choices = (get_pad_mask, goals, load_next_obs, subgoal_steps, obs_steps)
        super().__init__(self.store, obs_keys, keys, window, *choices)
        self._check_windows(wants_next)
        for key in COMPUTED.keys() & {*dataset_keys}:
            self.store.fill({key: self.values(key).numpy()})

    # -- construction -----------------------------------------------------------------------------

    def _choose(self, paths: Sequence[str], choice: Sequence[Any], key: str) -> None:
        """Select demonstrations, as ``Files.choose`` does, and make the store of their steps."""
        self.sources = self._files.choose(paths, *choice, key)
        self.env_args = self.sources[0].env_args
        self.demos = [demo for source in self.sources for demo in source.demos]
        self.store = StepStore(np.concatenate([source.lengths for source in self.sources]))

    def _add_constants(
        self,
        constants: Sequence[Mapping[str, np.ndarray]],
        instructions: Mapping[str, np.ndarray],
    ) -> None:
        """Add the observations that have few values: one for each file, or for each task."""
        parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        told = self._files.told(instructions) if instructions else {}
        for k, (source, own) in enumerate(zip(self.sources, constants, strict=True)):
            few = {key: (x[None], np.zeros(source.num_steps, int)) for key, x in own.items()}
            for key, part in (({LANGUAGE: told[k]} if k in told else {}) | few).items():
                parts.setdefault(key, []).append(part)
        for key, found in parts.items():
            if len(found) < len(self.sources):
                raise ValueError(f"{self.hdf5_path}: {key} is given for some files; give all one")
            begins = np.cumsum([0, *(len(values) for values, _ in found)])
            numbers = [own + begin for (_, own), begin in zip(found, begins[:-1], strict=True)]
            values = np.concatenate([values for values, _ in found])
            column = ConstantColumn(*map(torch.from_numpy, (values, np.concatenate(numbers))))
            self.store.columns |= {f"obs/{key}": column, f"next_obs/{key}": column}

    def _shapes(self, keys: Sequence[str], wants_next: bool) -> dict[str, tuple[int, ...]]:
        """Return the shape of a step of each observation ``obs/KEY`` and ``next_obs/KEY``."""
        files, shapes = self._files, dict[str, tuple[int, ...]]()
        for key in keys:
            shape = files.shape(f"obs/{key}") or (1,)  # one number per step is a vector of length 1
            has_next = wants_next and files.all_have(f"next_obs/{key}")
            shapes |= dict.fromkeys((f"obs/{key}", f"next_obs/{key}")[: 1 + has_next], shape)
        return shapes

    def _load_obs(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        cache_dir: str | None,
        always: Mapping[str, int],
        *room: Any,
    ) -> None:
        """Read observations, or make columns of files. always, room: the bytes of other keys, and
        the last arguments of ``place_keys``."""
        files, columns = self._files, self.store.columns
        if cache_dir:
            images = {path: shape for path, shape in shapes.items() if len(shape) > 1}
            columns |= files.mapped(images, cache_dir)
        sizes = {path: files.size(path) for path in shapes if path not in columns}
        vectors = {path: size for path, size in sizes.items() if len(shapes[path]) == 1}
        found = place_keys(self.hdf5_path, sizes, vectors, always, *room)
        for path in sizes:
            if path in found.in_memory:
                self.store.fill({path: files.read(path).reshape(-1, *shapes[path])})
            else:
                columns[path] = files.streamed(path, shapes[path], found.cached[path])

    def _normalize(self, keys: Sequence[str]) -> None:
        """Compute the statistics of vectors."""
        for key in keys:
            column = self.store.columns[f"obs/{key}"]
            if len(column.shape) == 1 and key != LANGUAGE:
                read = self._files.read if column.is_streamed else self.store.values
                rows = np.asarray(read(f"obs/{key}")).reshape(-1, *column.shape)
                self._obs_stats[key] = obs_statistics(rows)
                self._warn_of_stray_values(f"obs/{key}", rows, self._obs_stats[key])

    def _warn_of_stray_values(self, key: str, rows: np.ndarray, statistics: Statistics) -> None:
        if found := stray_value(rows, statistics["scale"]):
            row, sentence = found
            log.warning(f"{self._files.place(key, row)}: {sentence}")

    def _warn_of_breaks(self, keys: Collection[str]) -> None:
        """Warn once if ``next_obs`` is not the observation of the next step."""
        columns = self.store.columns
        is_last = np.zeros(int(self.lengths.sum()), bool)
        is_last[np.cumsum(self.lengths) - 1] = True
        if isinstance(dones := columns.get("dones"), ArrayColumn):
            is_last |= dones.array.numpy().reshape(-1) == 1  # the state after it is not used
        for key in sorted(keys):
            obs, later = (columns.get(f"{group}/{key}") for group in ("obs", "next_obs"))
            if isinstance(obs, ArrayColumn) and isinstance(later, ArrayColumn):
                breaks = ~followed(obs.array.numpy(), later.array.numpy()) & ~is_last[:-1]
                if breaks.any():
                    place = self._files.place(f"next_obs/{key}", int(np.argmax(breaks)))
                    _say_once(logging.WARNING, f"{place}{NOT_FOLLOWED}")
                    return

    def _load_others(
        self, keys: Collection[str], config: Mapping[str, Any], given: Mapping[str, float] | None
    ) -> None:
        """Load rewards, dones and whatever else is neither an observation nor an action."""
        arrays = {key: self._files.read(key, or_zeros=True) for key in keys}
        for key in {"rewards", "dones"} & arrays.keys():
            if arrays[key].size != self.lengths.sum():
                words = f"has shape {list(arrays[key].shape[1:])} at each step, and is no number"
                raise ValueError(f"{self.hdf5_path}: {key} {words}")
        self.reward_stats = given
        if "rewards" in arrays:
            scaled, self.reward_stats = transformed(arrays["rewards"], self.lengths, config, given)
            arrays["rewards"] = scaled
        self.store.fill(arrays)

    def _load_actions(
        self, keys: Sequence[str], config: Mapping[str, Any], given: Mapping[str, Statistics]
    ) -> None:
        files = self._files
        stored = {key: files.read(key) for key in keys}
        integers = [key for key in keys if files.hold_integers(key)]
        for key, options in config.items():
            if key in keys and (own := dict(options or {})).get("format") == "discrete":
                where = f"train.action_config.{key}.num_actions"
                num = files.num_actions(where, own.get("num_actions"))
                config = {**config, key: {**own, "num_actions": num}}
        parts, self._action_stats = encode_actions(stored, integers, config, given, files.place)
        for key in set(keys) - set(given):
            if dict(config.get(key) or {}).get("normalization"):
                rows = stored[key].reshape(len(stored[key]), -1)
                self._warn_of_stray_values(key, rows, self._action_stats[key])
        actions = np.concatenate([*parts.values()], axis=-1)
        self.largest_actions = {key: float(np.abs(part).max()) for key, part in parts.items()}
        self.ac_dim = actions.shape[-1]
        self.store.fill(stored | {"actions": actions})

    def make_windows(self) -> None:
        super().make_windows()
        ends = np.cumsum([len(source.demos) for source in self.sources])
        counts = np.split(self._windows.counts, ends[:-1])
        pairs = zip(self.sources, counts, strict=True)
        self.sources = [replace(source, num_windows=int(part.sum())) for source, part in pairs]

    def _check_windows(self, wants_next: bool) -> None:
        seen, counts = self._seen(), self._windows.counts
        if not seen.any():
            raise ValueError(
                f"{self.hdf5_path}: all demonstrations have one step and no end (dones), and there "
                "is no next_obs: nothing is known of what follows"
            )
        short = int(np.argmin(np.where(seen > 0, counts, counts.max())))
        if counts[short] < 1:
            raise ValueError(
                f"{self.hdf5_path}: {self.demos[short]} has {seen[short]} steps, too few "
                f"for windows of frame_stack {self.window.frame_stack} and seq_length "
                f"{self.window.seq_length} without padding; set train.pad_seq_length and "
                "train.pad_frame_stack to true"
            )
        if wants_next and self._derived:
            words = f"{', '.join(sorted(self._derived))}: taken from the obs one step later"
            _say_once(logging.INFO, f"{self.hdf5_path} has no next_obs of {words}")

    # -- what it holds ----------------------------------------------------------------------------

    def __str__(self) -> str:
        return f"{self.hdf5_path} ({self.n_demos} demos)"

    @property
    def first_rows(self) -> Tensor:
        """The rows of the demonstrations' first steps."""
        return torch.from_numpy(self.store.first_rows).to(self.device)

    def get_obs_normalization_stats(self) -> dict[str, Statistics]:
        """Return ``{key: {"scale", "offset": [1, D]}}``; empty unless ``hdf5_normalize_obs``."""
        return self._obs_stats

    def get_action_normalization_stats(self) -> dict[str, Statistics]:
        """Return ``{key: {"scale", "offset": [1, D]}}``; ones and zeros if not normalised."""
        return self._action_stats

    def values(self, key: str, first: bool = False) -> Tensor:
        """Return all steps ``[sum(lengths), ...]`` of a dataset key, or of each demonstration's
        ``first``; zeros if the file lacks it. Keys in ``COMPUTED`` need not be dataset keys."""
        needed = ("rewards", "dones") if key in COMPUTED else (key,)
        for name in needed:
            if name not in self.dataset_keys:
                raise ValueError(f"train.dataset_keys: lacks {name!r}, which is needed; add it")
        if key in self.store.columns:
            rows = self.store.values(key)
        else:
            rewards, dones = (self.store.values(k).cpu().numpy().reshape(-1) for k in needed)
            computed = COMPUTED[key](rewards, dones, self.lengths, self._discount)
            rows = torch.from_numpy(computed).to(self.device)
        return rows[self.first_rows] if first else rows

    def single_steps(self) -> "SequenceDataset":
        """Return a view of the same data in which every step, with its stack of frames, is a
        window. Goals, if any, are the ends of demonstrations; rewards are those of the data."""
        view = copy.copy(self)
        view.goals, view.subgoal_steps = self.goals and Goals("last"), None
        view.window = Window(self.window.frame_stack)
        view.get_pad_mask = view.load_next_obs = False
        view.make_windows()
        return view

    def constant_obs(self, key: str) -> list[np.ndarray | None]:
        """Return for each file the value ``[...]`` of an observation that is in memory and constant
        over the file's steps, else ``None``."""
        if self.store.columns[f"obs/{key}"].is_streamed:
            return [None] * len(self.sources)
        parts = self.store.values(f"obs/{key}").cpu().split([s.num_steps for s in self.sources])
        return [part[0].numpy() if (part == part[0]).all() else None for part in parts]


def _by_path(
    paths: Sequence[str], images: Sequence[Mapping[str, Sequence[Form]]]
) -> dict[str, Mapping[str, Sequence[Form]]]:
    """Return the forms of each file's images; ``ValueError`` if a file that is named twice is said
    to have different ones."""
    forms: dict[str, Mapping[str, Sequence[Form]]] = {}
    for path, own in zip(map(str, paths), images, strict=True):
        if forms.setdefault(path, own) != own:
            words = "stands there twice, with different forms of images (images); write the same"
            raise ValueError(f"train.data: {path} {words}")
    return forms


def _check_choices(goal_rewards: bool, dataset_keys: Sequence[str]) -> None:
    if goal_rewards and "returns" in dataset_keys:
        raise ValueError(
            "train.goal_rewards: nobody knows the returns of these rewards beforehand, which "
            "train.dataset_keys asks for; use another algorithm, such as iql"
        )
