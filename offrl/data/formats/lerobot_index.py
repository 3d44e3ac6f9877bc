"""The metadata of LeRobot's folders, of the layouts 2.0, 2.1 and 3.0: features, tasks and episodes.

Layouts 2.0 and 2.1 have a file of steps and a film for each episode, and lists in JSON lines. In
3.0 files hold many episodes, and lists are Parquet tables.
"""

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offrl.data.formats.hdf5 import located
from offrl.lazy import needed
from offrl.links import file_in, text_in
from offrl.memory import check_memory

INFO = "meta/info.json"
CHUNK = 1000  # episodes in a folder of the layouts 2.0 and 2.1, if info.json does not say


class Index(ABC):
    """The metadata of a folder.

    info: the content of ``info.json``; ``features`` and ``fps`` (a positive number) of it.
    tasks: the sentence of each ``task_index``.
    episodes: by their ``episode_index``, in its order: ``length`` (steps), and where they lie.

    Raises ``ValueError`` for anything that is damaged or contradicts itself, and for a link out of
    the folder.
    """

    tasks_file: str
    episodes_files: str  # a pattern
    paths: Mapping[str, str]  # of the keys in info.json, as LeRobot writes them

    def __init__(self, folder: Path, info: Mapping[str, Any]):
        self.folder, self.info = folder, info
        self.features, self.fps = info["features"], float(info["fps"])
        with located(folder, self.tasks_file):
            rows = self._rows(self.tasks_file)
            self.tasks = {int(row.pop("task_index")): str(*row.values()) for row in rows}
        place = self.episodes_files.removesuffix("/*/*.parquet")
        with located(folder, place):
            episodes = list[dict[str, Any]]()
            for path in sorted(folder.glob(self.episodes_files)):
                episodes += self._rows(str(path.relative_to(folder)))
            for row in episodes:
                for name in ("episode_index", "length"):
                    if not isinstance(row[name], int) or row[name] < 0:
                        raise ValueError(f"{name} is {row[name]!r:.80}, and no count")
        episodes.sort(key=lambda row: row["episode_index"])
        self.episodes = {row["episode_index"]: row for row in episodes}
        total = info.get("total_episodes", len(episodes))
        if not len(self.episodes) == len(episodes) == total > 0:
            raise ValueError(
                f"{folder}: {place} has {len(episodes)} rows of {len(self.episodes)} "
                f"episodes, but total_episodes in {INFO} is {total}; copy the folder again"
            )

    @abstractmethod
    def _rows(self, name: str) -> list[dict[str, Any]]:
        """Read a list of the metadata."""

    @abstractmethod
    def _fields(self, episode: Mapping[str, Any], of: str) -> dict[str, Any]:
        """Return the fields of the path to the steps (``data``) or the film of an episode."""

    def steps_file(self, episode: Mapping[str, Any]) -> Path:
        return self._place("data_path", episode, "data")

    def film(self, episode: Mapping[str, Any], name: str) -> tuple[Path, float]:
        """Find the film of an episode and a camera, and the time (seconds) where it begins."""
        path = self._place("video_path", episode, f"videos/{name}", video_key=name)
        start = float(episode.get(f"videos/{name}/from_timestamp", 0))
        end = float(episode.get(f"videos/{name}/to_timestamp", math.inf))
        if not (end - start) * self.fps > episode["length"] - 0.5:
            words = f"ends {end - start:g} s later, before the episode's {episode['length']} steps"
            words = f"begins at {start:g} s of a film, and {words}; copy the folder again"
            raise ValueError(f"{self.folder}: {name} {words}")
        return path, start

    def _place(self, key: str, episode: Mapping[str, Any], of: str, **fields: Any) -> Path:
        with located(self.folder, f"{key} of episode {episode['episode_index']}"):
            path = self.info[key].format(**self._fields(episode, of), **fields)
            return file_in(self.folder, path)


class ManyFiles(Index):
    """The layouts 2.0 and 2.1."""

    tasks_file, episodes_files = "meta/tasks.jsonl", "meta/episodes.jsonl"
    paths = {
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/"
        "episode_{episode_index:06d}.mp4",
    }

    def _rows(self, name: str) -> list[dict[str, Any]]:
        lines = text_in(self.folder, name).splitlines()
        return [json.loads(line) for line in lines if line.strip()]

    def _fields(self, episode: Mapping[str, Any], of: str) -> dict[str, Any]:
        number = episode["episode_index"]
        chunk = number // int(self.info.get("chunks_size") or CHUNK)
        return {"episode_chunk": chunk, "episode_index": number}


class SharedFiles(Index):
    """The layout 3.0."""

    tasks_file, episodes_files = "meta/tasks.parquet", "meta/episodes/*/*.parquet"
    paths = {
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }

    def _rows(self, name: str) -> list[dict[str, Any]]:
        file = parquet().ParquetFile(file_in(self.folder, name))
        names = [n for n in file.schema_arrow.names if not n.startswith("stats/")]
        return read_table(file, name, range(file.num_row_groups), names).to_pylist()

    def _fields(self, episode: Mapping[str, Any], of: str) -> dict[str, Any]:
        return {name: episode[f"{of}/{name}"] for name in ("chunk_index", "file_index")}


LAYOUTS = {"v2.0": ManyFiles, "v2.1": ManyFiles, "v3.0": SharedFiles}


def read_index(folder: Path) -> Index:
    """Read the metadata of a folder of any layout that offrl reads."""
    with located(folder, INFO):
        info = json.loads(text_in(folder, INFO))
        version = str(info["codebase_version"])
        layout = next((x for v, x in LAYOUTS.items() if version.startswith(v)), None)
        if layout is None:
            raise ValueError(
                f"{folder}: is of LeRobot's layout {version}, but offrl reads "
                f"{', '.join(LAYOUTS)}; bring it to one of them with LeRobot's scripts"
            )
        fps, kinds = float(info["fps"]), {f["dtype"] for f in info["features"].values()}
        if not (math.isfinite(fps) and fps > 0):
            raise ValueError(f"fps is {fps:g}, and no rate")
        for key, usual in layout.paths.items():
            fields = re.findall(r"{(\w+)", usual)
            template, field = info.get(key), rf"\{{({'|'.join(fields)})(:0?\d?d)?\}}"
            is_path = isinstance(template, str) and re.fullmatch(rf"([^{{}}]|{field})+", template)
            if not is_path and (key == "data_path" or "video" in kinds):
                raise ValueError(
                    f"{folder}/{INFO}: {key} is {template!r:.80}, but has to be a path with the "
                    f"fields {', '.join(fields)}, as {usual}"
                )
    return layout(folder, info)


def read_table(file: Any, place: object, groups: Sequence[int], columns: Sequence[str]) -> Any:
    """Read columns of row groups of an open Parquet file, if they fit into memory. place: the file,
    for messages."""
    check_memory(table_bytes(file, groups, columns), f"{place}: what it holds")
    return file.read_row_groups(groups, columns)


def table_bytes(file: Any, groups: Sequence[int], columns: Sequence[str]) -> int:
    """Count the bytes that columns of row groups take in memory."""
    starts = tuple(f"{name}." for name in columns)
    parts = map(file.metadata.row_group, groups)
    cells = [part.column(i) for part in parts for i in range(part.num_columns)]
    chosen = [cell for cell in cells if f"{cell.path_in_schema}.".startswith(starts)]
    return sum(max(cell.total_uncompressed_size, 8 * cell.num_values) for cell in chosen)


def parquet() -> Any:
    return needed("pyarrow.parquet", "lerobot", "pyarrow is missing")
