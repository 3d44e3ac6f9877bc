"""Steps of LeRobot's folders: numbers and images in Parquet files, and frames of films."""

import io
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offrl.data.formats.film import OpenFilm
from offrl.data.formats.hdf5 import located
from offrl.data.formats.lerobot_index import INFO, file_in, parquet, read_table
from offrl.data.separate import StepArray
from offrl.memory import check_memory

CHANNELS = ("c", "channel", "channels")


class Recent:
    """The values that were asked for last, of at most ``limit`` in all by their sizes."""

    def __init__(self, limit: int):
        self._limit, self._total = limit, 0
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Any], size: Callable[[Any], int]) -> Any:
        """Return the value of ``key``; ``make`` it if need be."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key][0]
        value = make()
        self._values[key] = value, size(value)
        self._total += size(value)
        while self._total > self._limit and len(self._values) > 1:
            self._total -= self._values.popitem(last=False)[1][1]
        return value

    def clear(self) -> None:
        self._values.clear()
        self._total = 0


class StepsFile:
    """The numbers in a Parquet file of steps, which are in memory.

    names: the features to read. fps: to compare timestamps with. Raises ``ValueError`` for a file
    that is damaged or lacks a feature.
    """

    def __init__(self, path: Path, names: Iterable[str], fps: float):
        self.path, self._fps = path, fps
        with located(path, "the steps"):
            file = parquet().ParquetFile(path)
            if lacking := sorted({*names} - {*file.schema_arrow.names}):
                raise ValueError(f"it has no {', '.join(lacking)}, which {INFO} lists")
            self._table = read_table(file, path, columns=[*names])
        self.nbytes = self._table.nbytes
        self._arrays: dict[str, np.ndarray] = {}
        with located(path, "the numbers of the steps"):
            counts = self.values("episode_index", ()), self.values("frame_index", ())
            self._order = np.lexsort(counts[::-1])
            self._episodes, self._frames = (count[self._order] for count in counts)

    def values(self, name: str, shape: Sequence[int]) -> np.ndarray:
        """Return all values ``[N, *shape]`` of a feature."""
        if name not in self._arrays:
            self._arrays[name] = _array(name, self._table[name], shape)
            self._table = self._table.drop([name])
        return self._arrays[name]

    def rows(self, number: int, length: int) -> np.ndarray:
        """Return the rows ``[T]`` of an episode, in order; ``ValueError`` unless its steps are as
        many as the metadata says, and have its times."""
        with located(self.path, f"episode {number}"):
            first, last = np.searchsorted(self._episodes, (number, number + 1))
            if last - first != length or (self._frames[first:last] != np.arange(length)).any():
                numbers = f"0 to {length - 1} by frame_index, as the list of episodes says"
                raise ValueError(f"its {last - first} steps are not numbered {numbers}")
            rows = self._order[first:last]
            if "timestamp" in self._table.column_names or "timestamp" in self._arrays:
                times = self.values("timestamp", ())[rows]
                late = np.abs(times * self._fps - np.arange(length)) > 0.5
                if late.any():
                    step = int(np.argmax(late))
                    words = f"but fps in {INFO} is {self._fps:g}"
                    raise ValueError(f"the timestamp of step {step} is {times[step]:g} s, {words}")
        return rows


def _array(name: str, column: Any, shape: Sequence[int]) -> np.ndarray:
    """Read the values ``[T, *shape]`` of a column of numbers or of lists of them. ``ValueError`` if
    a list is longer or shorter, which would shift all later values."""
    import pyarrow.compute as compute

    values, rows = column.combine_chunks(), len(column)
    while values.type.num_fields:
        sizes = compute.call_function("list_value_length", [values]).unique().to_pylist()
        if len(sizes) > 1:
            raise ValueError(f"{name} has lists of {sizes} values, but {INFO} says {list(shape)}")
        values = values.flatten()
    if values.null_count or len(values) != rows * math.prod(shape):
        raise ValueError(
            f"{name} has {len(values) - values.null_count} values in {rows} steps, but {INFO} says "
            f"{list(shape)} for each"
        )
    return np.asarray(values).reshape(rows, *shape)


class FilmArray(StepArray):
    """The frames ``[T, H, W, 3]`` of an episode in a film, decoded when they are read.

    place: the film, and the time (seconds) where the episode begins. films: those that are open.
    Raises ``ValueError`` for a film of another size or rate, or a shorter one.
    """

    dtype = np.dtype(np.uint8)

    def __init__(
        self, place: tuple[Path, float], shape: tuple[int, ...], fps: float, films: Recent
    ):
        (self._path, self._start), self.shape, self._fps, self._films = place, shape, fps, films
        film = self._film()
        if film.size != shape[1:3]:
            _refuse_size(film.size, shape)
        film.check(self._start, len(self), fps)

    def _film(self) -> OpenFilm:
        film: OpenFilm = self._films.get(self._path, lambda: OpenFilm(self._path), lambda _: 1)
        return film

    def rows(self, start: int, stop: int) -> np.ndarray:
        return self._film().frames(self._start, start, stop, self._fps)


class ImageArray(StepArray):
    """The images ``[T, H, W, 3]`` of an episode in a Parquet file (or in files that it names),
    decoded when they are read.

    rows: those of the episode ``[T]`` in the file.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, images: "Images", path: Path, name: str, rows: np.ndarray, size: Any):
        self._images, self._path, self._name, self._rows = images, path, name, rows
        self.shape = len(rows), *size
        images.check(path, name)

    def rows(self, start: int, stop: int) -> np.ndarray:
        from PIL import Image

        rows = np.empty((stop - start, *self.shape[1:]), np.uint8)
        check_memory(rows.nbytes, f"{self._path}: {self._name}")
        files = self._images.files(self._path, self._name, self._rows[start:stop])
        with located(self._path, f"the images {self._name}"):
            for row, content in zip(rows, files, strict=True):
                with Image.open(io.BytesIO(content)) as image:
                    if image.size[::-1] != self.shape[1:3]:
                        _refuse_size(image.size[::-1], self.shape)
                    row[...] = np.asarray(image.convert("RGB"))
        return rows


