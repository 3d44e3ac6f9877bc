"""What training makes of the rewards, and the dataset keys that are computed from them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def transformed(
    rewards: np.ndarray,
    lengths: np.ndarray,
    config: Mapping[str, Any],
    stats: Mapping[str, float] | None = None,
) -> tuple[np.ndarray, Mapping[str, float]]:
    """``scale * normalised(clipped(r)) + shift`` of every step, a number or ``[1]`` of each, by
    ``config`` (``train.rewards``); and the statistics that they were normalised by."""
    if config.get("clip"):
        rewards = rewards.clip(*config["clip"])
    stats = stats or reward_statistics(rewards, lengths, config.get("normalization"))
    normal = (rewards - stats["offset"]) / stats["scale"]
    return (config.get("scale", 1.0) * normal + config.get("shift", 0.0)).astype(np.float32), stats


def reward_statistics(
    rewards: np.ndarray, lengths: np.ndarray, normalization: str | None
) -> dict[str, float]:
    """``offset`` and ``scale`` of ``(r - offset) / scale``: to [0, 1] (``min_max``), to mean 0 and
    deviation 1 (``gaussian``), or so that the returns of demonstrations are at most 1 apart
    (``return``; Kostrikov et al., 2021, arXiv:2110.06169, section 5)."""
    rewards, offset, scale = rewards.reshape(-1), 0.0, 1.0
    if normalization == "return":
        returns = np.add.reduceat(rewards, np.cumsum(lengths) - lengths, dtype=np.float64)
        scale = float(np.ptp(returns))
    elif normalization == "min_max":
        offset, scale = float(rewards.min()), float(np.ptp(rewards))
    elif normalization == "gaussian":
        offset, scale = float(rewards.mean(dtype=np.float64)), float(rewards.std(dtype=np.float64))
    if scale < 1e-8:
        what = "returns" if normalization == "return" else "rewards"
        raise ValueError(
            f"train.rewards.normalization: {normalization!r}, but all {what} of the data are the "
            "same; set it to null"
        )
    return {"offset": offset, "scale": scale}


def returns_to_go(
    rewards: np.ndarray, dones: np.ndarray, lengths: np.ndarray, discount: float
) -> np.ndarray:
    """The discounted sum of the rewards from each step to the end of its demonstration.

    With a discount below 1, one that stopped without having terminated goes on: with its last
    reward for ever if that is a penalty, else with nothing, which no policy does worse than
    (Nakamoto et al., 2023, arXiv:2303.05479, in its authors' code).
    """
    returns, ends = rewards.astype(np.float64), np.cumsum(lengths) - 1
    if discount < 1:
        unfinished = ends[dones[ends] == 0]
        returns[unfinished] += discount / (1 - discount) * returns[unfinished].clip(max=0)
    last = set(ends)
    for row in reversed(range(len(rewards) - 1)):
        if row not in last:
            returns[row] += discount * returns[row + 1]
    return returns.astype(np.float32)


def timesteps(
    rewards: np.ndarray, dones: np.ndarray, lengths: np.ndarray, discount: float
) -> np.ndarray:
    """The number of each step in its demonstration, from 0."""
    return np.concatenate([np.arange(length) for length in lengths])


# Of rewards and dones ``[sum(lengths)]``, lengths and the discount.
COMPUTED: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray, float], np.ndarray]] = {
    "returns": returns_to_go,
    "timesteps": timesteps,
}
