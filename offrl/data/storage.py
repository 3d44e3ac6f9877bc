"""How an array lies in an HDF5 file: in chunks with checksums, images also as PNG or JPEG frames.

Frames are the rows of an array of bytes ``[T, B]``, each an image file of its own and filled up
with zeros, which decoders do not look at; its attributes are ``frames`` ("png" or "jpeg") and
``frame_shape`` ``[H, W, C]``.
"""

import io
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import h5py
import numpy as np

from offrl.memory import SMALL, check_memory

CHUNK_BYTES = 2**16  # read, and its checksum tested, at once: of images a few
PIECE_BYTES = 2**26  # of a larger array, looked at one after the other
FRAMES = ("png", "jpeg")
COMPRESSIONS = (*FRAMES, "gzip", "lzf")
# 4:4:4 at 95: differences that are seen nowhere, at a sixth of the bytes.
OPTIONS: dict[str, dict[str, Any]] = {"png": {}, "jpeg": {"quality": 95, "subsampling": 0}}


def create(
    group: h5py.Group,
    key: str,
    array: np.ndarray,
    compression: str | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> None:
    """An array ``[T, ...]`` with checksums, in one chunk unless it is large. With ``png`` or
    ``jpeg`` images ``[T, H, W, 1 or 3]`` (uint8) are frames, and all else is not compressed; those
    of one channel may be labels, and are PNG."""
    attributes = {}
    if compression in FRAMES:
        if is_images(array):
            kind = "png" if array.shape[-1] == 1 else compression
            attributes = {"frames": kind, "frame_shape": array.shape[1:]}
            array = _encoded(array, kind)
        compression = None
    rows = max(1, chunk_bytes // max(1, array[0].nbytes))
    chunks = (min(len(array), rows), *array.shape[1:])
    made = group.create_dataset(
        key, data=array, chunks=chunks, fletcher32=True, compression=compression
    )
    made.attrs.update(attributes)


def is_images(array: Any) -> bool:
    return array.dtype == np.uint8 and array.ndim == 4 and array.shape[-1] in (1, 3)


class Frames:
    """Images ``[T, H, W, C]`` that are stored as frames: what reading asks of an array."""

    dtype = np.dtype(np.uint8)

    def __init__(self, dataset: h5py.h5d.DatasetID):
        self._dataset = h5py.Dataset(dataset)
        shape = self._dataset.attrs["frame_shape"]
        self.shape = (len(self._dataset), *map(int, shape))
        self.ndim = len(self.shape)

    def __getitem__(self, rows: Any) -> np.ndarray:
        return _decoded(self._dataset[rows], self.shape[1:])

    def get_space_status(self) -> int:
        return self._dataset.id.get_space_status()


def stored(dataset: h5py.h5d.DatasetID) -> Any:
    """What reads an array that was opened: itself, or the images if those are frames."""
    return Frames(dataset) if _is_of_frames(dataset, dataset) else dataset


def _is_of_frames(dataset: h5py.h5d.DatasetID, like: Any) -> bool:
    """Whether an array holds frames; what is ``like`` it has its shape and type."""
    may_be = like.dtype == np.uint8 and len(like.shape) == 2
    return may_be and h5py.h5a.exists(dataset, b"frames")


def values(dataset: h5py.Dataset) -> Any:
    """What ``dataset[rows]`` gives rows of: itself, or the images if those are frames."""
    found = stored(dataset.id)
    return found if isinstance(found, Frames) else dataset


def check_fits(dataset: h5py.h5d.DatasetID) -> None:
    """``ValueError`` for an array that does not fit into memory: a file of a megabyte may hold a
    thousand times as much."""
    found, high = stored(dataset), h5py.Dataset(dataset)
    num_bytes = math.prod(found.shape) * found.dtype.itemsize
    check_memory(num_bytes, f"{high.file.filename}: {high.name[1:]}")


def whole(dataset: h5py.h5d.DatasetID) -> np.ndarray:
    """Read all of an array that was opened, or all images if those are frames."""
    shape, kind = dataset.shape, dataset.dtype
    if math.prod(shape) * kind.itemsize > SMALL:
        check_fits(dataset)
    if kind.kind not in "fiub":
        return h5py.Dataset(dataset)[()]
    rows = np.empty(shape, kind)
    if _is_of_frames(dataset, rows):
        check_fits(dataset)
        return Frames(dataset)[()]
    if rows.size:
        read_into(rows, dataset)
    return rows


def pieces(dataset: h5py.h5d.DatasetID) -> Iterator[tuple[int, np.ndarray]]:
    """The rows of an array in parts of about 64 MB, of which who looks at them makes copies, and
    the number of the first row of each. Parts are whole chunks: none is unpacked twice."""
    found = stored(dataset)
    row = found.dtype.itemsize * math.prod(found.shape[1:])
    if row * found.shape[0] <= PIECE_BYTES:
        yield 0, whole(dataset)
        return
    check_fits(dataset)
    chunk = (h5py.Dataset(dataset).chunks or (1,))[0]
    block = chunk * max(1, PIECE_BYTES // (chunk * row))
    for start in range(0, found.shape[0], block):
        yield start, values(h5py.Dataset(dataset))[start : start + block]


def read_into(rows: np.ndarray, dataset: Any) -> None:
    """Fill an array of its shape with all of what ``stored`` gave."""
    if isinstance(dataset, Frames):
        rows[...] = dataset[()]
    else:
        dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, rows, _type_in_memory(rows.dtype))


@cache
def _type_in_memory(dtype: np.dtype) -> h5py.h5t.TypeID:
    """Make HDF5's form of a NumPy type, once: it takes as long as reading a short array."""
    return h5py.h5t.py_create(dtype)


def _encoded(images: np.ndarray, kind: str) -> np.ndarray:
    from PIL import Image

    def encode(image: np.ndarray) -> np.ndarray:
        file = io.BytesIO()
        pixels = image[..., 0] if image.shape[-1] == 1 else image
        Image.fromarray(pixels).save(file, kind, **OPTIONS[kind])
        return np.frombuffer(file.getvalue(), np.uint8)

    # The encoders are compiled code that other threads need not wait for.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        files = list(threads.map(encode, images))
    rows = np.zeros((len(files), max(map(len, files))), np.uint8)
    for row, file in zip(rows, files, strict=True):
        row[: len(file)] = file
    return rows


def _decoded(rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Images of the bytes of one, ``[B]``, or of several, ``[T, B]``."""
    from PIL import Image

    images = np.empty((*rows.shape[:-1], *shape), np.uint8)
    for row, image in zip(np.atleast_2d(rows), images.reshape(-1, *shape), strict=True):
        with Image.open(io.BytesIO(row.tobytes())) as file:
            if file.size != shape[1::-1]:
                raise ValueError(f"a frame is of {file.size} pixels, not {shape[1::-1]}")
            image[...] = np.asarray(file).reshape(shape)
    return images
