"""The values that any config may hold: maps, lists, text, numbers, true, false, null."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from offrl.registry import shown

T = TypeVar("T")
MOST_LEVELS, MOST_VALUES = 50, 100_000
REPEATED = object()  # marks the value of a key that a file sets twice


def place(*path: Any) -> str:
    """Write a dotted path, or a file's, for a message: unquoted if it is one short line."""
    parts = [str(part) for part in path]
    return ".".join(p if p.isprintable() and len(p) <= 300 else shown(p) for p in parts)


def check_content(content: T) -> T:
    """Return the content of a config. Raises ``ValueError`` with the dotted path of the first value
    that no config can hold."""
    for count, (path, value) in enumerate(_walk(content)):
        where = f"{place(*path[:5])}: " if path else ""
        if len(path) > MOST_LEVELS:
            raise ValueError(
                f"{where}sections within sections, over more than {MOST_LEVELS} levels (or one "
                "that holds itself); a config has a few"
            )
        if count == MOST_VALUES:
            raise ValueError(
                f"{where}more than {MOST_VALUES} values (aliases count each time); leave some out"
            )
        problem = _problem(value)
        if problem:
            raise ValueError(f"{place(*path) or 'a config'}: {problem}")
    return content


def _walk(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    yield path, value
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _walk(below, (*path, key))
    elif isinstance(value, (list, tuple)):
        for i, below in enumerate(value):
            yield from _walk(below, (*path, i))


def _problem(value: Any) -> str | None:
    """Say what is wrong with a value by itself."""
    if value is REPEATED:
        return "given twice; keep one of the two"
    if isinstance(value, Mapping):
        odd = [key for key in value if not isinstance(key, str) or _is_odd_text(key)]
        return f"the key {shown(odd[0])} is no ordinary text; rename or quote it" if odd else None
    if isinstance(value, str):
        odd_text = f"{shown(value)} holds a NUL or half a character; leave it out"
        return odd_text if _is_odd_text(value) else None
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{value} is no finite number"
    if isinstance(value, int):
        fits = -(2**63) <= value < 2**64
        return None if fits else "the number does not fit into 64 bits; give a smaller one"
    if value is None or isinstance(value, (list, tuple, Path)):
        return None
    from pydantic import BaseModel  # not in files

    if isinstance(value, BaseModel):
        return None
    return f"{shown(value)} is neither text nor a number, list or map; put text in quotes"


def _is_odd_text(text: str) -> bool:
    """Say whether text cannot name a file or be printed: it has a NUL or a lone surrogate."""
    return "\0" in text or any("\ud800" <= c <= "\udfff" for c in text)
