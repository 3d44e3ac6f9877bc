"""LeRobot's layout v3.0 (Cadene et al., 2024, github.com/huggingface/lerobot), read without the
package lerobot: a folder of Parquet files, MP4 films and JSON, each of many episodes.

Features have other names than in robomimic's layout: ``action`` is ``actions``, ``next.reward``
``rewards``, ``observation.images.CAMERA`` ``obs/CAMERA_image``, ``observation.state`` a vector of
several observations. What offrl noted in ``meta/offrl.json`` tells them apart again.
"""

import io
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offrl.data.clips import decode
from offrl.data.demos import Episodes
from offrl.data.exchange import places, read_notes, vectors
from offrl.data.hdf5 import located

VERSION = "v3.0"
INFO, STATS, TASKS = "meta/info.json", "meta/stats.json", "meta/tasks.parquet"
NOTES = "meta/offrl.json"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
STATE, IMAGES = "observation.state", "observation.images."
ARRAYS = {"action": "actions", "next.reward": "rewards", "next.done": "dones"}
SUCCESS = "next.success"
# What numbers the steps: features that all data sets have.
COUNTS = {
    "timestamp": "float32",
    **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64"),
}


def is_lerobot(folder: Path) -> bool:
    return (folder / INFO).is_file()


def camera_feature(key: str) -> str:
    """The feature of the images ``obs/KEY``."""
    return IMAGES + key.removeprefix("obs/").removesuffix("_image").replace("/", ".")


def _key(feature: str) -> str:
    """What a feature is called in robomimic's layout, if offrl did not note it."""
    if feature.startswith(IMAGES):
        return f"obs/{feature.removeprefix(IMAGES)}_image"
    if feature.startswith("observation."):
        return f"obs/{feature.removeprefix('observation.')}"
    return ARRAYS.get(feature, feature)


