"""The numbers, arrays and random generators of a vector of environments, copied and put back."""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import gymnasium
import numpy as np

# Attributes that describe a vector and do not change.
CONSTANT = ("spec", "metadata")


def snapshot(env: gymnasium.vector.VectorEnv) -> dict[str, Any]:
    """Copy all attributes of ``env``, and of what it wraps, to nested dicts and lists of arrays,
    numbers and strings. ``ValueError`` if they are not all of its state."""
    arrays: dict[str, np.ndarray] = {}
    stored = _stored(env, "", arrays)
    for (name, one), (other_name, other) in combinations(arrays.items(), 2):
        if np.may_share_memory(one, other):  # a step may write to both at once
            raise ValueError(f"its {name} and {other_name} are parts of the same array")
    return stored


def _stored(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, gymnasium.vector.VectorEnv):
        return {
            key: _stored(item, f"{name}.{key}".strip("."), arrays)
            for key, item in vars(value).items()
            if key not in CONSTANT and not isinstance(item, gymnasium.Space)
        }
    if isinstance(value, np.random.Generator):
        return _stored(value.bit_generator.state, name, arrays)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        arrays[name] = value
        return value.copy()
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return np.asarray(value)  # which keeps its type
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (list, tuple)):
        return [_stored(item, f"{name}[{i}]", arrays) for i, item in enumerate(value)]
    if isinstance(value, dict) and all(type(key) in (int, str) for key in value):
        return {key: _stored(item, f"{name}[{key!r}]", arrays) for key, item in value.items()}
    raise ValueError(f"its {name} is a {type(value).__name__}, not numbers")


def put_back(now: Any, stored: Any) -> Any:
    """Make a vector, made with the same arguments, what it was at its ``snapshot``. Returns what
    stands in the place of ``now``: itself if it is an object with a state."""
    if isinstance(now, gymnasium.vector.VectorEnv):
        for key, item in stored.items():
            setattr(now, key, put_back(getattr(now, key, None), item))
        return now
    if isinstance(now, np.random.Generator):
        now.bit_generator.state = put_back(None, stored)
        return now
    if isinstance(stored, Mapping):
        below = now if isinstance(now, Mapping) else {}
        return {key: put_back(below.get(key), item) for key, item in stored.items()}
    if isinstance(stored, list):
        items = [put_back(None, item) for item in stored]
        return tuple(items) if isinstance(now, tuple) else items
    if stored is None or isinstance(stored, (bool, int, float, str)):
        return stored
    array = np.array(stored)
    return array if array.ndim else array[()]
