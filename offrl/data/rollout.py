"""All steps of a replay: as the latest round, or as episodes."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from offrl.data.replay import Replay

Steps = dict[str, np.ndarray]


class Rollout(Replay):
    """The buffer of on-policy algorithms: the steps of one round, which is taken and cleared."""

    def begin(self, obs: Mapping[str, np.ndarray], envs: np.ndarray | None = None) -> None:
        super().begin(obs, envs)
        self.forget()  # so that each round follows room for earlier frames

    def take(self) -> dict[str, Any]:
        """Return the round of ``N`` environments and ``L`` rows, ``[N, L, ...]``, and clear it.
        ``obs`` has stacked frames, ``{key: [N, L, F, ...]}``, and equal numbers in ``frames``
        ``[N, L, F]`` mark equal frames. Where ``mask`` is true, a step was taken, with ``actions``,
        ``rewards``, ``terminated`` and ``truncated``; the next row holds the observation after it.
        Other rows are ends of episodes, or padding after the last observation. If there are
        demonstrations, ``demos`` is a batch of ``N L`` recorded steps."""
        store = self.store
        if not store.is_step.any():
            raise ValueError("no step was taken since the last update; collect some, then learn")
        first = store.parts + store.num_before
        length = int((store.heads - first).max()) + 1
        rows = torch.from_numpy(first[:, None] + np.arange(length))
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
            rollout["demos"] = self._draw_demos(self.demos, rows.numel())
        self.forget()
        return rollout

    @property
    def is_full(self) -> bool:
        """True if there may be no room for another step and the end of its episode."""
        store = self.store
        return bool((store.heads - store.parts + 3 >= store.num_rows).any())

    def forget(self) -> None:
        """Clear the buffer but for the present observations."""
        self.store.restart(np.arange(self.store.num_envs))
        self.store.is_step[:] = False


def episodes_of(replay: Mapping[str, Any], max_steps: int | None = None) -> Iterator[Steps]:
    """Yield the episodes in a state of ``Replay.state``, ``{"actions": [T, A], "rewards", "dones",
    "timeouts", "obs/KEY", "next_obs/KEY": [T, ...]}``, environment by environment, each with its
    steps in order.

    ``dones`` marks where an episode terminated, ``timeouts`` where it stopped at a limit or at the
    end of the replay. The beginning of the oldest episode may be overwritten.

    max_steps: the largest number of steps in all, the earliest of each environment.
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
        # An episode begins where a step does not continue from the state after the previous step:
        # the next row or, where rows wrap around (``ReplayStore.restart``), the first with the same
        # frames.
        later, after = steps[1:], steps[:-1] + 1
        wraps = (after == len(own["is_step"]) - 1) & (own["begins"][later] == own["begins"][:1])
        for now in np.split(steps, 1 + np.flatnonzero((later != after) & ~wraps)):
            episode = {key: own[key][now] for key in ("actions", "rewards", "dones", *observed)}
            episode |= {f"next_{key}": own[key][now + 1] for key in observed}
            timeouts = np.zeros(len(now), dtype=np.float32)
            timeouts[-1] = 1 - episode["dones"][-1]
            yield episode | {"timeouts": timeouts}
