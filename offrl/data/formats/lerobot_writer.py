"""The writer of LeRobot's layouts 2.1 and 3.0, without the package lerobot.

Encoding films is slow, so an ``encoder`` does it for one episode, possibly in another process; the
process that writes only appends them.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from offrl.data.formats import exchange
from offrl.data.formats.exchange import Conversion, StepType
from offrl.data.formats.film import PIXELS, Film, encode_film
from offrl.data.formats.lerobot import COUNTS, NOTES, STATE, SUCCESS, camera_feature
from offrl.data.formats.lerobot_index import INFO, ManyFiles, SharedFiles, parquet
from offrl.data.formats.lerobot_stats import (
    QUANTILES,
    Aggregate,
    Statistics,
    image_statistics,
    statistics,
)
from offrl.outputs import check_space, whole_folder

STATS, EPISODES_STATS = "meta/stats.json", "meta/episodes_stats.jsonl"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
FILES_PER_FOLDER = 1000
DATA_MB, VIDEO_MB = 100, 200  # largest size of a file; LeRobot's own limits
ROWS = 100  # episodes whose metadata is written at once


def holds(key: str, step: StepType) -> bool:
    """Say whether LeRobot's layout can store an array."""
    if key.startswith("obs/"):
        has_even_sides = not any(side % 2 for side in step.shape[:2])  # as H.264 needs
        return step.is_vector or (step.is_image and has_even_sides)
    return key in ("actions", "rewards", "dones")


def encoder(plan: Conversion) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Make the function that encodes an episode for writing (``encode_episode``)."""
    if plan.fps is None:
        words = "does not say how many steps a second has (control_freq in its env_args)"
        raise ValueError(f"{plan.source}: {words}; say so with --fps")
    parquet()
    cameras = tuple(sorted(key for key, step in plan.steps.items() if step.is_image))
    if len({camera_feature(key) for key in cameras}) < len(cameras):
        words = "have the same name but for _image; rename one, or choose with --obs"
        raise ValueError(f"{plan.source}: two of {', '.join(cameras)} {words}")
    return partial(encode_episode, tuple(exchange.vector_keys(plan.steps)), cameras, plan.fps)


def encode_episode(
    obs: Sequence[str], cameras: Sequence[str], fps: int, trajectory: Mapping[str, Any]
) -> dict[str, Any]:
    """Return ``columns`` ``{feature: [T, ...]}``, ``films`` ``{feature: MP4}`` and ``stats`` of an
    episode. obs: the observations that make up the state."""
    columns = {STATE: exchange.join_vectors(trajectory, obs)} if obs else {}
    columns["action"] = _column(trajectory["actions"])
    if "rewards" in trajectory:
        columns["next.reward"] = _column(trajectory["rewards"]).reshape(-1)
    if "dones" in trajectory:
        columns["next.done"] = exchange.as_booleans(trajectory, "dones")
    if "success" in trajectory:
        last = np.arange(len(columns["action"])) == len(columns["action"]) - 1
        columns[SUCCESS] = last & bool(trajectory["success"])
    films, stats = {}, {}
    for key in cameras:
        films[camera_feature(key)] = encode_film(trajectory[key], fps)
        stats[camera_feature(key)] = image_statistics(trajectory[key])
    stats |= {name: statistics(values) for name, values in columns.items()}
    return {"columns": columns, "films": films, "stats": stats, "task": trajectory.get("task")}


@contextmanager
def writing(
    output: str, plan: Conversion, version: str = "v3.0"
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Make a function that adds encoded episodes to a new folder, which appears when complete."""
    make = {"v2.1": _ManyFiles, "v3.0": _SharedFiles}[version]
    with whole_folder(output) as folder:
        data = make(folder, plan, Path(output).expanduser(), version)
        try:
            yield data.write
            data.finish()
        finally:
            data.close()


