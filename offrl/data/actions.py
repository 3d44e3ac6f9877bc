"""The encoding of stored actions as networks predict them: normalised vectors, or one-hot ones for
discrete actions (``train.action_config.KEY.format`` ``"discrete"``)."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from offrl.data.computed import Statistics, action_statistics

Place = Callable[[str, int], str]


def encode_actions(
    stored: Mapping[str, np.ndarray],
    integers: Collection[str],
    config: Mapping[str, Any],
    given: Mapping[str, Statistics],
    place: Place,
) -> tuple[dict[str, np.ndarray], dict[str, Statistics]]:
    """Encode actions ``{key: [N, ...]}`` as ``{key: [N, A]}``. Returns them and their statistics.

    integers: the keys whose numbers are integers in the file.
    config: ``train.action_config``. given: statistics of the training, for held-out actions.
    place: names the file, demonstration and step of a key and row.
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
            raise ValueError(
                f"{place(key, 0)} has {rows.shape[-1]} numbers, but those that the policy learned "
                f"from have {stats['scale'].shape[-1]}"
            )
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