class LeRobotFolder(Episodes):
    """The episodes in a data set's folder. Each has the attributes ``task``, ``fps`` and, where it
    was recorded, ``success``."""

    layout = "LeRobot"

    def __init__(self, folder: Path):
        parquet()
        self.path = folder
        with located(folder, INFO):
            self._info = json.loads((folder / INFO).read_text(encoding="utf-8"))
            version, self._features = self._info["codebase_version"], self._info["features"]
            self._fps = self._info["fps"]
            self._kinds = {name: feature["dtype"] for name, feature in self._features.items()}
        if not version.startswith("v3."):
            raise ValueError(
                f"{folder}: is of LeRobot's layout {version}; bring it to {VERSION} with LeRobot's "
                "script lerobot.datasets.v30.convert_dataset_v21_to_v30"
            )
        notes = folder / NOTES
        self._notes = read_notes(folder, notes.read_bytes()) if notes.is_file() else None
        with located(folder, TASKS):
            table = parquet().read_table(folder / TASKS)
            (words,) = set(table.column_names) - {"task_index"}
            self._tasks = dict(
                zip(table["task_index"].to_pylist(), table[words].to_pylist(), strict=True)
            )
        with located(folder, "meta/episodes"):
            self._episodes = list(self._listed())
        if not self._episodes:
            raise ValueError(f"{folder}: has no episodes")
        self._open: _Steps | None = None

    @property
    def env_args(self) -> dict[str, Any] | None:
        return self._notes and self._notes["env_args"]

    def demos(self) -> list[str]:
        return [f"demo_{i}" for i in range(len(self._episodes))]

    def masks(self) -> dict[str, list[str]]:
        return self._notes["masks"] if self._notes else {}

    def unread(self) -> list[str]:
        return [name for name, kind in self._kinds.items() if kind == "string"]

    def trajectory(self, demo: str, keys: Collection[str] | None = None) -> dict[str, Any]:
        episode = self._episodes[int(demo.removeprefix("demo_"))]
        table = self._steps(episode)
        arrays: dict[str, Any] = {"fps": self._fps}
        with located(self.path, demo):
            arrays["task"] = self._tasks[table["task_index"][0].as_py()]
            for name, feature in self._features.items():
                if name not in (*COUNTS, *self.unread()):
                    arrays.update(self._read(name, feature, episode, table, keys))
        return arrays

    def _listed(self) -> Iterator[dict[str, Any]]:
        """What is noted of each episode, but its statistics."""
        for path in sorted(self.path.glob("meta/episodes/*/*.parquet")):
            file = parquet().ParquetFile(path)
            names = [n for n in file.schema_arrow.names if not n.startswith("stats/")]
            yield from file.read(names).to_pylist()

    def _steps(self, episode: Mapping[str, Any]) -> Any:
        """The rows of an episode. One file stays open: episodes are read in their order."""
        number, length = episode["episode_index"], episode["length"]
        chunk, file = episode["data/chunk_index"], episode["data/file_index"]
        name = self._info["data_path"].format(chunk_index=chunk, file_index=file)
        with located(self.path / name, f"episode {number}"):
            if self._open is None or self._open.name != name:
                self._open = _Steps(self.path, name)
            table = self._open.read(number)
            if len(table) != length:
                raise ValueError(f"it has {len(table)} steps, but {length} were recorded")
        return table

    def _read(
        self,
        name: str,
        feature: Mapping[str, Any],
        episode: Mapping[str, Any],
        table: Any,
        keys: Collection[str] | None,
    ) -> Iterator[tuple[str, Any]]:
        """The arrays that a feature holds, by their path, and attributes."""
        steps = self._notes["steps"] if self._notes else {}
        known = {camera_feature(key): key for key in steps if steps[key].is_image}
        key = known.get(name) or _key(name)
        if name == STATE and steps:
            state = _array(table[name], feature["shape"])
            for part, columns, step in places(steps, vectors(steps)):
                if keys is None or part in keys:
                    yield part, state[:, columns].astype(step.dtype).reshape(-1, *step.shape)
        elif name == SUCCESS:
            yield "success", bool(_array(table[name], ()).any())
        elif keys is not None and key not in keys:
            return
        elif feature["dtype"] == "video":
            yield key, self._film(name, episode)
        elif feature["dtype"] == "image":
            yield key, np.stack([_image(cell["bytes"]) for cell in table[name].to_pylist()])
        else:
            shape = steps[key].shape if key in steps else feature["shape"]
            array = _array(table[name], () if name in ARRAYS and name != "action" else shape)
            yield key, array.astype(np.float32) if array.dtype == bool else array

    def _film(self, name: str, episode: Mapping[str, Any]) -> np.ndarray:
        path = self._info["video_path"].format(
            video_key=name,
            chunk_index=episode[f"videos/{name}/chunk_index"],
            file_index=episode[f"videos/{name}/file_index"],
        )
        start = episode[f"videos/{name}/from_timestamp"]
        return decode(self.path / path, start, episode["length"], self._fps)


class _Steps:
    """A file of steps, of which an episode's are read: of its row groups those that hold some."""

    def __init__(self, folder: Path, name: str):
        self.name = name
        self._file = parquet().ParquetFile(folder / name)
        groups = [self._file.metadata.row_group(i) for i in range(self._file.num_row_groups)]
        paths = [groups[0].column(i).path_in_schema for i in range(groups[0].num_columns)]
        column = paths.index("episode_index")
        counted = [group.column(column).statistics for group in groups]
        ranges = [(c.min, c.max) if c and c.has_min_max else (0, np.inf) for c in counted]
        self._first, self._last = np.array(ranges).T

    def read(self, number: int) -> Any:
        groups = np.flatnonzero((self._first <= number) & (number <= self._last))
        table = self._file.read_row_groups(groups.tolist())
        return table.filter(np.asarray(table["episode_index"]) == number)


def _array(column: Any, shape: Sequence[int]) -> np.ndarray:
    """The values ``[T, *shape]`` of a column of numbers or of lists of them."""
    values = column.combine_chunks()
    while hasattr(values, "flatten") and values.type.num_fields:
        values = values.flatten()
    return np.asarray(values).reshape(len(column), *shape)


def _image(file: bytes) -> np.ndarray:
    from PIL import Image

    with Image.open(io.BytesIO(file)) as image:
        return np.asarray(image.convert("RGB"))


def parquet() -> Any:
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ImportError(f"pyarrow is missing ({error}); pip install 'offrl[lerobot]'") from None
    return pyarrow.parquet
