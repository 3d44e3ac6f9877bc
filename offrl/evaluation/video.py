"""Videos of episodes."""

import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from offrl.acting.episode import EpisodeResult
from offrl.outputs import whole_file

PIXELS = {3: "rgb24", 4: "rgba"}  # ffmpeg's name, by the number of channels
BLOCK = 16  # pixels; encoders and players like multiples of it


def video_frames(results: Iterable[EpisodeResult]) -> list[np.ndarray]:
    """The frames of all episodes, one episode after the other."""
    ordered = sorted(results, key=lambda r: r.request.seed or 0)
    return [frame for result in ordered for frame in result.frames]


def encoder() -> str:
    """The ffmpeg to use. ``ImportError`` where there is none."""
    try:
        from imageio_ffmpeg import get_ffmpeg_exe

        return get_ffmpeg_exe()
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            f"no ffmpeg to write videos with ({error}); pip install 'imageio[ffmpeg]'"
        ) from None


def write_video(path: str | Path, frames: Sequence[np.ndarray], fps: int = 10) -> None:
    """Frames ``[H, W, 3]`` (uint8) as an MP4 file. ``OSError`` where it cannot be written."""
    height, width, channels = frames[0].shape
    if channels not in PIXELS or any(frame.shape != frames[0].shape for frame in frames):
        shapes = sorted({frame.shape for frame in frames})
        raise ValueError(f"{path}: frames of one shape [H, W, 3] are needed, not of {shapes}")
    raw = f"-f rawvideo -s {width}x{height} -pix_fmt {PIXELS[channels]} -r {fps} -i -"
    blocks = f"scale=ceil(iw/{BLOCK})*{BLOCK}:ceil(ih/{BLOCK})*{BLOCK}"
    options = f"-y -loglevel error -xerror {raw} -vf {blocks} -pix_fmt yuv420p -f mp4"
    with whole_file(path) as partial:
        _encode([encoder(), *options.split(), str(partial)], frames)


def _encode(command: Sequence[str], frames: Sequence[np.ndarray]) -> None:
    """Feed ffmpeg, by ourselves: imageio does not look at how it ended."""
    pipe = subprocess.PIPE
    # In a session of its own, or a terminal's Ctrl-C would reach it before us.
    with subprocess.Popen(command, stdin=pipe, stderr=pipe, start_new_session=True) as ffmpeg:
        assert ffmpeg.stdin and ffmpeg.stderr
        try:
            with suppress(BrokenPipeError):  # it ended early, and says why
                for frame in frames:
                    ffmpeg.stdin.write(np.ascontiguousarray(frame))
        except BaseException:
            ffmpeg.kill()
            raise
        finally:
            with suppress(BrokenPipeError):
                ffmpeg.stdin.close()
        said = " ".join(ffmpeg.stderr.read().decode(errors="replace").split())
    if ffmpeg.returncode:
        raise OSError(f"ffmpeg ended with status {ffmpeg.returncode}: {said}")
