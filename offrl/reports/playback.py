"""Films of demonstrations: by the simulator's states, by their actions, or of stored images."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from offrl.data.files import open_demos
from offrl.data.storage import is_images
from offrl.envs import make_env
from offrl.envs.playback import Replay, film_states
from offrl.tree import merge
from offrl.video import write_video

USES = ("states", "actions", "images")
ROWS = 64  # images that are read at once
FPS = 20  # of data that does not say at what frequency it was recorded


class Player:
    """Plays the demonstrations of a file.

    use: one of ``USES``; ``None`` for the first that the file has all for.
    cameras: none for what the environment renders by itself, or for all stored cameras.
    """

    def __init__(
        self,
        path: str | Path,
        use: str | None = None,
        cameras: Sequence[str] = (),
        size: int | None = None,
    ):
        self.demos = open_demos(path)
        self.cameras, self.size = tuple(cameras), size
        self.use = use or self._choose()
        self._env: Any = None
        if self.use == "images":
            self.keys = self._image_keys()
        elif not (self.demos.env_args or {}).get("env_name"):
            raise ValueError(
                f"{path}: names no environment (env_args) to play it back in; where images are "
                "stored, --use images films those"
            )

    def frames(self, demo: str) -> Iterator[np.ndarray]:
        """Frames ``[H, W, 3]`` of a demonstration's steps."""
        if self.use == "images":
            return self._stored_frames(demo)
        if self.use == "actions":
            return self.replay(demo).film(self.cameras, self.size)
        trajectory = self.demos.trajectory(demo)
        if not (hasattr(self.env, "reset_to") and {"states", "model_file"} <= trajectory.keys()):
            raise ValueError(
                f"{self.demos.path}: {demo} cannot be played back by states: they, or the "
                "attribute model_file, were not recorded; try --use actions or --use images"
            )
        return film_states(self.env, trajectory, self.cameras, self.size)

    def replay(self, demo: str) -> Replay:
        return Replay(self.env, self.demos.trajectory(demo))

    @property
    def env(self) -> Any:
        if self._env is None:
            # What is looked at is rendered apart from the observations.
            blind = {"use_camera_obs": False, "has_offscreen_renderer": False}
            env_args = self.demos.env_args or {}
            is_robosuites = env_args.get("type") == 1
            self._env = make_env(merge(env_args, {"env_kwargs": blind if is_robosuites else {}}))
            takes = inspect.signature(self._env.render).parameters
            if (self.cameras or self.size) and "camera" not in takes:
                raise ValueError(
                    f"{env_args['env_name']} renders one picture of its own; leave --cameras and "
                    "--size out"
                )
        return self._env

    def _choose(self) -> str:
        trajectory = self.demos.trajectory(self.demos.demos()[0])
        env_args = self.demos.env_args or {}
        if {"states", "model_file"} <= trajectory.keys() and env_args.get("type") == 1:
            return "states"
        return "images" if any(map(_is_film, trajectory.values())) else "actions"

    def _image_keys(self) -> list[str]:
        trajectory = self.demos.trajectory(self.demos.demos()[0])
        stored = [k for k, v in trajectory.items() if k.startswith("obs/") and _is_film(v)]
        return camera_keys(str(self.demos.path), sorted(stored), self.cameras)

    def _stored_frames(self, demo: str) -> Iterator[np.ndarray]:
        length = int(self.demos.lengths([demo])[0])
        for start in range(0, length, ROWS):
            rows = [self.demos.read_rows(demo, key, start, start + ROWS) for key in self.keys]
            for images in zip(*rows, strict=True):
                yield side_by_side(images)


class Divergence(NamedTuple):
    """What came of replaying a demonstration's actions; see ``Replay``."""

    of_steps: list[float]
    success: bool


def make_filmer(
    path: str, use: str, cameras: tuple[str, ...], size: int | None, folder: str
) -> Callable[[str], Divergence | None]:
    """A function that films a demonstration as ``folder/DEMO.mp4``."""
    player = Player(path, use, cameras, size)

    def film(demo: str) -> Divergence | None:
        replay = player.replay(demo) if use == "actions" else None
        frames = replay.film(cameras, size) if replay else player.frames(demo)
        write_video(Path(folder) / f"{demo}.mp4", frames, frame_rate(player.demos.env_args))
        return Divergence(replay.divergence, replay.success) if replay else None

    return film


def make_photographer(
    path: str, use: str, cameras: tuple[str, ...], size: int | None
) -> Callable[[str], np.ndarray]:
    """A function that takes a demonstration's first frame ``[H, W, 3]``."""
    player = Player(path, use, cameras, size)
    return lambda demo: next(player.frames(demo))


def make_replayer(path: str) -> Callable[[str], Divergence]:
    """A function that replays a demonstration's actions, unseen."""
    player = Player(path, "actions")

    def play(demo: str) -> Divergence:
        replay = player.replay(demo)
        for _ in replay:
            pass
        return Divergence(replay.divergence, replay.success)

    return play


def tiled(images: Sequence[np.ndarray]) -> np.ndarray:
    """Images ``[H, W, 3]`` as one, about as many side by side as one above the other."""
    columns = math.ceil(math.sqrt(len(images)))
    rows = [side_by_side(images[i : i + columns]) for i in range(0, len(images), columns)]
    width = max(row.shape[1] for row in rows)
    return np.concatenate([np.pad(r, ((0, 0), (0, width - r.shape[1]), (0, 0))) for r in rows])


def side_by_side(images: Sequence[np.ndarray]) -> np.ndarray:
    """Images ``[H, W, 1 or 3]`` (uint8) as one ``[H, W, 3]``; smaller ones are enlarged to the
    height of the tallest."""
    height = max(len(image) for image in images)
    return np.concatenate([_enlarged(image, height) for image in images], axis=1)


def _enlarged(image: np.ndarray, height: int) -> np.ndarray:
    rows = np.arange(height) * len(image) // height
    columns = np.arange(image.shape[1] * height // len(image)) * len(image) // height
    return np.broadcast_to(image[rows][:, columns], (height, len(columns), 3))


def camera_keys(place: str, stored: Sequence[str], cameras: Sequence[str]) -> list[str]:
    """The observations that hold what cameras saw, of all that are ``stored`` if none is named."""
    keys = [f"obs/{c}" if f"obs/{c}" in stored else f"obs/{c}_image" for c in cameras]
    missing = [key for key in keys if key not in stored]
    if missing or not stored:
        has = ", ".join(key.removeprefix("obs/").removesuffix("_image") for key in stored)
        what = f"no images {', '.join(missing)}" if missing else "no images"
        raise ValueError(
            f"{place}: has {what}; its cameras are: {has or 'none'}; offrl images renders others"
        )
    return keys or list(stored)


def frame_rate(env_args: Mapping[str, Any] | None) -> int:
    """Steps in a second of the robot's time."""
    frequency = ((env_args or {}).get("env_kwargs") or {}).get("control_freq")
    return max(1, round(frequency)) if isinstance(frequency, (int, float)) else FPS


def _is_film(value: Any) -> bool:
    return isinstance(value, np.ndarray) and is_images(value)
