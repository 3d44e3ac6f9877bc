"""Steps of LeRobot's folders: numbers and images in Parquet files, and frames of films."""

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from offrl.data.arrays import StepArray
from offrl.data.formats.film import OpenFilm
from offrl.data.formats.hdf5 import located
from offrl.data.formats.lerobot_index import INFO, parquet, read_table, table_bytes
from offrl.data.recent import Recent
from offrl.links import file_in
from offrl.memory import check_memory

CHANNELS = ("c", "channel", "channels")
OPEN_FILES = 64
MANY_FRAMES = 64  # that several threads decode
STEPS_BYTES, PART_BYTES = 2**27, 2**23  # of numbers that stay in memory, and are read at once
IMAGE_BYTES = 2**28  # of images as they are stored that stay in memory


class FeaturePart(NamedTuple):
    """The columns of a feature that are an array, and the shape of a step.

    dtype: as offrl noted it. of: the feature's shape in the file.
    """

    feature: str
    shape: tuple[int, ...] = ()
    of: tuple[int, ...] = ()
    columns: slice = slice(None)
    dtype: str | None = None


class Steps:
    """The numbers in a Parquet file of steps, or in a part of one, which are in memory.

    first_row: of the part in the file. Raises ``ValueError`` for what is damaged.
    """

    def __init__(self, path: Path, table: Any, first_row: int, fps: float):
        self.path, self.first_row, self._fps = path, first_row, fps
        self._table, self.nbytes = table, int(table.nbytes)
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
                is_right = np.abs(times * self._fps - np.arange(length)) <= 0.5
                if not is_right.all():
                    step = int(np.argmin(is_right))
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


class Tables:
    """The Parquet files of a folder. Few stay open, with what was read of them last.

    names: the features that are numbers. Raises ``ValueError`` for a file that lacks one.
    """

    def __init__(self, folder: Path, names: Sequence[str], fps: float):
        self._folder, self._names, self._fps = folder, names, fps
        self._files: Recent[_File] = Recent(OPEN_FILES)
        self._steps: Recent[Steps] = Recent(STEPS_BYTES, lambda steps: steps.nbytes)
        self._images: Recent[Any] = Recent(IMAGE_BYTES, lambda column: int(column.nbytes))
        self._places: dict[tuple[Path, int], range] = {}  # row groups of episodes

    def clear(self) -> None:
        for kept in (self._files, self._steps, self._images):
            kept.clear()

    def keep_last(self) -> None:
        """Drop what was read, but for the last parts."""
        self._steps.keep_last()
        self._images.keep_last()

    def steps(self, path: Path, number: int) -> Steps:
        """Return the part of a file that holds an episode."""
        with located(path, "the steps"):
            if (path, number) not in self._places:
                self._places[path, number] = self._file(path).part(number)
            groups = self._places[path, number]
            return self._steps.get((path, groups), partial(self._read, path, groups))

    def _read(self, path: Path, groups: range) -> Steps:
        file = self._file(path)
        table = read_table(file.content, path, groups, self._names)
        return Steps(path, table, int(file.begins[groups.start]), self._fps)

    def _file(self, path: Path) -> "_File":
        return self._files.get(path, lambda: _File(path, self._names))

    def step_bytes(self, path: Path, name: str) -> float:
        """Return the bytes of a step's image in a file; ``ValueError`` if that lacks the images."""
        with located(path, "the steps"):
            return self._file(path).step_bytes(name)

    def image_files(self, path: Path, name: str, rows: np.ndarray) -> Iterator[bytes]:
        """Yield the content of the image file in each of the ``rows`` of a file."""
        file = self._file(path)
        for row in rows:
            k = int(np.searchsorted(file.begins, row, side="right")) - 1
            cell = self._images_of(file, k, name)[int(row - file.begins[k])].as_py() or {}
            if (content := cell.get("bytes")) is None:
                if not cell.get("path"):
                    raise ValueError(f"row {row} has no image")
                content = file_in(self._folder, cell["path"]).read_bytes()
            yield content

    def _images_of(self, file: "_File", k: int, name: str) -> Any:
        """Return the cells of a row group that hold the images of a feature."""

        def read() -> Any:
            return read_table(file.content, f"{file.path}: {name}", [k], [name])[name]

        return self._images.get((file.path, k, name), read)


