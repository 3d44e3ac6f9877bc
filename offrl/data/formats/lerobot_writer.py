"""Writing LeRobot's layout v3.0, without the package lerobot.

What costs time, coding films, is done for one episode by an ``Encoder``, in other processes if
wanted; the one that writes appends its films as they are.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offrl.data.formats.clips import PIXELS, Film, encode
from offrl.data.formats.exchange import Plan, Step, as_float32, flags, join, vectors
from offrl.data.formats.lerobot import (
    COUNTS,
    DATA_PATH,
    EPISODES_PATH,
    INFO,
    NOTES,
    STATE,
    STATS,
    SUCCESS,
    TASKS,
    VERSION,
    VIDEO_PATH,
    camera_feature,
    parquet,
)
from offrl.data.formats.lerobot_stats import Aggregate, image_statistics, statistics
from offrl.outputs import check_space, whole_folder

FILES_PER_FOLDER = 1000
DATA_MB, VIDEO_MB = 100, 200  # of a file, before the next is begun; LeRobot's own bounds
ROWS = 100  # episodes that are noted at once


def holds(key: str, step: Step) -> bool:
    """Say whether LeRobot's layout has a place for an array."""
    if key.startswith("obs/"):
        has_even_sides = not any(side % 2 for side in step.shape[:2])  # as H.264 wants them
        return step.is_vector or (step.is_image and has_even_sides)
    return key in ("actions", "rewards", "dones")


@dataclass(frozen=True)
class Encoder:
    """Makes of an episode what is written of it."""

    obs: tuple[str, ...]  # what makes up the state
    cameras: tuple[str, ...]
    fps: int

    def __call__(self, trajectory: Mapping[str, Any]) -> dict[str, Any]:
        """``columns`` ``{feature: [T, ...]}``, ``films`` ``{feature: MP4}`` and ``stats``."""
        columns = {STATE: join(trajectory, self.obs)} if self.obs else {}
        columns["action"] = _column(trajectory["actions"])
        if "rewards" in trajectory:
            columns["next.reward"] = _column(trajectory["rewards"]).reshape(-1)
        if "dones" in trajectory:
            columns["next.done"] = flags(trajectory, "dones")
        if "success" in trajectory:
            last = np.arange(len(columns["action"])) == len(columns["action"]) - 1
            columns[SUCCESS] = last & bool(trajectory["success"])
        films, stats = {}, {}
        for key in self.cameras:
            images, feature = trajectory[key], camera_feature(key)
            films[feature] = encode(images, self.fps)
            stats[feature] = image_statistics(images)
        stats |= {name: statistics(values) for name, values in columns.items()}
        return {"columns": columns, "films": films, "stats": stats, "task": trajectory.get("task")}


def encoder(plan: Plan) -> Encoder:
    if plan.fps is None:
        raise ValueError(
            f"{plan.source}: does not say how many steps a second has (control_freq in its "
            "env_args); say so with --fps"
        )
    parquet()
    cameras = tuple(sorted(key for key, step in plan.steps.items() if step.is_image))
    if len({camera_feature(key) for key in cameras}) < len(cameras):
        raise ValueError(
            f"{plan.source}: two of {', '.join(cameras)} have the same name but for _image; rename "
            "one, or choose with --obs"
        )
    return Encoder(tuple(vectors(plan.steps)), cameras, plan.fps)


