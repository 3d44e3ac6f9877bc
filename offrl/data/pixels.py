"""Images that are stored in another form than training takes: channels first, numbers in the place
of bytes, no channel."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from offrl.data.edit import Edit, of_files
from offrl.data.hdf5 import DemoFile, located
from offrl.data.remarks import odd_image
from offrl.data.storage import pieces, values, whole


def pixels(file: DemoFile, keys: Sequence[str] = (), limits: Sequence[float] | None = None) -> Edit:
    """The images as ``[T, H, W, C]`` of bytes; of other numbers, one channel stays so: a depth map.

    keys: the observations ``obs/KEY`` to turn, all of an odd form if none is named; ``next_obs``
        with them. limits: the numbers that become 0 and 255; by default 0 and 1, or 0 and 255,
        whichever holds all numbers of a key.
    """
    if limits and limits[0] >= limits[1]:
        raise ValueError("--range: LOW has to be less than HIGH")
    demos, demo = file.demos(), file.demos()[0]
    stored = {key: values(x) for key, x in file.stored(demo).items() if hasattr(x, "id")}
    odd = [k for k, x in stored.items() if odd_image(k, x.shape[1:], x.dtype)]
    chosen = [k for k in odd if not keys or k.removeprefix("next_") in keys]
    for key in keys or ["obs/KEY"] * (not odd):
        if key not in chosen:
            found = ", ".join(odd) or "none"
            raise ValueError(f"{file.path}: {key} is no image of an odd form; these are: {found}")
    spans = {}
    for key in chosen:
        kind, shape = stored[key].dtype, _turned(np.empty((0, *stored[key].shape[1:]))).shape
        if kind != np.uint8 and shape[-1] > 1:
            spans[key] = limits or _limits(file, demos, key)

    def change(file: DemoFile, demo: str) -> dict[str, Any]:
        trajectory = file.stored(demo)
        for key in chosen:
            with located(file.path, f"data/{demo}/{key}"):
                images = _turned(whole(trajectory[key].id))
                trajectory[key] = _bytes(images, *spans[key]) if key in spans else images
        return trajectory

    return replace(of_files([file]), change=change)


def _turned(images: np.ndarray) -> np.ndarray:
    """Images ``[T, H, W, C]`` of ``[T, C, H, W]`` or ``[T, H, W]``."""
    if images.ndim == 3:
        return images[..., None]
    return images if images.shape[-1] in (1, 3, 4) else np.moveaxis(images, 1, -1)


def _bytes(images: np.ndarray, low: float, high: float) -> np.ndarray:
    scaled = (images.astype(np.float32) - low) * (255 / (high - low))
    return np.rint(scaled.clip(0, 255)).astype(np.uint8)


def _limits(file: DemoFile, demos: Sequence[str], key: str) -> tuple[float, float]:
    ends = []
    for demo in demos:
        for _, rows in pieces(file.stored(demo)[key].id):
            ends += [rows.min(), rows.max()] if rows.size else []
    if not (min(ends) >= 0 and max(ends) <= 255):
        raise ValueError(
            f"{file.path}: {key} is between {min(ends):g} and {max(ends):g}, neither within [0, 1] "
            "nor [0, 255]; say what black and white are: --range LOW HIGH"
        )
    return (0, 1) if max(ends) <= 1 else (0, 255)
