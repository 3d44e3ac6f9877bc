"""Demonstrations for the page: summaries, series to plot, films."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from offrl.data.formats.files import find_data, open_episodes
from offrl.data.remarks import features, is_vectors, unusual
from offrl.envs import make_env
from offrl.envs.playback import blind, film_states
from offrl.reports.playback import camera_keys, frame_rate, seen, side_by_side
from offrl.reports.view.page import packed, write_script
from offrl.video import write_video

MOST_DIMS = 64  # plotted dimensions of a key
LONGEST = 300  # characters of the longest shown attribute


class FilmOptions(NamedTuple):
    """The films to make: of all stored images, and of the simulator states of some episodes."""

    num_rendered: int = 0  # episodes of each dataset
    cameras: tuple[str, ...] = ()  # rendered or stored cameras; empty: all
    size: int = 256  # height and width of what is rendered, in pixels


class EpisodePage(NamedTuple):
    """An episode to write."""

    dataset: int
    path: Path
    number: int
    demo: str
    is_rendered: bool
    fps: int


class DatasetPage:
    """The content of a file or folder of demonstrations."""

    def __init__(self, path: str, num_rendered: int):
        self.label = path
        self.path = find_data(path)
        with open_episodes(self.path) as file:
            self.names = file.demos()
            numbers = {name: i for i, name in enumerate(self.names)}
            self.masks = {k: [numbers[name] for name in own] for k, own in file.masks().items()}
            self.env_args = file.env_args or {}
            self.fps = frame_rate(self.env_args, file.trajectory(self.names[0], ()))
        if num_rendered and not self.env_args:
            raise ValueError(f"{path}: names no environment (env_args) to --render")
        number = min(num_rendered, len(self.names))
        self._rendered = {i * len(self.names) // number for i in range(number)}

    def episodes(self, dataset: int) -> Iterator[EpisodePage]:
        for i, name in enumerate(self.names):
            yield EpisodePage(dataset, self.path, i, name, i in self._rendered, self.fps)

    def describe(self, summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the overview's entry, made of the summaries of episodes."""
        measured = {
            name: np.array([summary["features"][name] for summary in summaries])
            for name in summaries[0]["features"]
        }
        return {
            "name": self.path.stem,
            "path": self.label,
            "env": self.env_args.get("env_name"),
            "fps": self.fps,
            "names": self.names,
            "features": measured,
            "success": [summary["success"] for summary in summaries],
            "film": [summary["film"] for summary in summaries],
            "masks": self.masks,
            "unusual": unusual(measured),
            "keys": {k: n for summary in summaries for k, n in summary["keys"].items()},
            "actions": _moments([summary["actions"] for summary in summaries]),
        }


def _sums(actions: np.ndarray) -> np.ndarray:
    """Compute of finite actions ``[5, A]``: number, sum, sum of squares, smallest, largest."""
    rows = np.reshape(actions, (len(actions), -1)).astype(np.float64)
    rows = rows[np.isfinite(rows).all(axis=1)]
    number = np.full(rows.shape[1], len(rows))
    low, high = rows.min(axis=0, initial=np.inf), rows.max(axis=0, initial=-np.inf)
    return np.array([number, rows.sum(axis=0), (rows**2).sum(axis=0), low, high])


def _moments(episodes: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Compute mean, standard deviation and range ``[A]`` of all actions, from each episode's sums;
    empty if there are none, or their widths differ."""
    if len({sums.shape for sums in episodes}) > 1:
        return {}
    number, total, squares, low, high = np.stack(episodes, axis=1)
    count = number.sum(axis=0)
    if not count.all():
        return {}
    mean = total.sum(axis=0) / count
    std = np.sqrt(np.maximum(squares.sum(axis=0) / count - mean**2, 0))
    return {"mean": mean, "std": std, "low": low.min(axis=0), "high": high.max(axis=0)}


class EpisodeWriter:
    """Writes an episode for the page, ``data/DATASET/NUMBER.js`` and ``.mp4``, and returns its
    summary for the overview. Holds one episode in memory at a time."""

    def __init__(self, folder: str, films: FilmOptions):
        self.folder, self.films = Path(folder), films
        self._open = cache(open_episodes)
        self._make_env = cache(lambda path: make_env(blind(self._open(path).env_args or {})))

    def __call__(self, episode: EpisodePage) -> dict[str, Any]:
        file = self._open(episode.path)
        read = file.recording if episode.is_rendered else file.trajectory
        demo = read(episode.demo)
        if not len(demo.get("actions", ())):
            raise ValueError(f"{file.path}: {file.root}{episode.demo} has no steps (actions)")
        for key in {"actions", "rewards"} & demo.keys():
            if demo[key].dtype.kind not in "fiub":
                raise ValueError(f"{file.path}: {file.root}{episode.demo}/{key} holds no numbers")
        place = self.folder / f"data/{episode.dataset}/{episode.number}"
        images = seen(demo)
        frames = self._frames(episode, demo, images)
        if frames is not None:
            write_video(place.with_suffix(".mp4"), frames, episode.fps)
        actions = demo["actions"]
        series, left_out = _series(demo, images)
        content = {
            "steps": len(actions),
            "series": {key: packed(rows) for key, rows in series.items()},
            "leftOut": left_out,
            "attributes": {k: _shown(v) for k, v in demo.items() if not isinstance(v, np.ndarray)},
        }
        write_script(
            place.with_suffix(".js"), "showEpisode", episode.dataset, episode.number, content
        )
        return {
            "features": features(demo),
            "success": file.success(demo),
            "film": frames is not None,
            "keys": {key: rows.shape[1] for key, rows in series.items()},
            "actions": _sums(actions),
        }

    def _frames(
        self, episode: EpisodePage, demo: Mapping[str, Any], images: Mapping[str, np.ndarray]
    ) -> Iterable[np.ndarray] | None:
        if episode.is_rendered:
            env = self._make_env(episode.path)
            return film_states(env, demo, self.films.cameras, self.films.size)
        if not images:
            return None
        cameras = () if self.films.num_rendered else self.films.cameras
        keys = camera_keys(f"{episode.path}: {episode.demo}", [*images], cameras)
        return map(side_by_side, zip(*(images[key] for key in keys), strict=False))


def _series(
    demo: Mapping[str, Any], images: Collection[str]
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Choose the arrays to plot, ``[T, D]`` each, and name others, without next observations."""
    series, left_out = {}, []
    for key, value in demo.items():
        if not isinstance(value, np.ndarray) or key.startswith("next_obs/"):
            continue
        if is_vectors(value, len(demo["actions"])):
            series[key] = np.reshape(value, (len(value), -1))[:, :MOST_DIMS]
            if value[0].size > MOST_DIMS:
                left_out.append(f"{key} beyond its first {MOST_DIMS} dimensions")
        elif key not in images:
            left_out.append(f"{key} {list(value.shape)}")
    return series, left_out


def _shown(value: Any) -> Any:
    if not isinstance(value, str | bytes):
        return value
    return value if len(value) <= LONGEST else f"({len(value)} characters)"