@contextmanager
def writing(output: str, plan: Plan) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A function that adds what ``encoder`` made of an episode to a new folder, which is there when
    all are in it."""
    with whole_folder(output) as folder:
        dataset = _Dataset(folder, plan, Path(output).expanduser())
        try:
            yield dataset.write
            dataset.finish()
        finally:
            dataset.close()


class _Dataset:
    def __init__(self, folder: Path, plan: Plan, name: Path):
        self._folder, self._plan, self._name = folder, plan, name
        self._data = _Files(folder, DATA_PATH, DATA_MB)
        self._noted = _Files(folder, EPISODES_PATH, DATA_MB)
        self._films: dict[str, _Files] = {}
        self._columns: dict[str, np.ndarray] = {}  # of the first episode
        self._tasks: dict[str, int] = {}
        self._waiting: list[dict[str, Any]] = []  # to be noted
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
        counts = self._counts(
            len(columns["action"]), self._tasks.setdefault(task, len(self._tasks))
        )
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
            note |= self._append_film(name, film)
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
            "timestamp": steps / self._plan.fps,
            "frame_index": steps,
            "episode_index": np.full(length, self._num_episodes),
            "index": self._num_steps + steps,
            "task_index": np.full(length, task),
        }
        return {name: values[name].astype(dtype) for name, dtype in COUNTS.items()}

    def _append_film(self, name: str, clip: bytes) -> dict[str, Any]:
        """Say where the episode's film is, as it is noted."""
        new, fps = _Files(self._folder, VIDEO_PATH, VIDEO_MB, video_key=name), self._plan.fps
        files = self._films.setdefault(name, new)
        note: dict[str, Any] = files.place(len(clip), lambda path: Film(path, fps))
        note["from_timestamp"] = files.file.num_frames / fps
        files.file.append(clip)
        note["to_timestamp"] = files.file.num_frames / fps
        return {f"videos/{name}/{key}": value for key, value in note.items()}

    def _note(self) -> None:
        import pyarrow

        _append(self._noted, pyarrow.Table.from_pylist(self._waiting))
        self._waiting = []

    def finish(self) -> None:
        """Write what is known when all episodes are in."""
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
            "fps": self._plan.fps,
            "splits": {"train": f"0:{self._num_episodes}"},
            "data_path": DATA_PATH,
            "video_path": VIDEO_PATH if self._films else None,
            "features": self._features(),
        }
        contents = {INFO: info, STATS: self._stats.values(), NOTES: self._plan.notes()}
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
            obs = {key: self._plan.steps[key] for key in vectors(self._plan.steps)}
            features[STATE]["names"] = [
                f"{key.removeprefix('obs/')}_{i}"
                for key, step in obs.items()
                for i in range(step.size)
            ]
        for key, step in self._plan.steps.items():
            if step.is_image:
                features[camera_feature(key)] = _film_feature(step, self._plan.fps)
        return features

    def close(self) -> None:
        for files in (self._data, self._noted, *self._films.values()):
            files.close()


class _Files:
    """Files of one kind, the next of which is begun when one is full.

    path: of each in the folder, with the fields of its numbers and these others. size: in MB.
    """

    def __init__(self, folder: Path, path: str, size: int, **fields: str):
        self._folder, self._path, self._fields = folder, path, fields
        self._size = size * 2**20
        self._number, self._num_bytes = -1, 0
        self.file: Any = None

    def place(self, num_bytes: int, begin: Callable[[Path], Any]) -> dict[str, int]:
        """The numbers of the folder and of the ``file`` that so many bytes go to."""
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


def _append(files: _Files, table: Any) -> dict[str, int]:
    # Of other numbers hardly two are equal: to look for that takes half of the time.
    repeated = [name for name in table.column_names if name in COUNTS]
    writer, schema = parquet().ParquetWriter, table.schema
    place = files.place(table.nbytes, lambda p: writer(p, schema, use_dictionary=repeated))
    files.file.write_table(table)
    return place


def _column(array: np.ndarray) -> np.ndarray:
    return as_float32(array).reshape(len(array), -1)


def _table(columns: Mapping[str, np.ndarray]) -> Any:
    import pyarrow

    def arrow(array: np.ndarray) -> Any:
        values = pyarrow.array(array.reshape(-1))
        is_scalar = array.size == len(array)  # which LeRobot does not put in lists
        return (
            values if is_scalar else pyarrow.FixedSizeListArray.from_arrays(values, array.shape[1])
        )

    return pyarrow.table({name: arrow(array) for name, array in columns.items()})


def _tasks_table(tasks: Mapping[str, int]) -> Any:
    """The tasks as pandas writes a frame whose index they are: LeRobot reads it as one."""
    import pyarrow

    def column(name: str, kind: str) -> dict[str, Any]:
        of_numpy = {"unicode": "object"}.get(kind, kind)
        names = {"name": name, "field_name": name, "metadata": None}
        return names | {"pandas_type": kind, "numpy_type": of_numpy}

    pandas = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [column("task_index", "int64"), column("task", "unicode")],
        "pandas_version": "2.0.0",
    }
    table = pyarrow.table({"task_index": list(tasks.values()), "task": list(tasks)})
    return table.replace_schema_metadata({"pandas": json.dumps(pandas)})


def _film_feature(step: Step, fps: int) -> dict[str, Any]:
    height, width, channels = step.shape
    info = {
        "video.height": height,
        "video.width": width,
        "video.channels": channels,
        "video.codec": "h264",
        "video.pix_fmt": PIXELS,
        "video.is_depth_map": False,
        "video.fps": fps,
        "has_audio": False,
    }
    names = ["height", "width", "channels"]
    return {"dtype": "video", "shape": list(step.shape), "names": names, "info": info}
