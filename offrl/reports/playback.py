"""Films of demonstrations, by simulator states, by actions, or of stored images."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from offrl.data.demos import Demos
from offrl.data.formats.files import open_episodes
from offrl.envs import make_env
from offrl.envs.playback import ActionReplay, blind, film_states
from offrl.images import pictures
from offrl.robomimic.configs import is_robosuite
from offrl.video import write_video

USES = ("states", "actions", "images")
FPS = 20  # default for data without a frequency


class Divergence(NamedTuple):
    """The differences of a replay of actions from its demonstration; see ``ActionReplay``."""

    of_steps: list[float]
    success: bool | None


class Filmed(NamedTuple):
    """A film of a demonstration."""

    shape: tuple[int, ...]  # of a frame
    divergence: Divergence | None  # if actions were replayed


class DemoPlayer:
    """Plays the demonstrations of a file.

    use: one of ``USES``; ``None``: the first one that the file supports.
    cameras: names of cameras; empty: the environment's default, or all stored ones.
    """

    def __init__(
        self,
        path: str | Path,
        use: str | None = None,
        cameras: Sequence[str] = (),
        size: int | None = None,
    ):
        self.demos = open_episodes(path)
        self.path, self.cameras, self.size = str(path), tuple(cameras), size
        self.use = use or self._choose()
        if self.use == "images":
            first = self.demos.trajectory(self.demos.demos()[0])
            self.keys = camera_keys(str(self.demos.path), sorted(seen(first)), self.cameras)
        elif not (self.demos.env_args or {}).get("env_name"):
            raise ValueError(
                f"{path}: names no environment (env_args) to play it back in; where images are "
                "stored, --use images films those"
            )

    def chosen(self, filter_key: str | None, limit: int | None) -> list[str]:
        """List the first ``limit`` demonstrations, under ``filter_key`` if given."""
        if filter_key is None or isinstance(self.demos, Demos):
            names = self.demos.demos(*([filter_key] if filter_key else []))
        else:
            names = self.demos.masks().get(filter_key, [])
        if not names:
            raise ValueError(f"{self.demos.path}: no filter key {filter_key!r}")
        return names[:limit]

    def frames(self, demo: str) -> Iterator[np.ndarray]:
        """Yield frames ``[H, W, 3]`` of a demonstration's steps."""
        if self.use == "images":
            images = seen(self.demos.trajectory(demo, self.keys))
            cameras = [key.removeprefix("obs/") for key in self.keys]
            keys = camera_keys(f"{self.demos.path}: {demo}", sorted(images), cameras)
            return map(side_by_side, zip(*(images[key] for key in keys), strict=True))
        if self.use == "actions":
            return self._replay(demo).film(self.cameras, self.size)
        recording = self.demos.recording(demo)
        if not hasattr(self.env, "reset_to"):
            raise ValueError(
                f"{self.demos.path}: its environment has no states to go to; try --use actions"
            )
        return film_states(self.env, recording, self.cameras, self.size)

    def first_frame(self, demo: str) -> np.ndarray:
        """Return the first frame ``[H, W, 3]`` of a demonstration."""
        return self._first(self.frames(demo), demo)

    def film(self, folder: str, demo: str) -> Filmed:
        """Film a demonstration as ``folder/DEMO.mp4``. All films of a file have the same frame
        rate, so that they can be joined."""
        replay = self._replay(demo) if self.use == "actions" else None
        frames = replay.film(self.cameras, self.size) if replay else self.frames(demo)
        first = self._first(frames, demo)
        write_video(Path(folder) / f"{demo}.mp4", chain([first], frames), self._rate)
        divergence = Divergence(replay.divergence, replay.success) if replay else None
        return Filmed(first.shape, divergence)

    def diverge(self, demo: str) -> Divergence:
        """Replay a demonstration's actions without a film."""
        replay = self._replay(demo)
        for _ in replay:
            pass
        return Divergence(replay.divergence, replay.success)

    def _first(self, frames: Iterator[np.ndarray], demo: str) -> np.ndarray:
        frame = next(frames, None)
        if frame is None:
            raise ValueError(f"{self.path}: {demo} has no steps; leave it out")
        return frame

    def _replay(self, demo: str) -> ActionReplay:
        trajectory = self.demos.trajectory(demo)
        if not {"states", "seed"} & trajectory.keys() or not len(trajectory.get("actions", ())):
            raise ValueError(
                f"{self.demos.path}: {demo} cannot be replayed: it has no actions, or neither "
                "states nor the attribute seed say where it begins; try --use images"
            )
        return ActionReplay(self.env, trajectory)

    @cached_property
    def _rate(self) -> int:
        return frame_rate(self.demos.env_args, self.demos.trajectory(self.demos.demos()[0], ()))

    @cached_property
    def env(self) -> Any:
        """The environment of the demonstrations, without cameras in its observations."""
        env_args = self.demos.env_args or {}
        env = make_env(blind(env_args))
        takes = inspect.signature(env.render).parameters
        if (self.cameras or self.size) and "camera" not in takes:
            raise ValueError(
                f"{env_args['env_name']} renders one picture of its own; leave --cameras and "
                "--size out"
            )
        return env

    def _choose(self) -> str:
        trajectory = self.demos.trajectory(self.demos.demos()[0])
        env_args = self.demos.env_args or {}
        if {"states", "model_file"} <= trajectory.keys() and is_robosuite(env_args):
            return "states"
        return "images" if seen(trajectory) else "actions"


