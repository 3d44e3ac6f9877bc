"""Training runs for the page: curves, evaluated episodes, configs, videos."""

import json
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from offrl.config.files import read_config_file
from offrl.links import inside
from offrl.reports.records import read_records
from offrl.reports.view.page import thinned, write_script
from offrl.tree import leaves

EPISODES = {"episode": "", "test_episode": "test", "test_last_episode": "test_last"}  # in an epoch
AXES = ("step", "epoch", "time")


class RunPage:
    """The content of a run folder. Raises ``ValueError`` for links that lead out of it, as pages
    may be shared."""

    def __init__(self, path: str):
        self.path = Path(path).expanduser()
        self.label = path
        self.config = read_config_file(self._checked(min(self.path.glob("config-*.json"))))
        videos = self.path.joinpath("videos").glob("*.mp4")
        self.videos = [self._checked(video) for video in sorted(videos) if video.name[0] != "."]
        for video in self.videos:  # checked before anything is written
            try:
                video.open("rb").close()
            except OSError as error:
                raise OSError(f"{video}: cannot be read ({error.strerror})") from None

    def _checked(self, path: Path) -> Path:
        return inside(path, self.path, place=f"{path}")

    def describe(self) -> dict[str, Any]:
        """Return the overview's entry."""
        name = leaves(self.config).get("experiment.name") or self.path.resolve().parent.name
        return {"name": name, "stamp": self.path.resolve().name, "path": self.label}

    def write(self, folder: Path, place: str) -> None:
        """Write the script ``PLACE.js`` and copies of the videos, ``PLACE-N.mp4``."""
        records, num_damaged = read_records(self._checked(self.path / "metrics.jsonl"))
        by_kind = defaultdict(list)
        for record in records:
            by_kind[" ".join(filter(None, [record["type"], record.get("env")]))].append(record)
        videos = {f"{place}-{i}.mp4": video for i, video in enumerate(self.videos)}
        for name, video in videos.items():
            shutil.copyfile(video, folder / name)
        content = {
            "curves": {
                kind: _curves(rows, records[0]["time"])
                for kind, rows in by_kind.items()
                if kind not in EPISODES
            },
            "episodes": [
                {"epoch": test or record["epoch"], **record["logs"]}
                for kind, test in EPISODES.items()
                for record in by_kind[kind]
            ],
            "config": {
                key: json.dumps(value, ensure_ascii=False)
                for key, value in leaves(self.config).items()
            },
            "videos": {name: video.name for name, video in videos.items()},
            "numDamaged": num_damaged,
        }
        write_script(folder / f"{place}.js", "showRun", int(Path(place).name), content)


def _curves(records: Sequence[Mapping[str, Any]], began: float) -> dict[str, Any]:
    """Collect records of one kind in columns, thinned: ``step``, ``epoch``, ``time`` (seconds since
    the run ``began``) and each number."""
    names = list(dict.fromkeys(name for record in records for name in record["logs"]))
    rows = [[record["logs"].get(name, np.nan) for name in names] for record in records]
    values, every = thinned(np.array(rows, np.float64).reshape(len(rows), len(names)))
    at = [records[min(i * every, len(records) - 1)] for i in range(len(values))]
    axes = {axis: [record[axis] for record in at] for axis in AXES}
    axes["time"] = [time - began for time in axes["time"]]
    return axes | {"every": every, "logs": dict(zip(names, values.T, strict=True))}
