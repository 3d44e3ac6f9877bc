"""LeRobot's layout v3.0 (Cadene et al., 2024, github.com/huggingface/lerobot), without the package
lerobot: a folder of Parquet files, MP4 films and JSON, each of many episodes; and its reader.

Features have other names than in robomimic's layout: ``action`` is ``actions``, ``next.reward``
``rewards``, ``observation.images.CAMERA`` ``obs/CAMERA_image``, ``observation.state`` a vector of
several observations. offrl's notes in ``meta/offrl.json`` restore these.
"""

import io
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offrl.data.demos import Episodes
from offrl.data.formats.exchange import read_notes, vector_columns
from offrl.data.formats.hdf5 import located
from offrl.lazy import needed
from offrl.links import inside
from offrl.memory import check_memory

VERSION = "v3.0"
INFO, STATS, TASKS = "meta/info.json", "meta/stats.json", "meta/tasks.parquet"
NOTES = "meta/offrl.json"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
STATE, IMAGES = "observation.state", "observation.images."
# The fields of paths in info.json, by its keys.
PLACES = {
    "data_path": ("chunk_index", "file_index"),
    "video_path": ("video_key", "chunk_index", "file_index"),
}
ARRAYS = {"action": "actions", "next.reward": "rewards", "next.done": "dones"}
SUCCESS = "next.success"
# Features of all data sets that number the steps.
COUNTS = {
    "timestamp": "float32",
    **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64"),
}
# Films are H.264 (yuv420p) with a key frame at every other frame, so that a frame is found without
# decoding others, as LeRobot wants it. Pixels come back within a few units (docs/howto/convert.md).
CODEC = "libx264"
# No frame refers to a later one (bf). A slower preset gains nothing on small images. x264's mbtree
# now and then (in two films of a thousand) gives other bytes for the same images.
FILM_OPTIONS = {"crf": "18", "g": "2", "bf": "0", "preset": "faster", "x264-params": "mbtree=0"}
PIXELS = "yuv420p"


def is_lerobot(folder: Path) -> bool:
    return (folder / INFO).is_file()


def camera_feature(key: str) -> str:
    """Name the feature of the images ``obs/KEY``."""
    return IMAGES + key.removeprefix("obs/").removesuffix("_image").replace("/", ".")


def _key(feature: str) -> str:
    """Return a feature's name in robomimic's layout, if offrl did not note one."""
    if feature.startswith(IMAGES):
        return f"obs/{feature.removeprefix(IMAGES)}_image"
    if feature.startswith("observation."):
        return f"obs/{feature.removeprefix('observation.')}"
    return ARRAYS.get(feature, feature)


