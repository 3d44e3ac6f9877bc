"""Films of demonstrations: by the simulator's states, by their actions, or of stored images."""

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from offrl.data.files import open_demos
from offrl.envs import make_env
from offrl.envs.playback import Replay, film_states
from offrl.tree import merge
from offrl.video import write_video

USES = ("states", "actions", "images")
ROWS = 64  # images that are read at once


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

    @property
    def fps(self) -> int:
        """Steps in a second of the robot's time."""
        env_kwargs = (self.demos.env_args or {}).get("env_kwargs") or {}
        return round(env_kwargs.get("control_freq") or 20)

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
        return "images" if any(map(_is_image, trajectory.values())) else "actions"

    def _image_keys(self) -> list[str]:
        first = self.demos.demos()[0]
        stored = [k for k, v in self.demos.trajectory(first).items() if _is_image(v)]
        stored = [key for key in stored if key.startswith("obs/")]
        keys = [f"obs/{camera}_image" for camera in self.cameras] or sorted(stored)
        missing = [key for key in keys if key not in stored]
        if missing or not keys:
            has = ", ".join(key.removeprefix("obs/").removesuffix("_image") for key in stored)
            raise ValueError(
                f"{self.demos.path}: has no images {', '.join(missing)}".rstrip()
                + f"; its cameras are: {has or 'none'}; offrl images renders others"
            )
        return keys

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
        write_video(Path(folder) / f"{demo}.mp4", frames, player.fps)
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
    """Images ``[H, W, 1 or 3]`` (uint8) as one ``[H, W, 3]``; black below the smaller ones."""
    height = max(len(image) for image in images)
    columns = [
        np.pad(
            np.broadcast_to(image, (*image.shape[:2], 3)),
            ((0, height - len(image)), (0, 0), (0, 0)),
        )
        for image in images
    ]
    return np.concatenate(columns, axis=1)


def _is_image(value: Any) -> bool:
    return getattr(value, "ndim", 0) == 4 and value.dtype == np.uint8 and value.shape[-1] in (1, 3)
