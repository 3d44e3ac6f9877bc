"""The forms in which other programs store images, and how each becomes offrl's own.

Trainings take images ``[H, W, C]`` of uint8, and depth maps ``[H, W, 1]`` of other numbers. An
entry of ``FORMS`` turns rows ``[N, ...]`` of a form, and raises ``ValueError`` for others.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

Form = Literal[
    "channels_first",
    "no_channel",
    "unit_floats",
    "signed_floats",
    "byte_numbers",
    "rgba",
    "grey",
    "millimetres",
]
CHANNELS = (1, 3, 4)
SMALLEST = 8  # pixels of a side; smaller arrays are taken for matrices


def turned(rows: np.ndarray, forms: Iterable[Form]) -> np.ndarray:
    """Turn rows ``[N, ...]`` by several forms, one after the other. ``ValueError`` says which of
    them they do not have."""
    for form in forms:
        try:
            rows = FORMS[form].turn(rows)
        except ValueError as error:
            raise ValueError(f"{error} ({form})") from None
    return rows


def step_after(
    step: Sequence[int], kind: np.dtype, forms: Iterable[Form]
) -> tuple[tuple[int, ...], np.dtype]:
    """Return the shape and type that a step ``[...]`` has when it is turned. ``ValueError`` says
    which form it does not have."""
    none = turned(np.empty((0, *step), kind), forms)
    return none.shape[1:], none.dtype


def scaled(rows: np.ndarray, forms: Iterable[Form], low: float, high: float) -> np.ndarray:
    """Turn rows, and map their numbers from ``low`` to ``high`` to uint8, 0 to 255; others become
    the nearer one."""
    return _in_bytes(turned(rows, forms), low, high).clip(0, 255).astype(np.uint8)


def pictures(rows: Any) -> np.ndarray | None:
    """Return images ``[T, ...]`` of any form as uint8 ``[T, H, W, 1 or 3]``, to look at; ``None``
    for all else, such as depth maps."""
    if not isinstance(rows, np.ndarray) or rows.ndim not in (3, 4):
        return None
    step, kind, ends = rows.shape[1:], rows.dtype, (0, 1)
    if kind.kind in "fiu" and kind != np.uint8:
        ends = rows.min(initial=0), rows.max(initial=0)
    forms = fitting(step, kind, *ends)
    try:
        forms += likely(*step_after(step, kind, forms), ends[1])
        shape, kind = step_after(step, kind, forms)
        if kind != np.uint8 or len(shape) != 3 or shape[-1] not in (1, 3):
            return None
        if not forms:
            return rows
        # One by one, as they are floats in between.
        parts = (rows[start : start + 1] for start in range(max(1, len(rows))))
        return np.concatenate([turned(part, forms) for part in parts])
    except ValueError:  # numbers that are no colours
        return None


def fitting(step: Sequence[int], kind: np.dtype, low: float = 0, high: float = 1) -> list[Form]:
    """List the forms of an image that trainings refuse as it is; none for others, and for what is
    no image. Numbers of one channel are maps.

    step: its shape. kind: the type of its numbers, which are between ``low`` and ``high``.
    """
    if len(step) not in (2, 3) or min(sorted(step)[-2:]) < SMALLEST:
        return []
    first: list[Form] = ["no_channel"] if len(step) == 2 else []
    if len(step) == 3 and step[-1] not in CHANNELS:
        if step[0] not in CHANNELS:
            return []
        first = ["channels_first"]
    (*_, channels), _ = step_after(step, kind, first)
    if kind == np.uint8 or channels == 1:
        return first
    if kind.kind != "f" or high > 1:
        return [*first, "byte_numbers"]
    return [*first, "signed_floats" if low < 0 else "unit_floats"]


def likely(step: Sequence[int], kind: np.dtype, high: float) -> list[Form]:
    """List the forms that an image may have though trainings take it as it is: a fourth channel
    that is no colour, and depth in millimetres. ``high`` is its largest number; labels are less."""
    if len(step) != 3 or min(step[:2]) < SMALLEST:
        return []
    if kind == np.uint8 and step[-1] == 4:
        return ["rgba"]
    is_depth = kind.kind in "iu" and kind.itemsize == 2 and high > 255
    return ["millimetres"] if is_depth and step[-1] == 1 else []


def advice(key: str, forms: Sequence[Form]) -> str:
    """Say how images of these forms are trained on. key: without ``obs/``."""
    names = ", ".join(f'"{form}"' for form in forms)
    return (
        f'write "images": {{"{key}": [{names}]}} into the entry of train.data, or turn the file: '
        f"offrl edit pixels IN --output OUT --images {key}={','.join(forms)}"
    )


def described(forms: Iterable[Form]) -> str:
    """Name forms in words."""
    return ", ".join(FORMS[form].words for form in forms)


def _channels_first(rows: np.ndarray) -> np.ndarray:
    if rows.ndim != 4 or rows.shape[1] not in CHANNELS:
        raise _other(rows, "[C, H, W] with 1, 3 or 4 channels")
    return np.moveaxis(rows, 1, -1)


def _no_channel(rows: np.ndarray) -> np.ndarray:
    if rows.ndim != 3:
        raise _other(rows, "[H, W]")
    return rows[..., None]


def _colours(rows: np.ndarray, low: int, high: int, kinds: str) -> np.ndarray:
    if rows.dtype == np.uint8 or rows.dtype.kind not in kinds:
        raise _other(rows, f"{'floats' if kinds == 'f' else 'numbers'} from {low} to {high}")
    pixels = _in_bytes(rows, low, high)
    is_wrong = ~((pixels >= 0) & (pixels <= 255))  # of rounded ones: 1.0000001 is 1; NaN is wrong
    if is_wrong.any():
        raise ValueError(f"holds {rows[is_wrong][0]:g}, which is not from {low} to {high}")
    return pixels.astype(np.uint8)


def _rgba(rows: np.ndarray) -> np.ndarray:
    if rows.ndim != 4 or rows.shape[-1] != 4:
        raise _other(rows, "[H, W, 4]")
    return rows[..., :3]


def _grey(rows: np.ndarray) -> np.ndarray:
    if rows.ndim != 4 or rows.shape[-1] != 1:
        raise _other(rows, "[H, W, 1]")
    return rows.repeat(3, axis=-1)


def _millimetres(rows: np.ndarray) -> np.ndarray:
    if rows.dtype == np.uint8:
        raise _other(rows, "numbers of more than 8 bits")
    return rows.astype(np.float32) / np.float32(1000)


def _in_bytes(rows: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.rint((rows.astype(np.float32) - np.float32(low)) * np.float32(255 / (high - low)))


def _other(rows: np.ndarray, needed: str) -> ValueError:
    return ValueError(f"is {list(rows.shape[1:])} of {rows.dtype}, not {needed}")


class Kind(NamedTuple):
    """A form: the function that turns rows of it, and what they are in words."""

    turn: Callable[[np.ndarray], np.ndarray]
    words: str


FORMS: Mapping[Form, Kind] = {
    "channels_first": Kind(_channels_first, "channels first"),
    "no_channel": Kind(_no_channel, "no channel"),
    "unit_floats": Kind(partial(_colours, low=0, high=1, kinds="f"), "floats from 0 to 1"),
    "signed_floats": Kind(partial(_colours, low=-1, high=1, kinds="f"), "floats from -1 to 1"),
    "byte_numbers": Kind(partial(_colours, low=0, high=255, kinds="fiu"), "numbers from 0 to 255"),
    "rgba": Kind(_rgba, "a fourth channel"),
    "grey": Kind(_grey, "one channel"),
    "millimetres": Kind(_millimetres, "whole numbers, as of depth in millimetres"),
}
