"""The storage of arrays in HDF5 files: in chunks with checksums, images also as PNG or JPEG frames.

Frames are rows of an array of bytes ``[T, B]``: image files, padded with zeros, which decoders
ignore. The attributes are ``frames`` ("png" or "jpeg") and ``frame_shape`` [H, W, C].
"""

import copy
import io
import math
import os
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from offrl.data.arrays import PIECE_BYTES, StepArray
from offrl.data.formats.external import is_written, place_of, sources
from offrl.memory import SMALL, check_memory

CHUNK_BYTES = 2**16  # read and checked at once; a few images
FRAMES = ("png", "jpeg")
JPEG_BEGIN, JPEG_END = b"\xff\xd8", b"\xff\xd9"
JPEG_HEADER = struct.Struct(">BBHBHHB")  # of a segment; the last four are those of a frame
JPEG_FRAMES = (0xC0, 0xC1, 0xC2)
COMPRESSIONS = (*FRAMES, "gzip", "lzf")
# 4:4:4 at 95: invisible differences, at a sixth of the bytes.
OPTIONS: dict[str, dict[str, Any]] = {"png": {}, "jpeg": {"quality": 95, "subsampling": 0}}
# HDF5 keeps no chunks: rows are read whole, and a cache for each open array takes time and memory.
NO_CACHE = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
NO_CACHE.set_chunk_cache(0, 0, 0.0)
# HDF5's form of a NumPy type, made once: it takes as long as reading a short array.
_type_in_memory = cache(h5py.h5t.py_create)
_space_of = lru_cache(256)(h5py.h5s.create_simple)


