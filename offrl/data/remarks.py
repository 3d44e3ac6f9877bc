"""Remarks on odd data that may be intended, descriptions of wrong data, and measures that find
unusual demonstrations."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from offrl.data.computed import action_statistics, obs_statistics, stray_value
from offrl.images import advice, described, fitting, likely, step_after

KEPT = 2**26  # bytes kept of each key's vectors, so that memory is bounded
LARGEST = float(np.finfo(np.float32).max)
LOST = (
    "changes by less than float32 tells apart, in which training reads it: subtract a constant, "
    "such as the first time stamp; dimension"
)
NOT_FOLLOWED = (
    " is not the observation of the step after it: such a transition is not the environment's, "
    "unless steps are left out on purpose; leave next_obs out (offrl edit rename --drop next_obs)"
)
SWITCHES = ("dones", "terminals", "timeouts")  # 0 or 1

FEWEST = 5  # least number of demonstrations to find unusual ones
UNUSUAL = 3.5  # robust z-scores; Iglewicz and Hoaglin, How to detect and handle outliers (1993)
NORMAL_MAD = 1.4826  # standard deviations per median deviation of a normal distribution
NORMAL_MEAN = 1.2533  # ... per mean deviation
STILL = 0.1  # of a demonstration's mean speed, below which a step is still


def wrong_values(key: str, rows: np.ndarray, first: int) -> str | None:
    """Describe the first number that training refuses; ``None`` if there is none.

    rows: numbers ``[T, ...]`` of a key. first: the step of the first row.
    """
    is_fit = rows.dtype.kind != "f" or (np.abs(rows) <= LARGEST).all()
    if is_fit and (key not in SWITCHES or ((rows == 0) | (rows == 1)).all()):
        return None
    words, wrong = "holds NaN or infinity", ~np.isfinite(rows)
    if not wrong.any() and key in SWITCHES:
        words, wrong = "is neither 0 nor 1", (rows != 0) & (rows != 1)
    elif not wrong.any():
        words, wrong = "holds a value beyond what float32 can hold", np.abs(rows) > LARGEST
    return f"{words} at step {first + np.argwhere(wrong)[0, 0]} ({rows[wrong][0]:g})"


def wrong_env_args(env_args: Any) -> str | None:
    """Say what is wrong with the description of an environment, if anything is."""
    if not isinstance(env_args, dict | None):
        return "is no JSON object"
    name, kwargs = (env_args or {}).get("env_name"), (env_args or {}).get("env_kwargs", {})
    if not isinstance(name, str | None):
        return "has an env_name that is no text"
    if not isinstance(kwargs, dict):
        return "has env_kwargs that are no JSON object"
    if "env_name" in kwargs:
        return "has an env_name in env_kwargs besides its own: take that out"
    return None


class Vectors:
    """Keeps the vectors of a key, to make remarks on them."""

    def __init__(self, key: str):
        self._key, self._num_bytes = key, 0
        self.parts: list[np.ndarray] = []
        self._places: list[str] = []

    def add(self, rows: np.ndarray, place: str) -> bool:
        """Keep rows ``[T]`` or ``[T, D]``, up to ``KEPT`` bytes. Returns false for images, rewards
        and simulator states, which are not kept."""
        is_kept = rows.ndim <= 2 and self._key not in ("rewards", "states")
        if not is_kept or self._places[-1:] == [place] or self._num_bytes + rows.nbytes > KEPT:
            return False
        self.parts.append(rows)
        self._places.append(place)
        self._num_bytes += rows.nbytes
        return True

    def remarks(self) -> list[str]:
        """Write sentences on dimensions that never change or that float32 loses, on actions out of
        range, on stray values, and on ``dones`` that are never 1."""
        key, parts = self._key, [_flat(part) for part in self.parts]
        if len({part.shape[1] for part in parts}) > 1 or not sum(map(len, parts)):
            return []  # reported as an error elsewhere
        rows = np.concatenate(parts).astype(np.float64)
        if key in SWITCHES:
            is_odd = key != "timeouts" and not rows.any()
            return [f"{key} is never 1: no episode ends in success or failure"] * is_odd
        remarks = []
        if lost := lost_dimensions(parts):
            remarks.append(f"{key} {LOST} {', '.join(map(str, lost))}")
        still = np.flatnonzero(np.ptp(rows, axis=0) == 0)
        if len(still) and rows.shape[1]:
            remarks.append(f"{key} never changes in dimension {', '.join(map(str, still))}")
        is_action = key.startswith("action")
        if is_action and np.abs(rows).max() > 1.001:
            remarks.append(
                f"{key} reach {np.abs(rows).max():.3g}, beyond [-1, 1], in which policies act; set "
                f'train.action_config.{key}.normalization to "min_max"'
            )
        scale = (action_statistics(rows, "min_max") if is_action else obs_statistics(rows))["scale"]
        if found := stray_value(rows, scale):
            row, sentence = found
            ends = np.cumsum([len(part) for part in parts])
            part = int(np.searchsorted(ends, row, side="right"))
            step = row - int(ends[part]) + len(parts[part])
            remarks.append(f"{self._places[part]} at step {step}: {sentence}")
        return remarks


def _flat(part: np.ndarray) -> np.ndarray:
    return part.reshape(len(part), math.prod(part.shape[1:]))


def lost_dimensions(parts: Sequence[np.ndarray]) -> list[int]:
    """Find the dimensions of demonstrations ``[T, ...]`` whose changes between steps are mostly
    lost in float32, such as time stamps."""
    changes = lost = np.zeros(1)
    for part in parts:
        if part.dtype.itemsize > 4:
            rows = _flat(part)
            few = rows.astype(np.float32)
            is_change = rows[1:] != rows[:-1]
            changes = changes + is_change.sum(axis=0)
            lost = lost + (is_change & (few[1:] == few[:-1])).sum(axis=0)
    return np.flatnonzero(lost > 0.75 * changes).tolist()


def followed(obs: Any, next_obs: Any) -> np.ndarray:
    """Say where ``next_obs`` ``[T, ...]`` equals the ``obs`` of the next step, ``[T - 1]``. Both
    may be arrays of an open file."""
    size = max(1, int(np.prod(obs.shape[1:])))
    block, parts = max(1, 2**22 // size), [np.zeros(0, bool)]
    for start in range(0, obs.shape[0] - 1, block):
        later = obs[start + 1 : start + 1 + block]
        said = next_obs[start : start + len(later)]
        is_same = (said == later).reshape(len(later), -1).all(axis=1)
        if later.dtype.kind == "f" and not is_same.all():
            is_same = np.isclose(said, later).reshape(len(later), -1).all(axis=1)
        parts.append(is_same)
    return np.concatenate(parts)


def odd_image(
    key: str, step: Sequence[int], kind: np.dtype, low: float = 0, high: float = 1
) -> str | None:
    """Write a sentence on images in a form that training refuses, or that is seldom meant, with the
    words of a config that name it; ``None`` for all other arrays.

    step: the shape of one step. kind: the type of its numbers, between ``low`` and ``high``.
    """
    group, _, name = key.partition("/")
    if group not in ("obs", "next_obs") or kind.kind not in "fiub":
        return None
    needed = fitting(step, kind, low, high)
    forms = needed + likely(*step_after(step, kind, needed), high)
    if not forms:
        return None
    words = "if that is not meant,"
    if needed:
        words = "trainings take images [H, W, C] of uint8, and depth maps [H, W, 1];"
    stored = f"{key} is {list(step)} of {kind}: {described(forms)}"
    return f"{stored}; {words} {advice(name, forms)}"


def features(demo: Mapping[str, Any]) -> dict[str, float]:
    """Measure a trajectory: its ``length`` and ``return`` (NaN without rewards), ``largest
    action`` and ``mean action`` by absolute value, ``jerkiness``, the mean change of actions from
    step to step, and ``stillness``, the share of steps with hardly any change of observations."""
    actions = np.asarray(demo["actions"], np.float64)
    vectors = [v for k, v in demo.items() if k.startswith("obs/") and is_vectors(v, len(actions))]
    with np.errstate(all="ignore"):  # values that are not finite stay so
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
    """Say whether an array of a trajectory has a number or a vector (no image) for each step."""
    is_numbers = isinstance(array, np.ndarray) and array.dtype.kind in "fiub"
    return is_numbers and array.ndim in (1, 2) and array.size > 0 and len(array) == length


def unusual(features: Mapping[str, np.ndarray]) -> list[tuple[int, str]]:
    """Find the demonstrations that are unlike the others, the strangest first, and say why.

    features: ``[N]`` values each. A value is unusual if it is not finite, or more than 3.5 standard
        deviations (by the median deviation; by the mean one if most are equal) from the median.
    """
    found = []
    for name, values in features.items():
        values = np.asarray(values, np.float64)
        is_finite = np.isfinite(values)
        finite = values[is_finite]
        if len(finite) < FEWEST:
            continue
        centre, smallest = np.median(finite), 1e-6 * np.abs(finite).max()  # rounding
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
