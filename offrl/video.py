"""Videos that any browser plays: H.264, with a key frame each half second to jump to."""

import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

import numpy as np

from offrl.outputs import whole_file

PIXELS = {3: "rgb24", 4: "rgba"}  # ffmpeg's name, by the number of channels
QUOTE, ESCAPED = "'", "'\\''"  # in ffmpeg's lists of files
BLOCK = 16  # pixels; encoders and players like multiples of it


def encoder() -> str:
    """Find the ffmpeg to use. ``ImportError`` where there is none."""
    try:
        from imageio_ffmpeg import get_ffmpeg_exe

        return get_ffmpeg_exe()
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            f"no ffmpeg to write videos with ({error}); pip install 'imageio[ffmpeg]'"
        ) from None


def write_video(path: str | Path, frames: Iterable[np.ndarray], fps: int = 10) -> None:
    """Write frames ``[H, W, 3]`` (uint8) as an MP4 file. ``OSError`` where it cannot be written."""
    frames = iter(frames)
    first = next(frames, None)
    if first is None:
        raise ValueError(f"{path}: there are no frames to film")
    height, width, channels = first.shape
    if channels not in PIXELS:
        raise ValueError(f"{path}: frames of one shape [H, W, 3] are needed, not of {first.shape}")
    raw = f"-f rawvideo -s {width}x{height} -pix_fmt {PIXELS[channels]} -r {fps} -i -"
    blocks = f"scale=ceil(iw/{BLOCK})*{BLOCK}:ceil(ih/{BLOCK})*{BLOCK}"
    coding = f"-c:v libx264 -pix_fmt yuv420p -g {max(1, fps // 2)} -movflags +faststart -f mp4"
    options = f"-y -loglevel error -xerror {raw} -vf {blocks} {coding}"
    with whole_file(path) as partial:
        _encode([encoder(), *options.split(), str(partial)], _alike(path, chain([first], frames)))


def join_videos(path: str | Path, parts: Sequence[Path]) -> None:
    """Join videos of ``write_video``, of one size and rate, to a new one."""
    with whole_file(path) as partial, tempfile.NamedTemporaryFile("w", suffix=".txt") as listing:
        lines = (f"file '{str(part.absolute()).replace(QUOTE, ESCAPED)}'\n" for part in parts)
        listing.writelines(lines)
        listing.flush()
        options = f"-y -loglevel error -xerror -f concat -safe 0 -i {listing.name}"
        copied = "-c copy -movflags +faststart -f mp4"
        _encode([encoder(), *options.split(), *copied.split(), str(partial)], [])


def _alike(path: str | Path, frames: Iterable[np.ndarray]) -> Iterable[np.ndarray]:
    shape = None
    for frame in frames:
        shape = shape or frame.shape
        if frame.shape != shape:
            shapes = sorted({frame.shape, shape})
            raise ValueError(f"{path}: frames of one shape [H, W, 3] are needed, not of {shapes}")
        yield frame


def _encode(command: Sequence[str], frames: Iterable[np.ndarray]) -> None:
    """Feed ffmpeg without imageio, which does not check how ffmpeg ended."""
    pipe = subprocess.PIPE
    # In a session of its own, or a terminal's Ctrl-C would reach it before us.
    with subprocess.Popen(command, stdin=pipe, stderr=pipe, start_new_session=True) as ffmpeg:
        assert ffmpeg.stdin and ffmpeg.stderr
        try:
            with suppress(BrokenPipeError):  # ffmpeg ended early, and prints why
                for frame in frames:
                    ffmpeg.stdin.write(np.ascontiguousarray(frame).data)
        except BaseException:
            ffmpeg.kill()
            raise
        finally:
            with suppress(BrokenPipeError):
                ffmpeg.stdin.close()
        said = " ".join(ffmpeg.stderr.read().decode(errors="replace").split())
    if ffmpeg.returncode:
        raise OSError(f"ffmpeg ended with status {ffmpeg.returncode}: {said}")
