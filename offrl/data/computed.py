"""Numbers computed from data: statistics for normalisation by robomimic's conventions,
``(x - offset) / scale``; encoded actions and transformed rewards; keys that are in no file."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

Statistics = dict[str, np.ndarray]
Place = Callable[[str, int], str]

# Just inside [-1, 1], so that rounding never leaves the range that tanh can reach.
OUTPUT_MAX = 0.999999


def obs_statistics(rows: np.ndarray) -> Statistics:
    """Compute mean and population standard deviation (plus 1e-3 if that is 0) of ``[N, D]``."""
    mean, std = _mean_std(rows)
    return {"offset": mean, "scale": std + np.float32(1e-3)}


def action_statistics(rows: np.ndarray, normalization: str | None) -> Statistics:
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
    """Find an outlier in ``[N, D]`` that determines a dimension's ``scale`` ``[1, D]``, so that all
    other values are almost equal once normalised. Returns its row, and a sentence on it."""
    few = rows[:: 1 + len(rows) // 4096]  # suffice for quartiles
    low, high = np.percentile(few, (25, 75), axis=0)
    # A scale beyond the span is the fixed one of a dimension that hardly moves.
    wide = (scale[0] > 1e3 * (high - low)) & (scale[0] <= np.ptp(rows, axis=0))
    for column in np.flatnonzero(wide & (high > low)):
        values = rows[:, column]
        by_distance = np.argsort(np.abs(values - (low + high)[column] / 2))
        row, others = by_distance[-1], values[by_distance[: -1 - len(rows) // 1000]]
        if np.ptp(others) < 0.1 * np.ptp(values):  # else the dimension moves seldom
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
    """Compute ``scale * normalised(clipped(r)) + shift`` of rewards ``[N]`` or ``[N, 1]`` by
    ``config`` (``train.rewards``). Returns the result and the statistics for ``normalised``."""
    if config.get("clip"):
        rewards = rewards.clip(*config["clip"])
    stats = stats or reward_statistics(rewards, lengths, config.get("normalization"))
    normal = (rewards - stats["offset"]) / stats["scale"]
    return (config.get("scale", 1.0) * normal + config.get("shift", 0.0)).astype(np.float32), stats


def received(
    rewards: np.ndarray, config: Mapping[str, Any], stats: Mapping[str, float] | None = None
) -> np.ndarray:
    """Invert ``transformed``, up to clipping: compute the rewards within the limits ``clip``."""
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
        words = f"{normalization!r}, but all {what} of the data are the same; set it to null"
        raise ValueError(f"train.rewards.normalization: {words}")
    return {"offset": offset, "scale": scale}


def returns_to_go(
    rewards: np.ndarray, dones: np.ndarray, lengths: np.ndarray, discount: float
) -> np.ndarray:
    """Sum up the discounted rewards from each step to the end of its demonstration.

    With a discount below 1, a demonstration that stopped without terminating is continued: with its
    last reward for ever if that is negative, else with zeros, so that the result is a lower bound
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


# Functions of rewards and dones ``[sum(lengths)]``, lengths and the discount.
COMPUTED: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray, float], np.ndarray]] = {
    "returns": returns_to_go,
    "timesteps": timesteps,
}


def encode_actions(
    stored: Mapping[str, np.ndarray],
    integers: Collection[str],
    config: Mapping[str, Any],
    given: Mapping[str, Statistics],
    place: Place,
) -> tuple[dict[str, np.ndarray], dict[str, Statistics]]:
    """Encode actions ``{key: [N, ...]}`` as networks predict them, ``{key: [N, A]}``: normalised,
    or one-hot with the format ``discrete``. Returns them and their statistics.

    integers: the keys whose values are integers in the file.
    config: ``train.action_config``. given: the training data's statistics, for held-out actions.
    place: returns the file, demonstration and step of a key and row, for messages.
    """
    encoded, statistics = {}, {}
    for key, rows in stored.items():
        options, stats = dict(config.get(key) or {}), given.get(key)
        rows = rows.astype(np.float32).reshape(len(rows), -1)
        width, is_alone = rows.shape[-1], len(stored) == 1
        _check_format(key, options.get("format"), width, key in integers, is_alone, place(key, 0))
        if options.get("format") == "discrete":
            num = stats["scale"].shape[-1] if stats else options.get("num_actions")
            rows = _one_hot(key, rows[:, 0], num, place)
        if stats and stats["scale"].shape[-1] != rows.shape[-1]:
            words = f"but those that the policy learned from have {stats['scale'].shape[-1]}"
            raise ValueError(f"{place(key, 0)} has {rows.shape[-1]} numbers, {words}")
        statistics[key] = stats or action_statistics(rows, options.get("normalization"))
        encoded[key] = (rows - statistics[key]["offset"]) / statistics[key]["scale"]
    return encoded, statistics


def _check_format(
    key: str, given: str | None, width: int, is_integer: bool, is_alone: bool, place: str
) -> None:
    path = f"train.action_config.{key}.format"
    if given == "rot_6d" and width != 6:
        raise ValueError(f"{path}: rot_6d has six numbers, but {place} has {width}")
    if given == "discrete" and not (width == 1 and is_alone):
        raise ValueError(
            f"{path}: a discrete action is one integer and the only one in train.action_keys, but "
            f"{place} is {'one of several' if width == 1 else f'{width} numbers'}; set it to null, "
            "and use an algorithm for real-valued actions, such as iql"
        )
    if given is None and is_integer and width == 1 and is_alone:
        raise ValueError(
            f'{place} is an integer; if it stands for a discrete action set {path} to "discrete" '
            "and use bc or an algorithm for those, such as discrete_cql; if not, store floats"
        )


def _one_hot(key: str, actions: np.ndarray, num_actions: int | None, place: Place) -> np.ndarray:
    """Encode integers ``[N]`` as ``[N, num_actions]``, by default one more than the largest."""
    wrong = (actions != actions.round()) | (actions < 0)
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"{place(key, row)}: {actions[row]:g} is no discrete action (0, 1, 2, ...); where "
            f"actions are real numbers, set train.action_config.{key}.format to null and use an "
            "algorithm for those, such as bc or iql"
        )
    row = int(actions.argmax())
    num_actions = num_actions or int(actions[row]) + 1
    if actions[row] >= num_actions:
        raise ValueError(
            f"{place(key, row)}: action {actions[row]:g}, but there are {num_actions}, counted "
            f"from 0; set train.action_config.{key}.num_actions to how many the environment has"
        )
    return np.eye(num_actions, dtype=np.float32)[actions.astype(np.int64)]