class _DataSet(ABC):
    """A new data set, to which episodes are added."""

    paths: Mapping[str, str]

    def __init__(self, folder: Path, plan: Conversion, name: Path, version: str):
        assert plan.fps is not None  # ``encoder`` has checked it
        self._folder, self._plan, self._name, self._fps = folder, plan, name, plan.fps
        self._version = version
        self._columns: dict[str, np.ndarray] = {}  # the first episode's
        self._tasks: dict[str, int] = {}
        self._num_episodes = self._num_steps = 0

    def write(self, episode: Mapping[str, Any]) -> None:
        films, columns = episode["films"], dict(episode["columns"])
        self._columns = self._columns or columns
        if columns.keys() != self._columns.keys():
            (odd, *_) = columns.keys() ^ self._columns.keys()
            raise ValueError(
                f"{self._plan.source}: demonstration {self._num_episodes} of it differs from the "
                f"first: one has {odd}, one has not; leave out one of them"
            )
        num_bytes = sum(map(len, films.values())) + sum(x.nbytes for x in columns.values())
        check_space(self._name, 2 * num_bytes)
        env_name = (self._plan.env_args or {}).get("env_name", self._plan.source.stem)
        task, length = self._plan.task or episode["task"] or env_name, len(columns["action"])
        counts = self._counts(length, self._tasks.setdefault(task, len(self._tasks)))
        stats = episode["stats"] | {k: statistics(v) for k, v in counts.items()}
        row = {"episode_index": self._num_episodes, "tasks": [task], "length": length}
        self._add(row, _table(columns | counts), films, stats)
        self._num_episodes += 1
        self._num_steps += length

    @abstractmethod
    def _add(
        self, row: dict[str, Any], table: Any, films: Mapping[str, bytes], stats: Statistics
    ) -> None:
        """Write the steps and films of an episode, and its row in the list of episodes."""

    def _counts(self, length: int, task: int) -> dict[str, np.ndarray]:
        steps = np.arange(length)
        values = {
            "timestamp": steps / self._fps,
            "frame_index": steps,
            "episode_index": np.full(length, self._num_episodes),
            "index": self._num_steps + steps,
            "task_index": np.full(length, task),
        }
        return {name: values[name].astype(dtype) for name, dtype in COUNTS.items()}

    def finish(self) -> None:
        """Write the metadata that depends on all episodes."""
        kwargs = (self._plan.env_args or {}).get("env_kwargs") or {}
        films = [key for key, step in self._plan.steps.items() if step.is_image]
        info = {
            "codebase_version": self._version,
            "robot_type": kwargs["robots"] if isinstance(kwargs.get("robots"), str) else None,
            "total_episodes": self._num_episodes,
            "total_frames": self._num_steps,
            "total_tasks": len(self._tasks),
            "chunks_size": FILES_PER_FOLDER,
            **self._limits(len(films)),
            "fps": self._fps,
            "splits": {"train": f"0:{self._num_episodes}"},
            **self.paths,
            **({} if films else {"video_path": None}),
            "features": self._features(),
        }
        self._write_json(INFO, info)
        self._write_json(NOTES, self._plan.notes())

    @abstractmethod
    def _limits(self, num_cameras: int) -> dict[str, int]:
        """Return what ``info.json`` says of the number or size of files in this layout."""

    def _write_json(self, name: str, content: Any) -> None:
        text = json.dumps(content, indent=4, ensure_ascii=False)
        (self._folder / name).write_text(text, encoding="utf-8")

    def _features(self) -> dict[str, Any]:
        counts = {name: np.empty(0, dtype) for name, dtype in COUNTS.items()}
        features: dict[str, Any] = {}
        for name, values in (self._columns | counts).items():
            shape = list(values.shape[1:]) or [1]
            features[name] = {"dtype": str(values.dtype), "shape": shape, "names": None}
        if STATE in features:
            obs = {key: self._plan.steps[key] for key in exchange.vector_keys(self._plan.steps)}
            features[STATE]["names"] = [
                f"{key.removeprefix('obs/')}_{i}"
                for key, step in obs.items()
                for i in range(step.size)
            ]
        for key, step in self._plan.steps.items():
            if step.is_image:
                shape, names = list(step.shape), ["height", "width", "channels"]
                info = {f"video.{name}": size for name, size in zip(names, shape, strict=True)}
                info |= {"video.codec": "h264", "video.pix_fmt": PIXELS}
                info |= {"video.is_depth_map": False, "video.fps": self._fps, "has_audio": False}
                feature = {"dtype": "video", "shape": shape, "names": names, "info": info}
                features[camera_feature(key)] = feature
        return features

    @abstractmethod
    def close(self) -> None:
        """Close the files that are open."""


