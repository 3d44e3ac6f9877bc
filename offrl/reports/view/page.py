"""Passes data to a page without a network, as function calls in script files."""

import base64
import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

MOST_ROWS = 2000  # most rows of a series: more than a plot has pixels


def copy_assets(folder: Path) -> None:
    """Copy the page itself, without its data."""
    for asset in files(__package__).joinpath("assets").iterdir():
        (folder / asset.name).write_bytes(asset.read_bytes())


def write_script(path: Path, function: str, *arguments: Any) -> None:
    """Write a script that calls a function of the page."""
    values = ",".join(json.dumps(plain(x), separators=(",", ":")) for x in arguments)
    values = values.replace("<", "\\u003c")  # text cannot end the script or become markup
    path.write_text(f"{function}({values});\n", encoding="ascii")


def plain(value: Any) -> Any:
    """Convert a value to JSON types: numbers of six digits, null if not finite."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value


def packed(rows: np.ndarray) -> dict[str, Any]:
    """Thin a series ``[T, D]``, and encode it as the page reads it: little-endian float32 in
    base64, which keeps NaN and takes less room than digits."""
    rows, every = thinned(rows)
    with np.errstate(over="ignore"):
        data = np.ascontiguousarray(rows, "<f4").tobytes()
    return {"dims": rows.shape[1], "every": every, "data": base64.b64encode(data).decode()}


def thinned(rows: np.ndarray, most: int = MOST_ROWS) -> tuple[np.ndarray, int]:
    """Choose at most ``most`` rows of ``[T, D]`` whose curve looks the same: the smallest and the
    largest value of each stretch, in order. Returns them, and the number of steps between them."""
    if len(rows) <= most:
        return rows, 1
    every = -(-len(rows) // most)
    missing = -len(rows) % (2 * every)
    filled = np.concatenate([rows, np.repeat(rows[-1:], missing, axis=0)])
    stretches = filled.reshape(-1, 2 * every, rows.shape[1])
    low, high = np.fmin.reduce(stretches, axis=1), np.fmax.reduce(stretches, axis=1)
    rises = stretches.argmin(axis=1) <= stretches.argmax(axis=1)
    pairs = np.stack([np.where(rises, low, high), np.where(rises, high, low)], axis=1)
    return pairs.reshape(-1, rows.shape[1]), every
