"""Numbers that are computed from the data: statistics for normalisation by robomimic's conventions,
``(x - offset) / scale``; what training makes of the rewards; dataset keys that no file has."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

Statistics = dict[str, np.ndarray]

# Just inside [-1, 1], so that rounding never leaves the range that tanh can reach.
OUTPUT_MAX = 0.999999


def obs_statistics(rows: np.ndarray) -> Statistics:
    """Compute the mean and population standard deviation of ``[N, D]``, the latter plus 1e-3
    against constant features."""
    mean, std = _mean_std(rows)
    return {"offset": mean, "scale": std + np.float32(1e-3)}


def action_statistics(
    rows: np.ndarray, normalization: Literal["min_max", "gaussian"] | None
) -> Statistics:
    """Compute statistics of actions ``[N, D]``; a dimension that hardly moves is not scaled."""
    if normalization == "min_max":
        low = rows.min(axis=0, keepdims=True)
        span = rows.max(axis=0, keepdims=True) - low
        still = span < 1e-4
        scale = np.where(still, 1.0, span / (2 * OUTPUT_MAX)).astype(np.float32)
        offset = np.where(still, low, low + scale * OUTPUT_MAX).astype(np.float32)
        return {"scale": scale, "offset": offset}
    if normalization == "gaussian":
        mean, std = _mean_std(rows)
        return {"scale": np.where(std < 1e-6, 1.0, std).astype(np.float32), "offset": mean}
    ones = np.ones((1, rows.shape[1]), dtype=np.float32)
    return {"scale": ones, "offset": np.zeros_like(ones)}


def stray_value(rows: np.ndarray, scale: np.ndarray) -> tuple[int, str] | None:
    """Find a stray value in ``[N, D]`` that makes a dimension's ``scale`` ``[1, D]``, so that all
    others are next to the same once normalised. Returns its row, and a sentence on it."""
    few = rows[:: 1 + len(rows) // 4096]  # suffice for quartiles
    low, high = np.percentile(few, (25, 75), axis=0)
    # A scale beyond the span is none of the data's: that of a dimension that hardly moves.
    wide = (scale[0] > 1e3 * (high - low)) & (scale[0] <= np.ptp(rows, axis=0))
    for column in np.flatnonzero(wide & (high > low)):
        values = rows[:, column]
        by_distance = np.argsort(np.abs(values - (low + high)[column] / 2))
        row, others = by_distance[-1], values[by_distance[: -1 - len(rows) // 1000]]
        if np.ptp(others) < 0.1 * np.ptp(values):  # else it is one that seldom moves
            return int(row), (
                f"{values[row]:g} in dimension {column}, where half of all values are within "
                f"[{low[column]:g}, {high[column]:g}], leaves nothing of those once normalised; "
                "correct it, or leave the demonstration out with a filter key"
            )
    return None


def _mean_std(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean = rows.mean(axis=0, keepdims=True, dtype=np.float64)
    std = rows.std(axis=0, keepdims=True, dtype=np.float64)
    return mean.astype(np.float32), std.astype(np.float32)


def transformed(
    rewards: np.ndarray,
    lengths: np.ndarray,
    config: Mapping[str, Any],
    stats: Mapping[str, float] | None = None,
) -> tuple[np.ndarray, Mapping[str, float]]:
    """Compute ``scale * normalised(clipped(r)) + shift`` of every step, a number or ``[1]`` of
    each, by ``config`` (``train.rewards``). Returns them and the statistics that normalised
    them."""
    if config.get("clip"):
        rewards = rewards.clip(*config["clip"])
    stats = stats or reward_statistics(rewards, lengths, config.get("normalization"))
    normal = (rewards - stats["offset"]) / stats["scale"]
    return (config.get("scale", 1.0) * normal + config.get("shift", 0.0)).astype(np.float32), stats


def received(
    rewards: np.ndarray, config: Mapping[str, Any], stats: Mapping[str, float] | None = None
) -> np.ndarray:
    """Compute the rewards that ``transformed`` was given, within the limits of ``clip``."""
    stats = stats or {"offset": 0.0, "scale": 1.0}
    normal = (rewards - config.get("shift", 0.0)) / config.get("scale", 1.0)
    return (normal * stats["scale"] + stats["offset"]).astype(np.float32)


def reward_statistics(
    rewards: np.ndarray, lengths: np.ndarray, normalization: str | None
) -> dict[str, float]:
    """Compute ``offset`` and ``scale`` of ``(r - offset) / scale``: to [0, 1] (``min_max``), to
    mean 0 and deviation 1 (``gaussian``), or so that the returns of demonstrations are at most 1
    apart (``return``; Kostrikov et al., 2021, arXiv:2110.06169, section 5)."""
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
    """Sum up the discounted rewards from each step to the end of its demonstration.

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
    """Count the steps of each demonstration, from 0."""
    return np.concatenate([np.arange(length) for length in lengths])


# Of rewards and dones ``[sum(lengths)]``, lengths and the discount.
COMPUTED: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray, float], np.ndarray]] = {
    "returns": returns_to_go,
    "timesteps": timesteps,
}