class _ManyFiles(_DataSet):
    """The layout 2.1: a file of steps and films for each episode, and lists in JSON lines."""

    paths = ManyFiles.paths

    def _add(
        self, row: dict[str, Any], table: Any, films: Mapping[str, bytes], stats: Statistics
    ) -> None:
        number = row["episode_index"]
        place = {"episode_index": number, "episode_chunk": number // FILES_PER_FOLDER}
        parquet().write_table(table, self._new(self.paths["data_path"].format(**place)))
        for name, film in films.items():
            path = self.paths["video_path"].format(**place, video_key=name)
            self._new(path).write_bytes(film)
        kinds = {
            name: {kind: x.tolist() for kind, x in values.items() if kind not in QUANTILES}
            for name, values in stats.items()
        }
        self._append_json(ManyFiles.episodes_files, row)
        self._append_json(EPISODES_STATS, {"episode_index": number, "stats": kinds})

    def _new(self, name: str) -> Path:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _append_json(self, name: str, row: Mapping[str, Any]) -> None:
        with open(self._new(name), "a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def _limits(self, num_cameras: int) -> dict[str, int]:
        num = self._num_episodes
        return {"total_videos": num_cameras * num, "total_chunks": -(-num // FILES_PER_FOLDER)}

    def finish(self) -> None:
        super().finish()
        for task, number in self._tasks.items():
            self._append_json(ManyFiles.tasks_file, {"task_index": number, "task": task})

    def close(self) -> None:
        """Nothing stays open."""


class _SharedFiles(_DataSet):
    """The layout 3.0: files of many episodes, and lists in Parquet tables."""

    paths = SharedFiles.paths

    def __init__(self, folder: Path, *args: Any):
        super().__init__(folder, *args)
        self._data = _FileSet(folder, self.paths["data_path"], DATA_MB)
        self._noted = _FileSet(folder, EPISODES_PATH, DATA_MB)
        self._films: dict[str, _FileSet] = {}
        self._waiting: list[dict[str, Any]] = []  # metadata not written yet
        self._stats = Aggregate()

    def _add(
        self, row: dict[str, Any], table: Any, films: Mapping[str, bytes], stats: Statistics
    ) -> None:
        place = _append(self._data, table)
        self._stats.add(stats)
        row |= {
            **{f"data/{key}": number for key, number in place.items()},
            "dataset_from_index": self._num_steps,
            "dataset_to_index": self._num_steps + row["length"],
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
        }
        for name, film in films.items():
            for key, value in self._append_film(name, film).items():
                row[f"videos/{name}/{key}"] = value
        for name, values in stats.items():
            row |= {f"stats/{name}/{kind}": value.tolist() for kind, value in values.items()}
        self._waiting.append(row)
        if len(self._waiting) == ROWS:
            self._note()

    def _append_film(self, name: str, clip: bytes) -> dict[str, Any]:
        """Append an episode's film to the others, and return its place."""
        path, fps = self.paths["video_path"], self._fps
        files = self._films.setdefault(name, _FileSet(self._folder, path, VIDEO_MB, video_key=name))
        place = files.place(len(clip), lambda path: Film(path, fps))
        start = files.file.num_frames / fps
        files.file.append(clip)
        return {**place, "from_timestamp": start, "to_timestamp": files.file.num_frames / fps}

    def _note(self) -> None:
        import pyarrow

        _append(self._noted, pyarrow.Table.from_pylist(self._waiting))
        self._waiting = []

    def _limits(self, num_cameras: int) -> dict[str, int]:
        return {"data_files_size_in_mb": DATA_MB, "video_files_size_in_mb": VIDEO_MB}

    def finish(self) -> None:
        if self._waiting:
            self._note()
        super().finish()
        self._write_json(STATS, self._stats.values())
        tasks = _tasks_table(self._tasks)
        parquet().write_table(tasks, self._folder / SharedFiles.tasks_file)

    def close(self) -> None:
        for files in (self._data, self._noted, *self._films.values()):
            files.close()


class _FileSet:
    """A series of files, in which a new one is begun when one is full.

    path: template of their paths, with fields for numbers and ``fields``. size: limit in MB.
    """

    def __init__(self, folder: Path, path: str, size: int, **fields: str):
        self._folder, self._path, self._fields = folder, path, fields
        self._size = size * 2**20
        self._number, self._num_bytes = -1, 0
        self.file: Any = None

    def place(self, num_bytes: int, begin: Callable[[Path], Any]) -> dict[str, int]:
        """Return the numbers of folder and file for the next bytes; ``begin`` makes a file."""
        if self.file is None or self._num_bytes > self._size:
            self.close()
            self._number, self._num_bytes = self._number + 1, 0
        chunk, file = divmod(self._number, FILES_PER_FOLDER)
        place = {"chunk_index": chunk, "file_index": file}
        if self.file is None:
            path = self._folder / self._path.format(**place, **self._fields)
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = begin(path)
        self._num_bytes += num_bytes
        return place

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


def _append(files: _FileSet, table: Any) -> dict[str, int]:
    # Other numbers are hardly ever equal: a dictionary would take half of the time.
    repeated = [name for name in table.column_names if name in COUNTS]
    writer, schema = parquet().ParquetWriter, table.schema
    place = files.place(table.nbytes, lambda p: writer(p, schema, use_dictionary=repeated))
    files.file.write_table(table)
    return place


def _column(array: np.ndarray) -> np.ndarray:
    return exchange.as_float32(array).reshape(len(array), -1)


def _table(columns: Mapping[str, np.ndarray]) -> Any:
    import pyarrow

    table = {}
    for name, array in columns.items():
        table[name] = pyarrow.array(array.reshape(-1))
        if array.size != len(array):  # LeRobot puts no single numbers in lists
            table[name] = pyarrow.FixedSizeListArray.from_arrays(table[name], array.shape[1])
    return pyarrow.table(table)


def _tasks_table(tasks: Mapping[str, int]) -> Any:
    """Make the table of tasks as pandas writes a frame with an index, which LeRobot expects."""
    import pyarrow

    names = {"task_index": ("int64", "int64"), "task": ("unicode", "object")}
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [
            {"name": name, "field_name": name, "metadata": None}
            | {"pandas_type": kind, "numpy_type": of_numpy}
            for name, (kind, of_numpy) in names.items()
        ],
        "pandas_version": "2.0.0",
    }
    table = pyarrow.table({"task_index": list(tasks.values()), "task": list(tasks)})
    return table.replace_schema_metadata({"pandas": json.dumps(pandas)})
