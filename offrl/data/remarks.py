"""What is odd about recorded numbers: it may be meant so."""

from collections.abc import Sequence

import numpy as np

from offrl.data.computed import action_statistics, obs_statistics, outlier

KEPT = 2**26  # bytes of each vector that remarks are on: memory does not grow with the data
SWITCHES = ("dones", "terminals", "timeouts")  # 0 or 1


def remarks_on(key: str, parts: Sequence[np.ndarray], places: Sequence[str]) -> list[str]:
    """Sentences on a key, of which ``parts`` ``[T]`` or ``[T, D]`` are at ``places``: dimensions
    that never change, actions out of range, stray values, ends that never come."""
    parts = [part.reshape(len(part), -1) for part in parts]
    if len({part.shape[1] for part in parts}) > 1 or not sum(map(len, parts)):
        return []  # which is worse than odd
    rows = np.concatenate(parts).astype(np.float64)
    if key in SWITCHES:
        is_odd = key != "timeouts" and not rows.any()
        return [f"{key} is never 1: no episode ends in success or failure"] * is_odd
    remarks = []
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
    if found := outlier(rows, scale):
        row, sentence = found
        ends = np.cumsum([len(part) for part in parts])
        part = int(np.searchsorted(ends, row, side="right"))
        step = row - int(ends[part]) + len(parts[part])
        remarks.append(f"{places[part]} at step {step}: {sentence}")
    return remarks
