"""LeRobot's layouts 2.0, 2.1 and 3.0 (Cadene et al., 2024, github.com/huggingface/lerobot), without
the package lerobot: a folder of Parquet files, MP4 films and JSON; and its reader.

Features have other names than in robomimic's layout: ``action`` is ``actions``, ``next.reward``
``rewards``, ``observation.images.CAMERA`` ``obs/CAMERA_image``, ``observation.state`` a vector of
several observations. offrl's notes in ``meta/offrl.json`` restore these.
"""

import math
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from offrl.data.arrays import StepArray
from offrl.data.demos import TASK
from offrl.data.formats.exchange import read_notes, vector_columns
from offrl.data.formats.film import OpenFilm
from offrl.data.formats.hdf5 import located
from offrl.data.formats.lerobot_index import INFO, parquet, read_index
from offrl.data.formats.lerobot_steps import (
    OPEN_FILES,
    FeaturePart,
    FilmArray,
    ImageArray,
    NumberArray,
    Tables,
    image_size,
)
from offrl.data.recent import Recent
from offrl.data.separate import SeparateArrays
from offrl.links import file_in, text_in

NOTES = "meta/offrl.json"
STATE, IMAGES = "observation.state", "observation.images."
ARRAYS = {"action": "actions", "next.reward": "rewards", "next.done": "dones"}
SUCCESS = "next.success"
# Features of all data sets that number the steps.
COUNTS = {
    "timestamp": "float32",
    **dict.fromkeys(("frame_index", "episode_index", "index", TASK), "int64"),
}
PICTURES = ("image", "video")
NUMBERS = re.compile(r"(float|u?int)(8|16|32|64)|bool")  # the types of features that are read
RANGE = r"\d{0,9}:\d{0,9}"  # of episodes


def is_lerobot(folder: Path) -> bool:
    return (folder / INFO).is_file() or (folder / INFO).is_symlink()  # maybe one to nowhere


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


