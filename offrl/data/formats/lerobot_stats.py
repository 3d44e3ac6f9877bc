"""Statistics of LeRobot's features, by which its policies normalise."""

from collections.abc import Mapping
from typing import Any

import numpy as np

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
RANKS = {"min": 0, **QUANTILES, "max": 1}
SAMPLED = 100  # images of an episode that statistics are computed of
JOINED: dict[str, Any] = {"min": np.minimum, "max": np.maximum}  # all other sums are added

Statistics = dict[str, dict[str, np.ndarray]]  # of each feature


def statistics(values: np.ndarray) -> dict[str, np.ndarray]:
    """Compute statistics of each column of rows ``[T]`` or ``[T, D]``."""
    columns = np.sort(values.reshape(len(values), -1).T.astype(np.float64))
    last = len(values) - 1
    found = {name: columns[:, round(share * last)] for name, share in RANKS.items()}
    found |= {"mean": columns.mean(1), "std": columns.std(1), "count": np.array([len(values)])}
    return found


def image_statistics(images: np.ndarray) -> dict[str, np.ndarray]:
    """Compute statistics of the channels, from 0 to 1, of some of the images ``[T, H, W, 3]``."""
    some = np.linspace(0, len(images) - 1, min(len(images), SAMPLED)).round().astype(int)
    channels = np.moveaxis(images[some], -1, 0).reshape(3, -1)
    counts = np.array([np.bincount(channel, minlength=256) for channel in channels])
    values, last, up_to = np.arange(256) / 255, channels.shape[1] - 1, np.cumsum(counts, axis=1)
    found = {k: values[np.argmax(up_to > round(rank * last), axis=1)] for k, rank in RANKS.items()}
    mean, square = (counts @ powers / channels.shape[1] for powers in (values, values**2))
    found |= {"mean": mean, "std": np.sqrt(np.maximum(0, square - mean**2))}
    return {k: v.reshape(3, 1, 1) for k, v in found.items()} | {"count": np.array([len(some)])}


class Aggregate:
    """Aggregates the statistics of episodes to those of the data set, by which LeRobot's policies
    normalise; quantiles are means, as in LeRobot."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[str, np.ndarray]] = {}

    def add(self, stats: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        for name, values in stats.items():
            count, mean = values["count"], values["mean"]
            new = {"min": values["min"], "max": values["max"], "count": count}
            new["square"] = count * (values["std"] ** 2 + mean**2)
            new |= {key: count * values[key] for key in ("mean", *QUANTILES)}
            sums = self._sums.setdefault(name, new)
            if sums is not new:
                for key, value in new.items():
                    sums[key] = JOINED.get(key, np.add)(sums[key], value)

    def values(self) -> dict[str, dict[str, Any]]:
        found = {}
        for name, sums in self._sums.items():
            values = {key: sums[key] for key in ("min", "max", "count")}
            values |= {key: sums[key] / sums["count"] for key in ("mean", *QUANTILES)}
            square = sums["square"] / sums["count"]
            values["std"] = np.sqrt(np.maximum(0, square - values["mean"] ** 2))
            found[name] = {key: value.tolist() for key, value in values.items()}
        return found
