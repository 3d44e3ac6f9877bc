"""The steps of a replay taken whole: as the round that was just taken, or as episodes."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from offrl.data.replay import Replay

Steps = dict[str, np.ndarray]


class Rollout(Replay):
    """The steps of a round, which are learned from at once and then forgotten."""

    def begin(self, obs: Mapping[str, np.ndarray], envs: np.ndarray | None = None) -> None:
        super().begin(obs, envs)
        self.forget()  # so that each round lies behind room for earlier frames

    def take(self) -> dict[str, Any]:
        """Return everything, of ``N`` environments and ``L`` rows ``[N, L, ...]``, and begin anew.

        ``obs`` has frames, ``{key: [N, L, F, ...]}``, and ``frames`` says which, ``[N, L, F]``:
        those with the same number are the same. Where ``mask`` is true, a step was taken,
        with ``actions``, ``rewards``, ``terminated`` and ``truncated``; the next row holds what
        followed. Other rows are ends, or padding behind the last observation. If there are
        demonstrations, ``demos`` is a batch of them, with as many steps as there are rows, ``N L``.
        """
        store = self.store
        if not store.is_step.any():
            raise ValueError("no step was taken since the last update; collect some, then learn")
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


def episodes_of(replay: Mapping[str, Any], max_steps: int | None = None) -> Iterator[Steps]:
    """Yield the episodes in what ``Replay.state`` has stored, ``{"actions": [T, A], "rewards",
    "dones", "timeouts", "obs/KEY", "next_obs/KEY": [T, ...]}``, those of one environment after the
    other, each in the order in which its steps were taken.

    ``dones`` says where an episode terminated, ``timeouts`` where it stopped otherwise: at a limit,
    or because the replay ends there. Of the oldest episode the beginning may be overwritten.

    max_steps: the number of steps in all; of each environment the first that are left.
    """
    rows = {key: x.numpy() for key, x in replay["rows"].items()}
    envs = {key: x.numpy() for key, x in replay["envs"].items()}
    ends = np.cumsum(envs["filled"])
    for env, end in enumerate(ends):
        own = {key: x[end - envs["filled"][env] : end] for key, x in rows.items()}
        newest = int(envs["heads"][env] - envs["parts"][env])
        by_age = np.roll(np.arange(len(own["is_step"])), -newest - 1)
        steps = by_age[own["is_step"][by_age]]
        steps = steps[: None if max_steps is None else (max_steps + env) // len(ends)]
        observed = [key for key in own if key.startswith("obs/")]
        if not len(steps):
            continue
        # An episode begins where a step does not go on from where the one before led: the next row
        # or, where the rows wrap around (``ReplayStore.restart``), the first with the same frames.
        later, after = steps[1:], steps[:-1] + 1
        wraps = (after == len(own["is_step"]) - 1) & (own["begins"][later] == own["begins"][:1])
        for now in np.split(steps, 1 + np.flatnonzero((later != after) & ~wraps)):
            episode = {key: own[key][now] for key in ("actions", "rewards", "dones", *observed)}
            episode |= {f"next_{key}": own[key][now + 1] for key in observed}
            timeouts = np.zeros(len(now), dtype=np.float32)
            timeouts[-1] = 1 - episode["dones"][-1]
            yield episode | {"timeouts": timeouts}