class _File:
    """An open Parquet file, and the parts in which it is read: row groups one after the other."""

    def __init__(self, path: Path, names: Sequence[str]):
        self.path, self.content = path, parquet().ParquetFile(path)
        _refuse_lack(self.content, names)
        metadata = self.content.metadata
        groups = [metadata.row_group(k) for k in range(metadata.num_row_groups)]
        self.begins = np.cumsum([0, *(group.num_rows for group in groups)])
        places = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
        counted = [group.column(places.index("episode_index")).statistics for group in groups]
        ranges = [(c.min, c.max) if c and c.has_min_max else (0, np.inf) for c in counted]
        sizes = np.cumsum([0, *(table_bytes(self.content, [k], names) for k in range(len(groups)))])
        self._ends = np.append(np.flatnonzero(np.diff(sizes // PART_BYTES)), len(groups) - 1)
        self._first, self._last = np.array(ranges, float).reshape(-1, 2).T
        self._step_bytes: dict[str, float] = {}

    def part(self, number: int) -> range:
        """Return the row groups of the part that holds an episode."""
        groups = np.flatnonzero((self._first <= number) & (number <= self._last))
        if not len(groups):
            return range(0)
        begins = (int(end) + 1 for end in self._ends if end < groups[0])
        return range(max(begins, default=0), int(min(self._ends[self._ends >= groups[-1]])) + 1)

    def step_bytes(self, name: str) -> float:
        """Return the bytes of a step in a column; ``ValueError`` if there is no such column."""
        if name not in self._step_bytes:
            _refuse_lack(self.content, [name])
            num_bytes = table_bytes(self.content, range(self.content.num_row_groups), [name])
            self._step_bytes[name] = num_bytes / max(1, self.begins[-1])
        return self._step_bytes[name]


def _refuse_lack(file: Any, names: Sequence[str]) -> None:
    if lacking := sorted({*names} - {*file.schema_arrow.names}):
        raise ValueError(f"it has no {', '.join(lacking)}, which {INFO} lists")


class NumberArray(StepArray):
    """The numbers ``[T, ...]`` of an episode in a Parquet file."""

    def __init__(self, tables: Tables, path: Path, episode: Mapping[str, Any], part: FeaturePart):
        self._tables, self._path, self._part = tables, path, part
        self._number = episode["episode_index"]
        steps = tables.steps(path, self._number)
        self._rows = steps.rows(self._number, episode["length"])
        self.shape = len(self._rows), *part.shape
        kind = steps.values(part.feature, part.of).dtype
        self.dtype = np.dtype(part.dtype or ("float32" if kind.kind == "b" else kind))

    def rows(self, start: int, stop: int) -> np.ndarray:
        part, steps = self._part, self._tables.steps(self._path, self._number)
        values = steps.values(part.feature, part.of)[self._rows[start:stop]]
        if part.columns != slice(None):
            values = values[:, part.columns]
        return values.astype(self.dtype, copy=False).reshape(-1, *part.shape)


class FilmArray(StepArray):
    """The frames ``[T, H, W, 3]`` of an episode in a film, decoded when they are read.

    place: the film, and the time (seconds) where the episode begins. films: those that are open.
    Raises ``ValueError`` for a film of another size or rate, or a shorter one.
    """

    dtype = np.dtype(np.uint8)

    def __init__(
        self,
        place: tuple[Path, float],
        shape: tuple[int, ...],
        fps: float,
        films: Recent[OpenFilm],
    ):
        (self._path, self._start), self.shape, self._fps, self._films = place, shape, fps, films
        film = self._film()
        if film.size != shape[1:3]:
            _refuse_size(film.size, shape)
        film.check(self._start, len(self), fps)

    def _film(self) -> OpenFilm:
        return self._films.get(self._path, lambda: OpenFilm(self._path))

    def rows(self, start: int, stop: int) -> np.ndarray:
        film = self._film() if stop - start < MANY_FRAMES else OpenFilm(self._path, threads=0)
        return film.frames(self._start, start, stop, self._fps)

    @property
    def bytes_on_disk(self) -> int:
        share = len(self) / max(len(self), self._film().num_frames)
        return int(share * self._path.stat().st_size)

    @property
    def storage(self) -> str:
        return f"{self._film().codec} film"


class ImageArray(StepArray):
    """The images ``[T, H, W, 3]`` of an episode in a Parquet file (or in files that it names),
    decoded when they are read."""

    dtype = np.dtype(np.uint8)

    def __init__(self, tables: Tables, path: Path, episode: Mapping[str, Any], part: FeaturePart):
        step_bytes = tables.step_bytes(path, part.feature)
        self._tables, self._path, self._name = tables, path, part.feature
        steps = tables.steps(path, episode["episode_index"])
        self._rows = steps.first_row + steps.rows(episode["episode_index"], episode["length"])
        self.shape = len(self._rows), *part.shape
        self._bytes = int(step_bytes * len(self))

    @property
    def bytes_on_disk(self) -> int:
        return self._bytes

    @property
    def storage(self) -> str:
        return "image files"

    def rows(self, start: int, stop: int) -> np.ndarray:
        from PIL import Image

        images = np.empty((stop - start, *self.shape[1:]), np.uint8)
        check_memory(images.nbytes, f"{self._path}: {self._name}")
        with located(self._path, f"the images {self._name}"):
            files = self._tables.image_files(self._path, self._name, self._rows[start:stop])
            for image, content in zip(images, files, strict=True):
                with Image.open(io.BytesIO(content)) as file:
                    if file.size[::-1] != self.shape[1:3]:
                        _refuse_size(file.size[::-1], self.shape)
                    image[...] = np.asarray(file.convert("RGB"))
        return images


def image_size(shape: tuple[int, ...], names: Any) -> tuple[int, ...]:
    """Return the size ``(H, W, 3)`` of the images of a feature, which may name channels first;
    ``()`` if they have not three channels."""
    if len(shape) != 3 or min(shape) < 1 or 3 not in (shape[0], shape[2]):
        return ()
    named_first = isinstance(names, Sequence) and str(*names[:1]).lower() in CHANNELS
    is_first = shape[0] == 3 and (shape[2] != 3 or named_first)
    return (*shape[1:], 3) if is_first else shape


def _refuse_size(size: tuple[int, ...], shape: tuple[int, ...]) -> None:
    words = f"but {INFO} says {list(shape[1:3])}"
    raise ValueError(f"images are of {list(size)} pixels, {words}")
