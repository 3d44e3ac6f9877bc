"""Measures of demonstrations, and those that are unlike the others."""

from collections.abc import Mapping
from typing import Any

import numpy as np

FEWEST = 5  # demonstrations of which one can be unlike the others
UNUSUAL = 3.5  # robust z-scores; Iglewicz and Hoaglin, How to detect and handle outliers (1993)
NORMAL_MAD = 1.4826  # standard deviations, of what is normally distributed, per median deviation
NORMAL_MEAN = 1.2533  # ... per mean deviation
STILL = 0.1  # of a demonstration's mean speed


def features(demo: Mapping[str, Any]) -> dict[str, float]:
    """Measure a trajectory: its ``length`` and ``return`` (NaN without rewards), ``largest
    action`` and ``mean action`` by absolute value, ``jerkiness``, the mean change of actions from
    step to step, and ``stillness``, the share of steps in which what is observed hardly moves."""
    actions = np.asarray(demo["actions"], np.float64)
    vectors = [v for k, v in demo.items() if k.startswith("obs/") and is_vectors(v, len(actions))]
    with np.errstate(all="ignore"):  # what is not finite stays so
        sizes, changes = np.abs(actions), np.abs(np.diff(actions, axis=0))
        return {
            "length": float(len(actions)),
            "return": float(np.sum(demo.get("rewards", np.nan), dtype=np.float64)),
            "largest action": float(sizes.max()),
            "mean action": float(sizes.mean()),
            "jerkiness": float(changes.mean()) if len(changes) else 0.0,
            "stillness": _stillness(vectors or [actions]),
        }


def is_vectors(array: Any, length: int) -> bool:
    """Say whether an array of a trajectory is a number or a vector for each step: no image."""
    is_numbers = isinstance(array, np.ndarray) and array.dtype.kind in "fiub"
    return is_numbers and array.ndim in (1, 2) and array.size > 0 and len(array) == length


def unusual(features: Mapping[str, np.ndarray]) -> list[tuple[int, str]]:
    """Find the demonstrations that are unlike the others, the strangest first, each with a sentence
    on what is unusual.

    features: ``[N]`` values each. One is unusual that is not finite, or further from the median
    than 3.5 standard deviations as the median deviation gives them (the mean deviation, where most
    values are equal).
    """
    found = []
    for name, values in features.items():
        values = np.asarray(values, np.float64)
        is_finite = np.isfinite(values)
        finite = values[is_finite]
        if len(finite) < FEWEST:
            continue
        centre, smallest = np.median(finite), 1e-6 * np.abs(finite).max()  # less is rounding
        deviations = np.abs(finite - centre)
        spread = NORMAL_MAD * np.median(deviations)
        if spread <= smallest:
            spread = NORMAL_MEAN * deviations.mean()
        scores = np.full(len(values), np.inf)
        scores[is_finite] = 0.0 if spread <= smallest else (finite - centre) / spread
        for i in np.flatnonzero(np.abs(scores) > UNUSUAL):
            value, side = values[i], "above" if scores[i] > 0 else "below"
            words = f"its {name} is {value:g}"
            if is_finite[i]:
                words = f"its {name}, {value:.4g}, is far {side} the median of {centre:.4g} "
                words += f"(z = {scores[i]:.1f})"
            found.append((-abs(scores[i]), int(i), words))
    return [(i, words) for _, i, words in sorted(found)]


def _stillness(vectors: list[np.ndarray]) -> float:
    # Speeds are relative to each dimension's mean, so that none counts more by its unit.
    rows = np.concatenate([np.reshape(v, (len(v), -1)) for v in vectors], axis=1, dtype=np.float64)
    speeds = np.abs(np.diff(rows, axis=0))
    means = speeds.mean(axis=0) if len(speeds) else np.zeros(0)
    if not np.any(means > 0):
        return 1.0
    relative = (speeds[:, means > 0] / means[means > 0]).mean(axis=1)
    return float((relative < STILL).mean())