class LeRobotFolder(Episodes):
    """The episodes in a data set's folder, with ``task``, ``fps`` and, if recorded, ``success``."""

    layout = "LeRobot"

    def __init__(self, folder: Path):
        parquet()
        self.path = folder
        with located(folder, INFO):
            self._info = _read_info(self._inside(INFO))
        self._features, self._fps = self._info["features"], self._info["fps"]
        self._kinds = {name: feature["dtype"] for name, feature in self._features.items()}
        own = self._inside(NOTES)
        self._notes = read_notes(folder, own.read_bytes()) if own.exists() else None
        with located(folder, TASKS):
            table = _rows(parquet().ParquetFile(self._inside(TASKS)), TASKS)
            (words,) = set(table.column_names) - {"task_index"}
            columns = (table[name].to_pylist() for name in ("task_index", words))
            self._tasks = dict(zip(*columns, strict=True))
        with located(folder, "meta/episodes"):
            notes = list[dict[str, Any]]()
            for path in sorted(folder.glob("meta/episodes/*/*.parquet")):
                file = parquet().ParquetFile(self._inside(str(path.relative_to(folder))))
                names = [n for n in file.schema_arrow.names if not n.startswith("stats/")]
                notes += _rows(file, path, columns=names).to_pylist()
            self._episodes = sorted(notes, key=lambda row: row["episode_index"])
        numbers = {row["episode_index"] for row in self._episodes}
        total = self._info.get("total_episodes", len(self._episodes))
        if not len(numbers) == len(self._episodes) == total > 0:
            raise ValueError(
                f"{folder}: meta/episodes has {len(self._episodes)} rows of {len(numbers)} "
                f"episodes, but total_episodes in {INFO} is {total}; copy the folder again"
            )
        self._open: _StepsFile | None = None

    def demos(self) -> list[str]:
        return [f"demo_{i}" for i in range(len(self._episodes))]

    def unread(self) -> list[str]:
        return [name for name, kind in self._kinds.items() if kind == "string"]

    def trajectory(self, demo: str, keys: Collection[str] | None = None) -> dict[str, Any]:
        episode = self._episodes[int(demo.removeprefix("demo_"))]
        table = self._steps(episode)
        arrays: dict[str, Any] = {"fps": self._fps}
        with located(self.path, demo):
            arrays["task"] = self._tasks[table["task_index"][0].as_py()]
            for name in self._features:
                if name not in (*COUNTS, *self.unread()):
                    arrays.update(self._read(name, episode, table, keys))
        return arrays

    def _inside(self, name: str) -> Path:
        """Find a file of the folder. In a hub's cache, ``snapshots/COMMIT`` links to ``blobs``."""
        folder = self.path.resolve()
        blobs = [folder.parents[1] / "blobs"] if folder.parent.name == "snapshots" else []
        return inside(folder / name, folder, *blobs, place=f"{self.path}: {name}")

    def _place(self, key: str, episode: Mapping[str, Any], of: str, **fields: Any) -> Path:
        """Find the file of an episode's steps or film by a path template in ``info.json``."""
        with located(self.path, f"{key} of episode {episode['episode_index']}"):
            for field in ("chunk_index", "file_index"):
                fields[field] = episode[f"{of}/{field}"]
            return self._inside(self._info[key].format(**fields))

    def _steps(self, episode: Mapping[str, Any]) -> Any:
        """Read the rows of an episode, in order. The file stays open for the next episode."""
        number, length = episode["episode_index"], episode["length"]
        path = self._place("data_path", episode, "data")
        with located(path, f"episode {number}"):
            if self._open is None or self._open.path != path:
                self._open = _StepsFile(path)
            table = self._open.read(number).sort_by("frame_index")
            if table["frame_index"].to_pylist() != list(range(length)):
                numbers = f"0 to {length - 1} by frame_index"
                raise ValueError(f"its {len(table)} steps are not numbered {numbers}")
        return table

    def _read(
        self, name: str, episode: Mapping[str, Any], table: Any, keys: Collection[str] | None
    ) -> Iterator[tuple[str, Any]]:
        """Yield the arrays in a feature, by their paths, and its attributes."""
        feature = self._features[name]
        steps = self._notes["steps"] if self._notes else {}
        known = {camera_feature(key): key for key in steps if steps[key].is_image}
        key = known.get(name) or _key(name)
        if name == STATE and steps:
            state = _array(name, table, feature["shape"])
            for part, columns, step in vector_columns(steps):
                if keys is None or part in keys:
                    yield part, state[:, columns].astype(step.dtype).reshape(-1, *step.shape)
        elif name == SUCCESS:
            yield "success", bool(_array(name, table, ()).any())
        elif keys is not None and key not in keys:
            return
        elif feature["dtype"] in ("video", "image"):
            if feature["dtype"] == "image":
                from PIL import Image

                files = [io.BytesIO(cell["bytes"]) for cell in table[name].to_pylist()]
                images = np.stack([np.asarray(Image.open(file).convert("RGB")) for file in files])
            else:
                path = self._place("video_path", episode, f"videos/{name}", video_key=name)
                start = episode[f"videos/{name}/from_timestamp"]
                images = decode_film(path, start, episode["length"], self._fps)
            shape, size = list(feature["shape"]), list(images.shape[1:3])
            if size not in (shape[:2], shape[1:]):
                raise ValueError(f"{name} is of {size} pixels, but {INFO} says {shape}")
            yield key, images
        else:
            shape = steps[key].shape if key in steps else feature["shape"]
            array = _array(name, table, () if name in ARRAYS and name != "action" else shape)
            yield key, array.astype(np.float32) if array.dtype == bool else array


class _StepsFile:
    """A file of steps. An episode is read from the row groups that contain its steps."""

    def __init__(self, path: Path):
        self.path = path
        self._file = parquet().ParquetFile(path)
        groups = [self._file.metadata.row_group(i) for i in range(self._file.num_row_groups)]
        paths = [groups[0].column(i).path_in_schema for i in range(groups[0].num_columns)]
        column = paths.index("episode_index")
        counted = [group.column(column).statistics for group in groups]
        ranges = [(c.min, c.max) if c and c.has_min_max else (0, np.inf) for c in counted]
        self._first, self._last = np.array(ranges).T

    def read(self, number: int) -> Any:
        groups = np.flatnonzero((self._first <= number) & (number <= self._last))
        table = _rows(self._file, self.path, groups.tolist())
        return table.filter(np.asarray(table["episode_index"]) == number)


