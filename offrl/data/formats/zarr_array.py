"""Arrays in zarr's format 2: JSON that describes an array, and a compressed file for each chunk of
it, in a folder or in a zip file. They are read without the package zarr.

Codecs are not taken by the names that files give them, as one of them (pickle) runs code.
"""

import json
import math
import re
import struct
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from offrl.data.formats.hdf5 import located
from offrl.data.separate import StepArray
from offrl.lazy import needed
from offrl.links import inside
from offrl.memory import check_memory

CODECS = (None, "blosc", "lz4", "zstd", "zlib", "gzip")
CACHED_BYTES = 2**27  # of the chunks that were unpacked last
LARGE_CHUNK = 2**20  # bytes; of larger ones, a few rows are unpacked alone
LONGEST_JSON = 2**20  # bytes
BLOSC_HEADER = struct.Struct("<4B3I")  # versions, flags, size of a number; sizes


class ZarrFiles(ABC):
    """The files of a group of arrays, by their names in it."""

    path: Path

    @abstractmethod
    def names(self) -> set[str]:
        """List the arrays: paths of folders that have a ``.zarray``."""

    @abstractmethod
    def bytes_of(self, name: str) -> int:
        """Return the bytes that an array takes."""

    @abstractmethod
    def _size(self, name: str) -> int | None:
        """Return the bytes of a file; ``None`` if there is no such file."""

    @abstractmethod
    def _read(self, name: str) -> bytes:
        """Read a file."""

    def close(self) -> None:  # noqa: B027 (folders have nothing to close)
        """Close the file, if there is one."""

    def has(self, name: str) -> bool:
        return self._size(name) is not None

    def read(self, name: str, most: int) -> bytes:
        """Read a file of at most so many bytes; ``ValueError`` for larger ones, and for none."""
        with located(self.path, name):
            size = self._size(name)
            if size is None:
                raise ValueError("it is missing")
            if size > most:
                raise ValueError(f"it has {size} bytes, more than its array asks for")
            return self._read(name)


class FolderFiles(ZarrFiles):
    """The files below a folder."""

    def __init__(self, path: Path):
        self.path = path

    def names(self) -> set[str]:
        return {
            str(found.parent.relative_to(self.path))
            for group in ("data", "meta")
            for found in (self.path / group).glob("*/.zarray")
        }

    def bytes_of(self, name: str) -> int:
        return sum(path.stat().st_size for path in (self.path / name).rglob("*"))

    def _size(self, name: str) -> int | None:
        path = inside(self.path / name, self.path, place=f"{self.path}: {name}")
        return path.stat().st_size if path.exists() else None

    def _read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()


class ZipFiles(ZarrFiles):
    """The files in a zip file."""

    def __init__(self, path: Path):
        self.path = path
        with located(path, "the list of its files"):
            self._zip = zipfile.ZipFile(path)
            self._sizes = {info.filename: info.file_size for info in self._zip.infolist()}

    def names(self) -> set[str]:
        end = "/.zarray"
        return {name.removesuffix(end) for name in self._sizes if name.endswith(end)}

    def bytes_of(self, name: str) -> int:
        return sum(
            x.compress_size for x in self._zip.infolist() if x.filename.startswith(f"{name}/")
        )

    def close(self) -> None:
        self._zip.close()

    def _size(self, name: str) -> int | None:
        return self._sizes.get(name)

    def _read(self, name: str) -> bytes:
        return self._zip.read(name)


