"""The writer of LeRobot's layout v3.0, without the package lerobot.

Encoding films is slow, so an ``encoder`` does it for one episode, possibly in another process; the
process that writes only appends them.
"""

import json
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
from offrl.data.formats.lerobot_index import INFO, parquet
from offrl.outputs import check_space, whole_folder

VERSION = "v3.0"
STATS, TASKS = "meta/stats.json", "meta/tasks.parquet"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
FILES_PER_FOLDER = 1000
DATA_MB, VIDEO_MB = 100, 200  # largest size of a file; LeRobot's own limits
ROWS = 100  # episodes whose metadata is written at once
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
RANKS = {"min": 0, **QUANTILES, "max": 1}
SAMPLED = 100  # images of an episode that statistics are computed of
JOINED: dict[str, Any] = {"min": np.minimum, "max": np.maximum}  # all other sums are added


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
def writing(output: str, plan: Conversion) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Make a function that adds encoded episodes to a new folder, which appears when complete."""
    with whole_folder(output) as folder:
        dataset = _Dataset(folder, plan, Path(output).expanduser())
        try:
            yield dataset.write
            dataset.finish()
        finally:
            dataset.close()


class _Dataset:
    """A new data set, to which episodes are added."""

    def __init__(self, folder: Path, plan: Conversion, name: Path):
        assert plan.fps is not None  # ``encoder`` has checked it
        self._folder, self._plan, self._name, self._fps = folder, plan, name, plan.fps
        self._data = _FileSet(folder, DATA_PATH, DATA_MB)
        self._noted = _FileSet(folder, EPISODES_PATH, DATA_MB)
        self._films: dict[str, _FileSet] = {}
        self._columns: dict[str, np.ndarray] = {}  # the first episode's
        self._tasks: dict[str, int] = {}
        self._waiting: list[dict[str, Any]] = []  # metadata not written yet
        self._stats = Aggregate()
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
        task = self._plan.task or episode["task"] or env_name
        number = self._tasks.setdefault(task, len(self._tasks))
        counts = self._counts(len(columns["action"]), number)
        place = _append(self._data, _table(columns | counts))
        stats = episode["stats"] | {k: statistics(v) for k, v in counts.items()}
        self._stats.add(stats)
        note = {
            "episode_index": self._num_episodes,
            "tasks": [task],
            "length": len(columns["action"]),
            **{f"data/{key}": number for key, number in place.items()},
            "dataset_from_index": self._num_steps,
            "dataset_to_index": self._num_steps + len(columns["action"]),
            "meta/episodes/chunk_index": 0,
            "meta/episodes/file_index": 0,
        }
        for name, film in films.items():
            for key, value in self._append_film(name, film).items():
                note[f"videos/{name}/{key}"] = value
        for name, values in stats.items():
            note |= {f"stats/{name}/{kind}": value.tolist() for kind, value in values.items()}
        self._waiting.append(note)
        if len(self._waiting) == ROWS:
            self._note()
        self._num_episodes += 1
        self._num_steps += len(columns["action"])

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

    def _append_film(self, name: str, clip: bytes) -> dict[str, Any]:
        """Append an episode's film to the others, and return its place."""
        path, fps = VIDEO_PATH, self._fps
        files = self._films.setdefault(name, _FileSet(self._folder, path, VIDEO_MB, video_key=name))
        place = files.place(len(clip), lambda path: Film(path, fps))
        start = files.file.num_frames / fps
        files.file.append(clip)
        return {**place, "from_timestamp": start, "to_timestamp": files.file.num_frames / fps}

    def _note(self) -> None:
        import pyarrow

        _append(self._noted, pyarrow.Table.from_pylist(self._waiting))
        self._waiting = []

    def finish(self) -> None:
        """Write the metadata that depends on all episodes."""
        if self._waiting:
            self._note()
        kwargs = (self._plan.env_args or {}).get("env_kwargs") or {}
        info = {
            "codebase_version": VERSION,
            "robot_type": kwargs["robots"] if isinstance(kwargs.get("robots"), str) else None,
            "total_episodes": self._num_episodes,
            "total_frames": self._num_steps,
            "total_tasks": len(self._tasks),
            "chunks_size": FILES_PER_FOLDER,
            "data_files_size_in_mb": DATA_MB,
            "video_files_size_in_mb": VIDEO_MB,
            "fps": self._fps,
            "splits": {"train": f"0:{self._num_episodes}"},
            "data_path": DATA_PATH,
            "video_path": VIDEO_PATH if self._films else None,
            "features": self._features(),
        }
        contents = {
            INFO: info,
            STATS: self._stats.values(),
            NOTES: self._plan.notes(),
        }
        for name, content in contents.items():
            text = json.dumps(content, indent=4, ensure_ascii=False)
            (self._folder / name).write_text(text, encoding="utf-8")
        parquet().write_table(_tasks_table(self._tasks), self._folder / TASKS)

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


def statistics(values: np.ndarray) -> dict[str, np.ndarray]:
    """Compute statistics of each column of rows ``[T]`` or ``[T, D]``."""
    columns = np.sort(values.reshape(len(values), -1).T.astype(np.float64))
    last = len(values) - 1
    found = {name: columns[:, round(share * last)] for name, share in RANKS.items()}
    found |= {"mean": columns.mean(1), "std": columns.std(1), "count": np.array([len(values)])}
    return found


def image_statistics(images: np.ndarray) -> dict[str, np.ndarray]:
    """Compute statistics of the channels, from 0 to 1, of some of the images ``[T, H, W, 3]``."""
    some = np.linspace(0, len(images) - 1, min(len(images), SAMPLED)).round().astype(int)
    channels = np.moveaxis(images[some], -1, 0).reshape(3, -1)
    counts = np.array([np.bincount(channel, minlength=256) for channel in channels])
    values, last, up_to = np.arange(256) / 255, channels.shape[1] - 1, np.cumsum(counts, axis=1)
    found = {k: values[np.argmax(up_to > round(rank * last), axis=1)] for k, rank in RANKS.items()}
    mean, square = (counts @ powers / channels.shape[1] for powers in (values, values**2))
    found |= {"mean": mean, "std": np.sqrt(np.maximum(0, square - mean**2))}
    return {k: v.reshape(3, 1, 1) for k, v in found.items()} | {"count": np.array([len(some)])}


class Aggregate:
    """Aggregates the statistics of episodes to those of the data set, by which LeRobot's policies
    normalise; quantiles are means, as in LeRobot."""

    def __init__(self) -> None:
        self._sums: dict[str, dict[str, np.ndarray]] = {}

    def add(self, stats: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        for name, values in stats.items():
            count, mean = values["count"], values["mean"]
            new = {"min": values["min"], "max": values["max"], "count": count}
            new["square"] = count * (values["std"] ** 2 + mean**2)
            new |= {key: count * values[key] for key in ("mean", *QUANTILES)}
            sums = self._sums.setdefault(name, new)
            if sums is not new:
                for key, value in new.items():
                    sums[key] = JOINED.get(key, np.add)(sums[key], value)

    def values(self) -> dict[str, dict[str, Any]]:
        found = {}
        for name, sums in self._sums.items():
            values = {key: sums[key] for key in ("min", "max", "count")}
            values |= {key: sums[key] / sums["count"] for key in ("mean", *QUANTILES)}
            square = sums["square"] / sums["count"]
            values["std"] = np.sqrt(np.maximum(0, square - values["mean"] ** 2))
            found[name] = {key: value.tolist() for key, value in values.items()}
        return found