def _rows(file: Any, place: object, groups: Any = None, columns: Any = None) -> Any:
    """Read an open Parquet file, or some of its row groups, if they fit into memory."""
    groups = list(range(file.num_row_groups)) if groups is None else groups
    parts = [file.metadata.row_group(i) for i in groups]
    cells = [part.column(k) for part in parts for k in range(part.num_columns)]
    num_bytes = sum(max(c.total_uncompressed_size, 8 * c.num_values) for c in cells)
    check_memory(num_bytes, f"{place}: what it holds")
    return file.read_row_groups(groups, columns)


def _read_info(path: Path) -> dict[str, Any]:
    """Read ``info.json``; ``ValueError`` unless it follows the layout."""
    info = json.loads(path.read_text(encoding="utf-8"))
    version = str(info["codebase_version"])
    if not version.startswith("v3."):
        raise ValueError(
            f"{path.parents[1]}: is of LeRobot's layout {version}; bring it to {VERSION}, from "
            "v2.1 with LeRobot's script lerobot.datasets.v30.convert_dataset_v21_to_v30"
        )
    dtypes = [feature["dtype"] for feature in info["features"].values()]
    float(info["fps"])
    for key in PLACES if "video" in dtypes else ("data_path",):
        template = info.get(key)
        field = rf"\{{({'|'.join(PLACES[key])})(:0?\d?d)?\}}"
        if not isinstance(template, str) or not re.fullmatch(rf"([^{{}}]|{field})+", template):
            raise ValueError(
                f"{path}: {key} is {template!r:.80}, but has to be a path with the fields "
                f"{', '.join(PLACES[key])}, as {DATA_PATH if key == 'data_path' else VIDEO_PATH}"
            )
    return info


def _array(name: str, table: Any, shape: Sequence[int]) -> np.ndarray:
    """Read the values ``[T, *shape]`` of a column of numbers or of lists of them. ``ValueError`` if
    a list is longer or shorter, which would shift all later values."""
    import pyarrow.compute as compute

    values, rows = table[name].combine_chunks(), len(table)
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


def parquet() -> Any:
    return needed("pyarrow.parquet", "lerobot", "pyarrow is missing")


def encode_film(frames: np.ndarray, fps: int) -> bytes:
    """Make the film (MP4) of an episode's images ``[T, H, W, 3]`` (uint8); H and W are even."""
    av, file = _av(), io.BytesIO()
    with av.open(file, "w", format="mp4") as clip:
        stream = clip.add_stream(CODEC, rate=fps, options=FILM_OPTIONS)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = PIXELS
        stream.codec_context.thread_count = 1  # other episodes use the other cores
        for frame in frames:
            clip.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        clip.mux(stream.encode())
    return file.getvalue()


class Film:
    """A film file to which the films of episodes are appended without recoding."""

    def __init__(self, path: Path, fps: int):
        self._container = _av().open(str(path), "w", format="mp4")
        self._stream: Any = None
        self._fps = fps
        self.num_frames = 0

    def append(self, clip: bytes) -> None:
        with _av().open(io.BytesIO(clip)) as source:
            stream = source.streams.video[0]
            if self._stream is None:
                self._stream = self._container.add_stream_from_template(stream)
            before = int(self.num_frames / (self._fps * stream.time_base))  # integers are exact
            for packet in source.demux(stream):
                if packet.dts is not None:  # the last packet only marks the end
                    packet.dts += before
                    packet.pts += before
                    packet.stream = self._stream
                    self._container.mux(packet)
            self.num_frames += stream.frames

    def close(self) -> None:
        self._container.close()


def decode_film(path: Path, start: float, num_frames: int, fps: float) -> np.ndarray:
    """Read ``num_frames`` images ``[T, H, W, 3]`` of a film, from the time ``start`` (seconds) on.
    ``ValueError`` if the film is damaged or too short."""
    images: list[np.ndarray] = []
    av = _av()
    with located(path, f"the film from {start:g} s on"), av.open(str(path)) as film:
        stream = film.streams.video[0]
        num_bytes = 3 * stream.width * stream.height * num_frames
        check_memory(num_bytes, f"{path}: {num_frames} frames")
        # One converter for all frames: making one per frame takes longer than decoding.
        colours = av.video.reformatter.VideoReformatter()
        film.seek(int(start / stream.time_base), stream=stream)
        for frame in film.decode(stream):
            late = frame.time - start - len(images) / fps
            if late > -0.5 / fps:
                if late > 0.5 / fps:
                    raise ValueError(f"it has no frame of step {len(images)} of the episode")
                images.append(colours.reformat(frame, format="rgb24").to_ndarray())
            if len(images) == num_frames:
                return np.stack(images)
        raise ValueError(f"it has {len(images)} frames there, but the episode {num_frames}")


def _av() -> Any:
    return needed("av", "lerobot", "PyAV is missing")
