"""Nested dicts of arrays or tensors."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from offrl.lazy import Tensor, torch

NAMELESS = ("initial", "enabled")  # keys that mean nothing without the one above


def map_leaves(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply ``function`` to every leaf (and to the leaves at the same place in ``others``).

    ``None`` stays ``None``: an absent part of a batch, such as the goal.
    """
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        return {k: map_leaves(function, v, *(o[k] for o in others)) for k, v in tree.items()}
    return function(tree, *others)


def as_arrays(tree: Any) -> Any:
    """Turn tensors into arrays, which travel without a copy. Other leaves stay as they are."""
    return map_leaves(lambda x: x.detach().cpu().numpy() if isinstance(x, Tensor) else x, tree)


def as_tensors(tree: Any) -> Any:
    """Turn arrays into tensors, which checkpoints may hold, without copying. The memory may be
    shared between processes: do not write into it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        kinds = np.ndarray, np.generic
        return map_leaves(lambda x: torch.as_tensor(x) if isinstance(x, kinds) else x, tree)


def gather(function: Callable[[list[Any]], Any], trees: Sequence[Any]) -> Any:
    """Join trees of one shape leaf by leaf, e.g. ``gather(torch.stack, observations)``."""
    return map_leaves(lambda *leaves: function(list(leaves)), *trees)


def merge(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Copy ``base`` with the nested ``overrides`` laid over it."""
    merged = dict(base)
    for key, value in overrides.items():
        below = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[key] = merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


def without(tree: Any, path: Sequence[Any]) -> Any:
    """Copy nested dicts and lists without the item at a path, if it is there."""
    if not path or not isinstance(tree, (Mapping, list, tuple)):
        return tree
    key, *rest = path
    if key not in (tree if isinstance(tree, Mapping) else range(len(tree))):
        return without(tree, rest)
    copy = dict(tree) if isinstance(tree, Mapping) else list(tree)
    if rest:
        copy[key] = without(copy[key], rest)
    else:
        del copy[key]
    return copy


def leaves(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return the leaves of nested dicts by their dotted paths. An empty dict is a leaf."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        is_branch = isinstance(value, Mapping) and value
        found |= leaves(value, f"{above}{key}.") if is_branch else {f"{above}{key}": value}
    return found


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return pairs of leaves that differ, by their dotted paths; ``None`` for a missing one."""
    old, new = leaves(was), leaves(now)
    pairs = {key: (old.get(key), new.get(key)) for key in sorted(old.keys() | new.keys())}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def short_key(key: str, others: Iterable[str]) -> str:
    """Return the shortest end of a key that tells it from the others and is meaningful."""
    others = [f".{other}" for other in others if other != key]
    parts = key.split(".")
    ends = [".".join(parts[i:]) for i in reversed(range(len(parts))) if parts[i] not in NAMELESS]
    return next((e for e in ends if not any(x.endswith(f".{e}") for x in others)), key)
