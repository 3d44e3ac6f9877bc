"""Arrays in zarr's format 2, in a folder or in a zip file, read by the package zarr.

The package trusts files: it takes missing chunks for equal numbers, runs codecs by the names that
files give (one, pickle, runs code), and unpacks whatever there is. So it is given descriptions that
were checked, and chunks that were unpacked into the bytes that they must have.
"""

import json
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from offrl.data.arrays import StepArray
from offrl.data.formats.hdf5 import located
from offrl.lazy import needed
from offrl.links import file_in
from offrl.memory import check_memory

CODECS = (None, "blosc", "lz4", "zstd", "zlib", "gzip")
CACHED_BYTES = 2**27  # of the chunks that were unpacked last
LONGEST_JSON = 2**20  # bytes


class ZarrGroup(dict[str, Any]):
    """The arrays ``data/NAME`` and ``meta/NAME`` in a folder or a zip file, for zarr a dict of its
    files. Chunks are unpacked as they are asked for, and the latest are kept."""

    def __init__(self, path: Path):
        self._zarr = needed("zarr", "zarr", "zarr is missing")
        self._store = self._zarr.LRUStoreCache(self._zarr.KVStore(self), CACHED_BYTES)
        self._store.getitems = lambda *_, **__: self._store  # each chunk in turn, not all at once
        self._unpack: dict[str, Callable[[str], Any]] = {}
        self.path = path
        with located(path, "the list of its files"):
            self._zip = None if path.is_dir() else zipfile.ZipFile(path)
            self._root: Any = zipfile.Path(self._zip) if self._zip else path
            self.names = sorted(
                f"{group}/{array.name}"
                for group in ("data", "meta")
                if self.has(group)
                for array in (self._root / group).iterdir()
                if (array / ".zarray").exists()
            )

    def close(self) -> None:
        if self._zip:
            self._zip.close()

    def has(self, name: str) -> bool:
        return (self._root / name).exists()

    def read(self, name: str, most: int) -> bytes:
        """Read a file of at most so many bytes; ``ValueError`` for larger ones, and for none."""
        if not self.has(name):
            raise ValueError(
                f"{self.path}: {name} is missing; copy the data again, or, if zarr left it out for "
                "its equal numbers, write them again with write_empty_chunks=True"
            )
        if not self._zip:
            file_in(self.path, name)
        with located(self.path, name), (self._root / name).open("rb") as file:
            if len(content := file.read(most + 1)) > most:
                raise ValueError(f"it has more than the {most} bytes that its array asks for")
            return content

    def bytes_of(self, name: str) -> int:
        """Return the bytes that an array takes."""
        if self._zip:
            files = self._zip.infolist()
            return sum(x.compress_size for x in files if x.filename.startswith(f"{name}/"))
        return sum(path.stat().st_size for path in (self.path / name).rglob("*"))

    def array(self, name: str, about: dict[str, Any], unpack: Callable[[str], Any]) -> Any:
        """Make zarr's array of a description, whose chunks a function reads by their names."""
        plain = {"compressor": None, "filters": None, "fill_value": None}
        self[f"{name}/.zarray"] = json.dumps(about | plain).encode()
        self._unpack[name] = unpack
        return self._zarr.Array(self._store, name, read_only=True)

    def __contains__(self, name: object) -> bool:
        return True  # so that zarr asks for chunks that are missing, too

    def __missing__(self, name: str) -> Any:
        return self._unpack["/".join(name.split("/")[:2])](name)


class ZarrArray(StepArray):
    """An array ``[N, ...]``. Raises ``ValueError`` for one that is described wrongly, does not fit
    into memory or lacks its last chunk."""

    def __init__(self, group: ZarrGroup, name: str):
        self._group, self._name = group, name
        self.place = f"{group.path}: {name}"
        with located(self.place, ".zarray"):
            about = json.loads(group.read(f"{name}/.zarray", LONGEST_JSON))
            self.shape, chunk = (_lengths(about[key]) for key in ("shape", "chunks"))
            self.dtype = _number_type(about["dtype"]).newbyteorder("=")
            self._codec, filters = (about["compressor"] or {"id": None})["id"], about.get("filters")
        if len(chunk) != len(self.shape) or not self.shape or 0 in (*self.shape[1:], *chunk):
            words = f"has the shape {list(self.shape)} in chunks of {list(chunk)}"
            raise ValueError(f"{self.place}: {words}, which has no row for each step")
        if filters or self._codec not in CODECS:
            what = f"filters ({filters!r:.60})" if filters else f"the codec {self._codec!r:.60}"
            raise ValueError(
                f"{self.place} was written with {what}; offrl unpacks "
                f"{', '.join(filter(None, CODECS))}: write it again with one of these"
            )
        self._chunk_bytes = math.prod(chunk) * self.dtype.itemsize
        check_memory(self._chunk_bytes, f"{self.place}: a chunk, which is unpacked as a whole,")
        with located(self.place, ".zarray"):
            self._array = group.array(name, about, self._unpacked)
        self.rows(max(0, self.shape[0] - 1), self.shape[0])

    @cached_property
    def bytes_on_disk(self) -> int:
        return self._group.bytes_of(self._name)

    @property
    def storage(self) -> str:
        return self._codec or "plain"

    def rows(self, start: int, stop: int) -> np.ndarray:
        num_bytes = (stop - start) * math.prod(self.shape[1:]) * self.dtype.itemsize
        check_memory(num_bytes, f"{self.place}: {stop - start} rows")
        with located(self._group.path, self._name):
            return self._array[start:stop].astype(self.dtype, copy=False)

    def _unpacked(self, name: str) -> Any:
        """Read a chunk; ``ValueError`` if it has more or fewer bytes than it must have."""
        size = self._chunk_bytes
        content: Any = self._group.read(name, 2 * size + 1000)
        with located(self._group.path, name):
            if self._codec in ("zlib", "gzip"):
                content = zlib.decompressobj(47).decompress(content, size + 1)
            elif self._codec:
                content = _decoded(self._codec, content, size)
            if len(content) != size:
                raise ValueError(f"it has not the {size} bytes that a chunk has")
        return content


def _decoded(name: str, packed: bytes, size: int) -> np.ndarray:
    """Unpack ``size`` bytes, or all but the first if there are fewer, by a codec that refuses to
    unpack more than there is room for."""
    codec = needed("numcodecs", "zarr", "numcodecs is missing").get_codec({"id": name})
    if name == "blosc" and struct.unpack_from("<12xI", packed)[0] != len(packed):
        raise ValueError(f"{len(packed)} bytes are not all of it")  # Blosc would read behind them
    content = np.empty(size, np.uint8)
    try:
        codec.decode(packed, content[1:])
    except ValueError:  # too little room, as it must be: a short chunk would leave the rest unset
        codec.decode(packed, content)
        return content
    return content[1:]


def _lengths(numbers: Any) -> tuple[int, ...]:
    if not all(type(n) is int and n >= 0 for n in numbers):
        raise ValueError(f"{numbers!r:.60} are no lengths")
    return tuple(numbers)


def _number_type(name: Any) -> np.dtype:
    if not isinstance(name, str) or not re.fullmatch(r"[<>|][fiub]\d", name):
        raise ValueError(f"its numbers are of the type {name!r:.60}")
    return np.dtype(name)
