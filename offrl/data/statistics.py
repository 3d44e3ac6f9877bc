"""Statistics for normalisation, by robomimic's conventions: ``(x - offset) / scale``."""

from typing import Literal

import numpy as np

Statistics = dict[str, np.ndarray]

# Just inside [-1, 1], so that rounding never leaves the range that tanh can reach.
OUTPUT_MAX = 0.999999


def obs_statistics(rows: np.ndarray) -> Statistics:
    """Mean and population standard deviation of ``[N, D]``, plus 1e-3 against constant features."""
    mean, std = _mean_std(rows)
    return {"offset": mean, "scale": std + np.float32(1e-3)}


def action_statistics(
    rows: np.ndarray, normalization: Literal["min_max", "gaussian"] | None
) -> Statistics:
    """Statistics of actions ``[N, D]``; a dimension that hardly moves is shifted, not scaled."""
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


def _mean_std(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean = rows.mean(axis=0, keepdims=True, dtype=np.float64)
    std = rows.std(axis=0, keepdims=True, dtype=np.float64)
    return mean.astype(np.float32), std.astype(np.float32)
