"""The edit of images in a form that training does not take: with the channels first, as numbers
that are no bytes, or without a channel."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from offrl.data.formats.hdf5 import DemoFile, located
from offrl.data.remarks import odd_image
from offrl.data.storage import StoredArray
from offrl.edits.edit import Edit, of_files


def pixels(file: DemoFile, limits: Sequence[float] | None = None) -> Edit:
    """Turn all images into ``[T, H, W, C]`` of bytes. Images of one channel keep their numbers, as
    they are depth maps.

    limits: the numbers that become 0 and 255; by default 0 and 1 if all numbers of a key lie
        between these, else 0 and 255.
    Raises ``ValueError`` where no image has to be turned, or where numbers lie outside.
    """
    if limits and limits[0] >= limits[1]:
        raise ValueError("--range: LOW has to be less than HIGH")
    first, spans = file.stored(file.demos()[0]), {}
    for key, array in first.items():
        if isinstance(array, StoredArray) and odd_image(key, array.shape[1:], array.dtype):
            is_colour = _turned(np.empty((0, *array.shape[1:]))).shape[-1] > 1
            is_scaled = array.dtype != np.uint8 and is_colour
            spans[key] = (limits or _limits(file, key)) if is_scaled else None
    if not spans:
        raise ValueError(f"{file.path}: has no images that would have to be turned")

    def change(file: DemoFile, demo: str) -> dict[str, Any]:
        trajectory = file.stored(demo)
        for key, span in spans.items():
            with located(file.path, f"data/{demo}/{key}"):
                images = _turned(trajectory[key].read())
                if span:
                    scaled = (images.astype(np.float32) - span[0]) * (255 / (span[1] - span[0]))
                    images = np.rint(scaled.clip(0, 255)).astype(np.uint8)
                trajectory[key] = images
        return trajectory

    return of_files([file], change=change)


def _turned(images: np.ndarray) -> np.ndarray:
    """Give images ``[T, C, H, W]`` or ``[T, H, W]`` the form ``[T, H, W, C]``."""
    if images.ndim == 3:
        return images[..., None]
    return images if images.shape[-1] in (1, 3, 4) else np.moveaxis(images, 1, -1)


def _limits(file: DemoFile, key: str) -> tuple[float, float]:
    """Find the numbers that are black and white by the smallest and largest ones of a key."""
    ends = [0.0]
    for demo in file.demos():
        for _, rows in file.stored(demo)[key].pieces():
            ends += [rows.min(initial=0), rows.max(initial=0)]
    if not (min(ends) >= 0 and max(ends) <= 255):
        raise ValueError(
            f"{file.path}: {key} is between {min(ends):g} and {max(ends):g}, neither within [0, 1] "
            "nor [0, 255]; say what black and white are: --range LOW HIGH"
        )
    return (0, 1) if max(ends) <= 1 else (0, 255)
