"""The episodes in a replay, as demonstrations."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

Steps = dict[str, np.ndarray]


def episodes_of(replay: Mapping[str, Any], max_steps: int | None = None) -> Iterator[Steps]:
    """The episodes in what ``Replay.state`` has stored, ``{"actions": [T, A], "rewards", "dones",
    "timeouts", "obs/KEY", "next_obs/KEY": [T, ...]}``, those of one environment after the other,
    each in the order in which its steps were taken.

    ``dones`` says where an episode terminated, ``timeouts`` where it stopped otherwise: at a limit,
    or because the replay ends there. Of the oldest episode the beginning may be overwritten.

    max_steps: so many in all, the first that are left of each environment.
    """
    rows = {key: x.numpy() for key, x in replay["rows"].items()}
    envs = {key: x.numpy() for key, x in replay["envs"].items()}
    ends = np.cumsum(envs["filled"])
    for env, end in enumerate(ends):
        share = None if max_steps is None else (max_steps + env) // len(ends)
        first = end - envs["filled"][env]
        own = {key: x[first:end] for key, x in rows.items()}
        newest = int(envs["heads"][env] - envs["parts"][env])
        yield from _episodes(own, _steps_in_order(own, newest), share)


def _steps_in_order(rows: Steps, newest: int) -> np.ndarray:
    """Rows of steps by age. ``[S, 2]``: of a step, and of what was observed after it.

    Where the rows wrap around, the last one shows the same as one of the first, from which the
    episode goes on (``ReplayStore.restart``).
    """
    num = len(rows["is_step"])
    order = np.roll(np.arange(num), -newest - 1)
    steps = order[rows["is_step"][order]]
    return np.stack([steps, steps + 1], axis=1)


def _episodes(rows: Steps, steps: np.ndarray, max_steps: int | None) -> Iterator[Steps]:
    steps = steps[:max_steps]
    if not len(steps):
        return
    for part in np.split(steps, _starts(rows, steps)):
        now, after = part.T
        observed = [key for key in rows if key.startswith("obs/")]
        episode = {key: rows[key][now] for key in ("actions", "rewards", "dones", *observed)}
        episode |= {f"next_{key}": rows[key][after] for key in observed}
        timeouts = np.zeros(len(part), dtype=np.float32)
        timeouts[-1] = 1 - episode["dones"][-1]
        yield episode | {"timeouts": timeouts}


def _starts(rows: Steps, steps: np.ndarray) -> np.ndarray:
    """Which steps, but the first, begin an episode: those that do not go on from where the step
    before led, in the next row or, behind the last row, in the first with the same frames."""
    now, after = steps[1:, 0], steps[:-1, 1]
    wraps = (after == len(rows["is_step"]) - 1) & (rows["begins"][now] == rows["begins"][:1])
    return 1 + np.flatnonzero((now != after) & ~wraps)
