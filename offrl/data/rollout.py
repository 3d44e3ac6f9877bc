"""The steps of a round, for algorithms that learn from the steps that they have just taken."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from offrl.data.replay import Replay


class Rollout(Replay):
    """The steps of a round, which are learned from at once and then forgotten."""

    def begin(self, obs: Mapping[str, np.ndarray], envs: np.ndarray | None = None) -> None:
        super().begin(obs, envs)
        self.forget()  # so that each round lies behind room for earlier frames

    def take(self) -> dict[str, Any]:
        """Return everything as tensors of ``N`` environments and ``L`` rows, ``[N, L, ...]``, and
        begin anew with what is observed now.

        ``obs`` has frames, ``{key: [N, L, F, ...]}``, and ``frames`` says which, ``[N, L, F]``:
        those with the same number are the same. Where ``mask`` is true, a step was taken,
        with ``actions``, ``rewards``, ``terminated`` and ``truncated``; the next row holds what
        followed. Other rows are ends, or padding behind the last observation. If there are
        demonstrations, ``demos`` is a batch of them, with as many steps as there are rows, ``N L``.
        """
        store = self.store
        if not store.is_step.any():
            raise ValueError(
                "no step was taken since the last update; collect some before learning"
            )
        first = store.parts + store.num_before
        length = int((store.heads - first).max()) + 1
        rows = torch.from_numpy(first[:, None] + np.arange(length))
        frames = rows[..., None]
        if store.num_before:
            flat = rows.flatten()
            earlier = self._windows.before(flat[:, None], flat, store.num_before + 1)
            frames = earlier.unflatten(0, rows.shape)
        rollout: dict[str, Any] = {
            "obs": {key: store.columns[f"obs/{key}"].take(frames) for key in self.obs_keys},
            "frames": frames,
            "mask": (mask := torch.from_numpy(store.is_step[rows.numpy()])),
        }
        for key in self.dataset_keys:
            rollout[key] = store.columns[key].take(rows)
        ended = mask & torch.from_numpy(store.ends[rows.numpy()] == rows.numpy())
        rollout["terminated"] = ended & rollout.pop("dones").bool()
        rollout["truncated"] = ended & ~rollout["terminated"]
        if self.demos is not None:
            rollout["demos"] = self._show(self.demos, rows.numel())
        self.forget()
        return rollout

    @property
    def is_full(self) -> bool:
        """True if another step, and the end of its episode, may not find room."""
        store = self.store
        return bool((store.heads - store.parts + 3 >= store.num_rows).any())

    def forget(self) -> None:
        """Begin anew with what is observed now."""
        self.store.restart(np.arange(self.store.num_envs))
        self.store.is_step[:] = False
