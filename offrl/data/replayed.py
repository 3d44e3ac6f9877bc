"""The episodes in a replay, as demonstrations."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

Steps = dict[str, np.ndarray]


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
        for now in np.split(steps, _starts(own, steps)) if len(steps) else ():
            episode = {key: own[key][now] for key in ("actions", "rewards", "dones", *observed)}
            episode |= {f"next_{key}": own[key][now + 1] for key in observed}
            timeouts = np.zeros(len(now), dtype=np.float32)
            timeouts[-1] = 1 - episode["dones"][-1]
            yield episode | {"timeouts": timeouts}


def _starts(rows: Steps, steps: np.ndarray) -> np.ndarray:
    """Find the steps, but the first, that begin an episode: those that do not go on from where the
    step before led, in the next row or, behind the last row, in the first with the same frames.

    Where the rows wrap around, the last one shows the same as one of the first, from which the
    episode goes on (``ReplayStore.restart``).
    """
    now, after = steps[1:], steps[:-1] + 1
    wraps = (after == len(rows["is_step"]) - 1) & (rows["begins"][now] == rows["begins"][:1])
    return 1 + np.flatnonzero((now != after) & ~wraps)