def create(
    group: h5py.Group,
    key: str,
    array: np.ndarray,
    compression: str | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> None:
    """Store an array ``[T, ...]`` with checksums, in one chunk unless it is large. With ``png`` or
    ``jpeg``, images ``[T, H, W, 1 (PNG: may be labels) or 3]`` become frames; others are not
    compressed."""
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
    """Say whether a value of a trajectory is an array of images ``[T, H, W, 1 or 3]``."""
    is_bytes = isinstance(array, np.ndarray) and array.dtype == np.uint8
    return is_bytes and array.ndim == 4 and array.shape[-1] in (1, 3)


class StoredArray(StepArray):
    """An array in an open HDF5 file. It keeps ``shape`` and ``dtype``, which are slow to ask HDF5
    for. Frames have the shape ``[T, H, W, C]`` of their images.

    external: the other files that it lies in. Raises ``ValueError`` as ``sources`` does, and, when
        it is read, for data that is damaged, unwritten or too large for memory once unpacked.
    """

    def __init__(self, dataset: h5py.h5d.DatasetID):
        self.id, self.dtype, self._is_written = dataset, dataset.dtype, False
        self.shape = tuple(dataset.shape or ())
        self.external = sources(dataset, self.dtype.itemsize)
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize
        may_be = self.dtype == np.uint8 and len(self.shape) == 2
        if may_be and h5py.h5a.exists(dataset, b"frames"):
            self.packed = copy.copy(self)
            try:
                frame = [int(number) for number in self.dataset.attrs["frame_shape"]]
                if min(frame) < 1:
                    raise ValueError(f"frame_shape is {frame}")
                self.shape = (self.shape[0], *frame)
            except (KeyError, ValueError) as error:
                raise unreadable(*place_of(dataset), error) from None
            self.nbytes += math.prod(self.shape)  # of frames, packed and unpacked

    def __getitem__(self, rows: Any) -> np.ndarray:
        self.check_written()
        try:
            found = self.dataset[rows]
            return found if self.packed is None else _decoded(found, self.shape[1:])
        except Exception as error:
            raise unreadable(*place_of(self.id), error) from None

    @property
    def dataset(self) -> h5py.Dataset:
        """The array as it is stored."""
        return h5py.Dataset(self.id)

    def check_written(self) -> None:
        if not self._is_written and self.shape and not is_written(self.id):
            error = ValueError("not all of it was ever written")
            raise unreadable(*place_of(self.id), error)
        self._is_written = True

    @property
    def bytes_on_disk(self) -> int:
        return self.id.get_storage_size()

    @property
    def storage(self) -> str:
        if self.packed is not None:
            return f"{self.dataset.attrs['frames']} frames"
        filters = [self.dataset.compression, "checksums" if self.dataset.fletcher32 else None]
        return ", ".join(filter(None, filters)) or "plain"

    def check_fits(self) -> None:
        if self.nbytes > SMALL:
            check_memory(self.nbytes, ": ".join(place_of(self.id)))

    def read(self) -> np.ndarray:
        """Read all of it."""
        self.check_fits()
        if not self.is_number:
            return self[()]
        rows = np.empty(self.shape, self.dtype)
        self.read_into(rows)
        return rows

    @cached_property
    def _space(self) -> h5py.h5s.SpaceID:
        return self.id.get_space()

    def light(self) -> StepArray:
        file, offset = h5py.h5i.get_file_id(self.id), self.id.get_offset()
        if not (
            offset is not None
            and self.packed is None
            and self.id.get_create_plist().get_layout() == h5py.h5d.CONTIGUOUS
            and self.id.get_type() == _type_in_memory(self.dtype)
            and file.get_create_plist().get_userblock() == 0
            and file.get_access_plist().get_driver() == h5py.h5fd.SEC2
        ):
            return self
        self.check_written()
        return PlainRows(file, offset, self.shape, self.dtype, place_of(self.id))

    def rows(self, start: int, stop: int) -> np.ndarray:
        rows = np.empty((stop - start, *self.shape[1:]), self.dtype)
        self.read_into(rows, start)
        return rows

    def read_into(self, rows: np.ndarray, start: int = 0) -> None:
        if self.packed is not None or not rows.size:
            rows[...] = self[start : start + len(rows)]
            return
        self.check_written()
        here = there = h5py.h5s.ALL
        try:
            if len(rows) < len(self):
                here, there = _space_of(rows.shape), self._space
                there.select_hyperslab((start, *[0] * (rows.ndim - 1)), rows.shape)
            self.id.read(here, there, rows, _type_in_memory(rows.dtype))
        except Exception as error:
            raise unreadable(*place_of(self.id), error) from None

    def pieces(self) -> Iterator[tuple[int, np.ndarray]]:
        # Parts are whole chunks, so that none is unpacked twice.
        if self.nbytes <= PIECE_BYTES:
            yield 0, self.read()
            return
        self.check_fits()
        chunk, row = (self.dataset.chunks or (1,))[0], self.nbytes // len(self)
        block = chunk * max(1, PIECE_BYTES // (chunk * row))
        for start in range(0, len(self), block):
            yield start, self[start : start + block]


class PlainRows(StepArray):
    """Rows that lie in an HDF5 file as they do in memory. HDF5 takes three times as long to read a
    few of them, and memory for each array that is open."""

    def __init__(
        self,
        file: h5py.h5f.FileID,
        offset: int,
        shape: tuple[int, ...],
        dtype: np.dtype,
        place: tuple[str, str],
    ):
        self.shape, self.dtype, self._place = shape, dtype, place
        self._file, self._offset = file, offset  # the file stays open as long as it is referred to
        self._row = math.prod(shape[1:]) * dtype.itemsize

    def rows(self, start: int, stop: int) -> np.ndarray:
        rows = np.empty((stop - start, *self.shape[1:]), self.dtype)
        self.read_into(rows, start)
        return rows

    def read_into(self, rows: np.ndarray, start: int = 0) -> None:
        if rows.dtype != self.dtype:
            super().read_into(rows, start)
            return
        if not rows.size:  # which has no bytes to look at
            return
        left, where = rows.view(np.uint8).data.cast("B"), self._offset + start * self._row
        while left:
            num_read = os.preadv(self._file.get_vfd_handle(), [left], where)
            if not num_read:
                raise unreadable(*self._place, OSError("the file is cut off"))
            left, where = left[num_read:], where + num_read


def arrays_below(
    group: h5py.h5g.GroupID, root: str = "", seen: set[Any] | None = None
) -> Iterator[tuple[str, StoredArray]]:
    """Open all arrays below a group, through links of any kind, and yield them with their paths."""
    seen = set() if seen is None else seen
    check_group(group, root, seen)
    for name in group:
        path = root + name.decode("utf8", "surrogateescape")
        try:
            item = h5py.h5o.open(group, name)
        except KeyError:
            raise ValueError(f"{path} is a link that leads nowhere") from None
        if isinstance(item, h5py.h5g.GroupID):
            yield from arrays_below(item, f"{path}/", seen)
        elif isinstance(item, h5py.h5d.DatasetID) and (found := StoredArray(item)).shape:
            yield path, found


def check_group(group: h5py.h5g.GroupID, place: str, seen: set[Any]) -> None:
    """Raise ``ValueError`` for a group that was seen before, as links may form cycles."""
    info = h5py.h5o.get_info(group)
    if (info.fileno, info.addr) in seen or place.count("/") > 20:
        raise ValueError(f"{place.strip('/')} is a group within itself, or there twice")
    seen.add((info.fileno, info.addr))


def kind_of_step(array: Any) -> str:
    """Name the type and shape of an array's steps, e.g. ``float32 [3]``; for frames, of images."""
    return f"{array.dtype} {list(array.shape[1:])}"


def unreadable(path: str | Path, place: str, error: Exception) -> ValueError:
    """Make the error to raise instead of one of HDF5 or another library that reads files."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    is_checked = os.path.isfile(path) and h5py.is_hdf5(path)
    remedy = f", or look what else is damaged with: offrl validate {path}" if is_checked else ""
    return ValueError(f"{path}: {place} cannot be read ({reason}); copy the file again{remedy}")


def _encoded(images: np.ndarray, kind: str) -> np.ndarray:
    from PIL import Image

    def encode(image: np.ndarray) -> np.ndarray:
        file = io.BytesIO()
        pixels = image[..., 0] if image.shape[-1] == 1 else image
        Image.fromarray(pixels).save(file, kind, **OPTIONS[kind])
        return np.frombuffer(file.getvalue(), np.uint8)

    # The encoders are compiled code that releases the GIL.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        files = list(threads.map(encode, images))
    rows = np.zeros((len(files), max(map(len, files))), np.uint8)
    for row, file in zip(rows, files, strict=True):
        row[: len(file)] = file
    return rows


def _decoded(rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Decode the bytes of one image, ``[B]``, or of several, ``[T, B]``."""
    images = np.empty((*rows.shape[:-1], *shape), np.uint8)
    for row, image in zip(np.atleast_2d(rows), images.reshape(-1, *shape), strict=True):
        decode_image(row, image)
    return images


def decode_image(file: np.ndarray, image: np.ndarray) -> None:
    """Decode an image file ``[B]``, padded with zeros, into ``[H, W, C]``.

    OpenCV and PIL decode a JPEG to the same bits, but OpenCV in a third of the time. PIL looks for
    damage, and gets all that is not as it should be at both ends.
    """
    content = file.tobytes().rstrip(b"\0")
    if content.endswith(JPEG_END) and _jpeg_shape(content) == image.shape:
        import cv2

        found = cv2.imdecode(file, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
        if found is not None and found.shape == image.shape:
            cv2.cvtColor(found, cv2.COLOR_BGR2RGB, dst=image)
            return
    from PIL import Image

    with Image.open(io.BytesIO(content)) as opened:
        if opened.size != image.shape[1::-1]:
            raise ValueError(f"a frame is of {opened.size} pixels, not {image.shape[1::-1]}")
        image[...] = np.asarray(opened).reshape(image.shape)


def _jpeg_shape(content: bytes) -> tuple[int, int, int] | None:
    """Return the shape [H, W, C] that the header of a JPEG states, or ``None``."""
    place = 2 if content.startswith(JPEG_BEGIN) else len(content)
    while place + 10 <= len(content):
        _, marker, size, _, height, width, channels = JPEG_HEADER.unpack_from(content, place)
        if marker in JPEG_FRAMES:
            return height, width, channels
        place += 2 + size
    return None