def make_player(
    path: str,
    use: str | None,
    cameras: tuple[str, ...],
    size: int | None,
    method: str,
    *arguments: Any,
) -> Callable[[str], Any]:
    """Make a function of a demonstration for a worker process: a ``method`` of a ``DemoPlayer``,
    with its first arguments."""
    return partial(getattr(DemoPlayer(path, use, cameras, size), method), *arguments)


def tiled(images: Sequence[np.ndarray]) -> np.ndarray:
    """Join images ``[H, W, 3]`` to one, about as many side by side as one above the other."""
    columns = math.ceil(math.sqrt(len(images)))
    rows = [side_by_side(images[i : i + columns]) for i in range(0, len(images), columns)]
    width = max(row.shape[1] for row in rows)
    return np.concatenate([np.pad(r, ((0, 0), (0, width - r.shape[1]), (0, 0))) for r in rows])


def side_by_side(images: Sequence[np.ndarray]) -> np.ndarray:
    """Join images ``[H, W, 1 or 3]`` (uint8) to one ``[H, W, 3]``, all as high as the tallest."""
    height = max(len(image) for image in images)
    return np.concatenate([_enlarged(image, height) for image in images], axis=1)


def _enlarged(image: np.ndarray, height: int) -> np.ndarray:
    rows = np.arange(height) * len(image) // height
    columns = np.arange(image.shape[1] * height // len(image)) * len(image) // height
    return np.broadcast_to(image[rows][:, columns], (height, len(columns), 3))


def seen(trajectory: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the images of a trajectory, of any form, by their keys ``obs/KEY``; uint8
    ``[T, H, W, 1 or 3]`` each."""
    found = {k: pictures(v) for k, v in trajectory.items() if k.startswith("obs/")}
    return {key: images for key, images in found.items() if images is not None}


def camera_keys(place: str, stored: Sequence[str], cameras: Sequence[str]) -> list[str]:
    """Find the observations with images of ``cameras``, by default of all ``stored`` ones."""
    keys = [f"obs/{c}" if f"obs/{c}" in stored else f"obs/{c}_image" for c in cameras]
    missing = [key for key in keys if key not in stored]
    if missing or not stored:
        has = ", ".join(key.removeprefix("obs/").removesuffix("_image") for key in stored)
        what = f"no images {', '.join(missing)}" if missing else "no images"
        raise ValueError(
            f"{place}: has {what}; its cameras are: {has or 'none'}; offrl images renders others "
            "from a simulator's states"
        )
    return keys or list(stored)


def frame_rate(env_args: Mapping[str, Any] | None, attributes: Mapping[str, Any]) -> int:
    """Return the control steps per second, by the environment or a demonstration's ``fps``."""
    frequency: Any = ((env_args or {}).get("env_kwargs") or {}).get("control_freq")
    frequency = frequency or attributes.get("fps")
    is_number = isinstance(frequency, (int, float, np.number))
    return max(1, round(float(frequency))) if is_number else FPS
