"""Batches of windows over a store of steps, whether it was filled from files or grows."""

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from offrl.data.sources import FileColumn
from offrl.data.steps import StepStore
from offrl.data.windows import Window, Windows
from offrl.tree import map_leaves


class WindowDataset(Dataset):
    """Windows of ``T`` steps over a ``StepStore``.

    Item ``i`` is a nested dict of numpy arrays: ``obs/KEY`` and ``next_obs/KEY`` ``[T, ...]``,
    ``goal_obs/KEY`` ``[...]``, every dataset key ``[T, ...]`` and ``pad_mask`` ``[T, 1]``, true for
    steps inside the demonstration. ``get_batch`` gives many windows at once. Nothing is copied per
    window: memory is that of the data.

    goal_mode: ``"last"``, the goal is the last ``next_obs`` (of the last window's first step if
        sequences are not padded).
    """

    def __init__(
        self,
        store: StepStore,
        obs_keys: Iterable[str],
        dataset_keys: Iterable[str],
        window: Window,
        get_pad_mask: bool = False,
        goal_mode: Literal["last"] | None = None,
        load_next_obs: bool = True,
    ):
        self.store = store
        self.obs_keys = tuple(sorted(obs_keys))
        self.dataset_keys = tuple(dict.fromkeys(dataset_keys))
        self.window = window
        self.get_pad_mask = get_pad_mask
        self.goal_mode = goal_mode
        self.load_next_obs = load_next_obs
        self.make_windows()

    def make_windows(self) -> None:
        """Windows over what the store holds now; to be called when it has grown."""
        stored = self.store.columns
        self._derived = {key for key in self.obs_keys if f"next_obs/{key}" not in stored}
        self._windows = Windows(self.store.first_rows, self.lengths, self._seen(), self.window)
        self._windows.to(self.device)

    def _seen(self) -> np.ndarray:
        """The number of steps of each demonstration of which it is known what followed. If it stops
        without having terminated and there is no ``next_obs``, its last step is only that."""
        if not (self.load_next_obs and self._derived):
            return self.lengths
        if "dones" not in self.store.columns:
            return self.lengths - 1
        last = torch.from_numpy(self.store.first_rows + self.lengths - 1).to(self.device)
        dones = self.store.columns["dones"].take(last).cpu().numpy()
        return self.lengths - (dones.reshape(-1) == 0)

    def __len__(self) -> int:
        return len(self._windows)

    @property
    def lengths(self) -> np.ndarray:
        return self.store.lengths

    @property
    def n_demos(self) -> int:
        return len(self.lengths)

    @property
    def obs_shapes(self) -> dict[str, tuple[int, ...]]:
        return {key: self.store.columns[f"obs/{key}"].shape for key in self.obs_keys}

    @property
    def nbytes(self) -> int:
        return self.store.nbytes

    @property
    def device(self) -> torch.device:
        """Where the steps, and so the batches, are."""
        return self.store.device

    @property
    def is_streamed(self) -> bool:
        return any(isinstance(c, FileColumn) for c in self.store.columns.values())

    def to(self, device: torch.device | str) -> "WindowDataset":
        """Move the steps, so that batches are gathered where they are used."""
        self.store = self.store.to(device)
        self._windows.to(device)
        return self

    def get_batch(self, indices: Tensor) -> dict[str, Any]:
        """Windows ``indices`` ``[B]`` as one nested dict of tensors ``[B, T, ...]``."""
        windows, columns = self._windows, self.store.columns
        mask: Any = None  # single steps are whole
        if windows.num_steps > 1 or self.get_pad_mask:
            rows, mask = windows.rows(indices)
        else:
            rows = windows.current(indices)

        batch: dict[str, Any] = {key: columns[key].take(rows) for key in self.dataset_keys}
        batch["obs"] = {key: columns[f"obs/{key}"].take(rows) for key in self.obs_keys}
        if self.load_next_obs:
            batch["next_obs"] = self._next_obs(rows, indices)
        if self.goal_mode == "last":
            goal = self._next_obs(windows.goal(indices), indices)
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

    def _next_obs(self, rows: Tensor, indices: Tensor) -> dict[str, Tensor]:
        """The observations after ``rows``: stored ones, or those one row later."""
        columns = self.store.columns
        later = self._windows.after(rows, indices) if self._derived else rows
        return {
            key: columns[f"obs/{key}"].take(later)
            if key in self._derived
            else columns[f"next_obs/{key}"].take(rows)
            for key in self.obs_keys
        }
