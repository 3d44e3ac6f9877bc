"""Videos of episodes."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from offrl.acting.episode import EpisodeResult


def video_frames(results: Iterable[EpisodeResult]) -> list[np.ndarray]:
    """The frames of all episodes, one episode after the other."""
    ordered = sorted(results, key=lambda r: r.request.seed or 0)
    return [frame for result in ordered for frame in result.frames]


def write_video(path: str | Path, frames: Sequence[np.ndarray], fps: int = 10) -> None:
    """Frames ``[H, W, 3]`` (uint8) as an MP4 file."""
    import imageio

    path = Path(path)
    partial = path.with_name(f".{path.stem}.partial.mp4")
    imageio.mimwrite(partial, list(frames), fps=fps, macro_block_size=16)
    partial.replace(path)