class Images:
    """Image files in the Parquet files of a folder; the latest row groups are kept."""

    def __init__(self, folder: Path, num_bytes: int, num_files: int):
        self._folder = folder
        self._groups, self._files = Recent(num_bytes), Recent(num_files)

    def clear(self) -> None:
        self._groups.clear()
        self._files.clear()

    def check(self, path: Path, name: str) -> None:
        with located(path, "the steps"):
            if name not in self._file(path).schema_arrow.names:
                raise ValueError(f"it has no {name}, which {INFO} lists")

    def files(self, path: Path, name: str, rows: np.ndarray) -> Iterator[bytes]:
        """Yield the content of the image file in each of the ``rows``."""
        with located(path, f"the images {name}"):
            file = self._file(path)
            counts = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            begins = np.cumsum([0, *counts])
            for row in rows:
                k = int(np.searchsorted(begins, row, side="right")) - 1
                cell = self._group(path, k, name)[int(row - begins[k])].as_py() or {}
                if (content := cell.get("bytes")) is None:
                    if not cell.get("path"):
                        raise ValueError(f"row {row} has no image")
                    content = file_in(self._folder, cell["path"]).read_bytes()
                yield content

    def _file(self, path: Path) -> Any:
        return self._files.get(path, lambda: parquet().ParquetFile(path), lambda _: 1)

    def _group(self, path: Path, k: int, name: str) -> Any:
        def read() -> Any:
            return read_table(self._file(path), f"{path}: {name}", [k], [name])[name]

        return self._groups.get((path, k, name), read, lambda column: column.nbytes)


def image_size(shape: tuple[int, ...], names: Any) -> tuple[int, ...]:
    """Return the size ``(H, W, 3)`` of the images of a feature, which may name channels first;
    ``()`` if they have not three channels."""
    if isinstance(names, Sequence) and len(names) == 3 and len(shape) == 3:
        first = str(names[0]).lower() in CHANNELS
    else:
        first = shape[:1] == (3,)
    size = (*shape[1:], shape[0]) if first else shape
    return size if len(size) == 3 and size[2] == 3 and min(size) > 0 else ()


def _refuse_size(size: tuple[int, ...], shape: tuple[int, ...]) -> None:
    words = f"but {INFO} says {list(shape[1:3])}"
    raise ValueError(f"images are of {list(size)} pixels, {words}")