class LeRobotFolder(SeparateArrays):
    """The episodes in a data set's folder, with ``task``, ``fps`` and, if recorded, ``success``.

    Demonstrations are named by their ``episode_index``. Filter keys are the ``splits`` of
    ``info.json``, those that offrl noted, and ranges of episodes (``"0:40"``).
    """

    layout = "LeRobot"

    def __init__(self, folder: Path):
        super().__init__()
        parquet()
        self.path, self._index = folder, read_index(folder)
        self.tasks = self._index.tasks
        self._names = list(map("demo_{}".format, self._index.episodes))
        with located(folder, NOTES):
            notes = text_in(folder, NOTES) if file_in(folder, NOTES).exists() else None
        self._notes = read_notes(folder, notes) if notes is not None else None
        self._unread = list[str]()
        with located(folder, f"the features in {INFO}"):
            self._parts = self._find_parts()
        kinds = {name: feature["dtype"] for name, feature in self._index.features.items()}
        numbers = [name for name, kind in kinds.items() if NUMBERS.fullmatch(kind)]
        self._tables = Tables(folder, numbers, self._index.fps)
        self._films: Recent[OpenFilm] = Recent(OPEN_FILES)

    def close(self) -> None:
        super().close()
        self._tables.clear()
        self._films.clear()

    def under(self, filter_key: str) -> list[str]:
        if re.fullmatch(RANGE, filter_key):
            return self._range("the filter key", filter_key)
        return self._splits().get(filter_key) or super().under(filter_key)

    def masks(self) -> dict[str, list[str]]:
        noted, every = super().masks(), len(self._index.episodes)
        # LeRobot writes a split of all episodes, which chooses nothing.
        return {k: demos for k, demos in self._splits().items() if len(demos) < every} | noted

    def _splits(self) -> dict[str, list[str]]:
        with located(self.path, f"splits in {INFO}"):
            splits = (self._index.info.get("splits") or {}).items()
            found = {key: self._range(f"the split {key} in {INFO}", part) for key, part in splits}
        return found | dict(super().masks())

    def _range(self, name: str, text: Any) -> list[str]:
        """Return the demonstrations of a range of episodes, such as ``0:40``."""
        if not re.fullmatch(RANGE, str(text)):
            words = f"is {text!r:.80}, and no range of episodes, such as 0:40"
            raise ValueError(f"{self.path}: {name} {words}")
        first, last = (int(part) if part else None for part in text.split(":"))
        numbers = list(self._index.episodes)
        end = math.inf if last is None else last
        chosen = [f"demo_{n}" for n in numbers if (first or 0) <= n < end]
        if not chosen or (last or 0) > numbers[-1] + 1:
            words = f"is {text!r:.80}, but the episodes are {numbers[0]} to {numbers[-1]}"
            raise ValueError(f"{self.path}: {name} {words}; correct it")
        return chosen

    def unread(self) -> list[str]:
        return self._unread

    def keys(self, demo: str) -> Collection[str]:
        return self._parts

    def attributes(self, demo: str | None = None) -> dict[str, Any]:
        if demo is None:
            return {}
        found: dict[str, Any] = {"fps": self._index.info["fps"]}
        with located(self.path, demo):
            if len(tasks := self.array(demo, TASK)[:]):
                if (task := int(tasks[0])) not in self.tasks:
                    words = f"its task_index is {task}, which {self._index.tasks_file} lacks"
                    raise ValueError(words)
                found["task"] = self.tasks[task]
            if SUCCESS in self._index.features:
                found["success"] = bool(self.array(demo, SUCCESS)[:].any())
        return found

    def stored(self, demo: str, keys: Collection[str] | None = None) -> dict[str, Any]:
        self._tables.keep_last()  # who reads whole episodes reads each once
        return super().stored(demo, keys)

    # -- arrays -----------------------------------------------------------------------------------

    def _find_parts(self) -> dict[str, FeaturePart]:
        """Find what is read, by its key."""
        steps = self._notes["steps"] if self._notes else {}
        cameras = {camera_feature(key): key for key in steps if steps[key].is_image}
        parts = dict[str, FeaturePart]()
        for name, feature in self._index.features.items():
            kind, shape = feature["dtype"], tuple(map(int, feature["shape"]))
            key = cameras.get(name) or _key(name)
            if name == STATE and steps:
                for part, columns, step in vector_columns(steps):
                    parts[part] = FeaturePart(name, step.shape, shape, columns, step.dtype)
            elif kind in PICTURES and (size := image_size(shape, feature.get("names"))):
                parts[key] = FeaturePart(name, size)
            elif kind not in PICTURES and NUMBERS.fullmatch(kind):
                if name not in (*COUNTS, SUCCESS):
                    own = steps[key].shape if key in steps else shape
                    parts[key] = FeaturePart(
                        name, () if key in ("rewards", "dones") else own, shape
                    )
            else:
                self._unread.append(name)
        return parts

    def _episode(self, demo: str) -> dict[str, Any]:
        number = demo.removeprefix("demo_")
        if not number.isdecimal() or (found := self._index.episodes.get(int(number))) is None:
            raise ValueError(
                f"{self.path}: there is no {demo}, which a filter key names; correct that"
            )
        return found

    def _open(self, demo: str, key: str) -> StepArray:
        part = FeaturePart(key) if key in (TASK, SUCCESS) else self.place_of(demo, key)
        episode, index = self._episode(demo), self._index
        feature = index.features[part.feature]
        with located(self.path, f"{demo}/{key}"):
            if feature["dtype"] == "video":
                shape = (episode["length"], *part.shape)
                return FilmArray(index.film(episode, part.feature), shape, index.fps, self._films)
            kind = ImageArray if feature["dtype"] == "image" else NumberArray
            return kind(self._tables, index.steps_file(episode), episode, part)