class Chunks:
    """Unpacked chunks, the latest of which are kept, up to ``CACHED_BYTES`` of them."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, np.ndarray] = OrderedDict()
        self._num_bytes = 0

    def get(self, name: str) -> np.ndarray | None:
        if name in self._kept:
            self._kept.move_to_end(name)
        return self._kept.get(name)

    def keep(self, name: str, chunk: np.ndarray) -> None:
        self._kept[name] = chunk
        self._num_bytes += chunk.nbytes
        while self._num_bytes > CACHED_BYTES:
            self._num_bytes -= self._kept.popitem(last=False)[1].nbytes


class ZarrArray(StepArray):
    """An array ``[N, ...]``. Raises ``ValueError`` for one that is described wrongly, does not fit
    into memory or lacks files, which zarr would take for numbers that are all equal."""

    def __init__(self, files: ZarrFiles, name: str, chunks: Chunks):
        self._files, self._name, self._kept = files, name, chunks
        self.place = f"{files.path}: {name}"
        with located(self.place, ".zarray"):
            about = json.loads(files.read(f"{name}/.zarray", LONGEST_JSON))
            self.shape, self._chunk = (_lengths(about[key]) for key in ("shape", "chunks"))
            self._stored = _number_type(about["dtype"])
            self._codec = (about["compressor"] or {"id": None})["id"]
            self._order = about.get("order", "C")
            self._separator = about.get("dimension_separator", ".")
            filters = about.get("filters")
        self.dtype = self._stored.newbyteorder("=")
        if (
            len(self._chunk) != len(self.shape)
            or not self.shape
            or 0 in (*self.shape[1:], *self._chunk)
        ):
            words = f"has the shape {list(self.shape)} in chunks of {list(self._chunk)}"
            raise ValueError(f"{self.place}: {words}, which has no row for each step")
        if filters or self._codec not in CODECS:
            what = f"filters ({filters!r:.60})" if filters else f"the codec {self._codec!r:.60}"
            raise ValueError(
                f"{self.place} was written with {what}; offrl unpacks "
                f"{', '.join(filter(None, CODECS))}: write it again with one of these"
            )
        self._chunk_bytes = math.prod(self._chunk) * self.dtype.itemsize
        check_memory(self._chunk_bytes, f"{self.place}: a chunk, which is unpacked as a whole,")
        grid = [-(-size // part) for size, part in zip(self.shape, self._chunk, strict=True)]
        self._others = [range(number) for number in grid[1:]]
        if self.shape[0]:
            self._check_there([number - 1 for number in grid])

    @cached_property
    def bytes_on_disk(self) -> int:
        return self._files.bytes_of(self._name)

    @property
    def storage(self) -> str:
        return self._codec or "plain"

    def rows(self, start: int, stop: int) -> np.ndarray:
        shape = (stop - start, *self.shape[1:])
        check_memory(math.prod(shape) * self.dtype.itemsize, f"{self.place}: {stop - start} rows")
        rows, size = np.empty(shape, self.dtype), self._chunk[0]
        for number in range(start // size, -(-stop // size)):
            first = number * size
            low, high = max(start, first), min(stop, first + size)
            for others in product(*self._others):
                spans = [slice(low - start, high - start)]
                for i, part, end in zip(others, self._chunk[1:], self.shape[1:], strict=True):
                    spans.append(slice(i * part, min((i + 1) * part, end)))
                found = self._read((number, *others), low - first, high - first)
                rows[tuple(spans)] = found[tuple(slice(x.stop - x.start) for x in spans)]
        return rows

    def _read(self, index: tuple[int, ...], low: int, high: int) -> np.ndarray:
        """Read the rows ``low:high`` of a chunk."""
        name = self._chunk_name(index)
        chunk = self._kept.get(name)
        if chunk is None:
            self._check_there(index)
            packed = self._files.read(name, 2 * self._chunk_bytes + 1000)
            with located(self._files.path, name):
                if self._unpacks_alone(high - low):
                    return self._few(packed, low, high)
                numbers = np.frombuffer(self._unpacked(packed), self._stored)
                chunk = numbers.reshape(self._chunk, order=self._order)
            self._kept.keep(name, chunk)
        return chunk[low:high]

    def _unpacks_alone(self, num_rows: int) -> bool:
        """Say whether so many rows are read without the rest of a chunk: Blosc packs blocks."""
        is_few = 2 * num_rows <= self._chunk[0] and self._chunk_bytes > LARGE_CHUNK
        return is_few and self._codec == "blosc" and self._order == "C"

    def _few(self, packed: bytes, low: int, high: int) -> np.ndarray:
        blosc, width = self._checked_blosc(packed)
        size = self._chunk_bytes // self._chunk[0] // width
        found = blosc.Blosc().decode_partial(packed, low * size, (high - low) * size)
        return np.frombuffer(found, self._stored).reshape(high - low, *self._chunk[1:])

    def _unpacked(self, packed: bytes) -> Any:
        """Return the bytes of a chunk. None of the codecs writes more than there is room for."""
        content: Any = packed
        if self._codec in ("zlib", "gzip"):
            content = zlib.decompressobj(47).decompress(packed, self._chunk_bytes + 1)
        elif self._codec:
            is_blosc = self._codec == "blosc"
            codec = self._checked_blosc(packed)[0] if is_blosc else _codec(self._codec)
            content = np.empty(self._chunk_bytes, np.uint8)
            codec.decompress(packed, content)
        if len(content) != self._chunk_bytes:
            raise ValueError(f"it has not the {self._chunk_bytes} bytes that a chunk has")
        return content

    def _checked_blosc(self, packed: bytes) -> tuple[Any, int]:
        """Return Blosc's functions, which trust the sizes in what they unpack, and the bytes of
        what Blosc takes for a number."""
        *_, width, size, _, packed_size = BLOSC_HEADER.unpack_from(packed)
        if packed_size != len(packed):
            raise ValueError(f"it has {len(packed)} of {packed_size} bytes")
        if size != self._chunk_bytes or width not in (1, self.dtype.itemsize):
            raise ValueError(f"it has not the {self._chunk_bytes} bytes that a chunk has")
        return _codec("blosc"), width

    def _check_there(self, index: Any) -> None:
        name = self._chunk_name(index)
        if not self._files.has(name):
            raise ValueError(
                f"{self._files.path}: {name} is missing; copy the data again, or, if zarr left it "
                "out for its equal numbers, write them again with write_empty_chunks=True"
            )

    def _chunk_name(self, index: Any) -> str:
        return f"{self._name}/{self._separator.join(map(str, index))}"


def _codec(name: str) -> Any:
    return needed(f"numcodecs.{name}", "zarr", "numcodecs is missing")


def _lengths(numbers: Any) -> tuple[int, ...]:
    if not all(type(n) is int and n >= 0 for n in numbers):
        raise ValueError(f"{numbers!r:.60} are no lengths")
    return tuple(numbers)


def _number_type(name: Any) -> np.dtype:
    if not isinstance(name, str) or not re.fullmatch(r"[<>|][fiub]\d", name):
        raise ValueError(f"its numbers are of the type {name!r:.60}")
    return np.dtype(name)
