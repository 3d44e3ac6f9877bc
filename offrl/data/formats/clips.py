"""Camera images as films whose frames have exactly their size, many episodes in one file.

H.264 (yuv420p) with a key frame at every other frame, so that a frame is found without decoding
others, as LeRobot wants it. Pixels come back within a few units (``docs/howto/convert.md``).
"""

import io
from pathlib import Path
from typing import Any

import numpy as np

from offrl.data.formats.hdf5 import located
from offrl.lazy import needed
from offrl.memory import check_memory

CODEC = "libx264"
# No frame refers to a later one (bf). A slower preset gains nothing on small images. x264's mbtree
# now and then (in two films of a thousand) gives other bytes for the same images.
OPTIONS = {"crf": "18", "g": "2", "bf": "0", "preset": "faster", "x264-params": "mbtree=0"}
PIXELS = "yuv420p"


def encode(frames: np.ndarray, fps: int) -> bytes:
    """Make the film (MP4) of an episode's images ``[T, H, W, 3]`` (uint8); H and W are even."""
    av, file = _import(), io.BytesIO()
    with av.open(file, "w", format="mp4") as clip:
        stream = clip.add_stream(CODEC, rate=fps, options=OPTIONS)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = PIXELS
        stream.codec_context.thread_count = 1  # other episodes have the other cores
        for frame in frames:
            clip.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        clip.mux(stream.encode())
    return file.getvalue()


class Film:
    """A file that the films of episodes are appended to, as they are coded."""

    def __init__(self, path: Path, fps: int):
        self._container = _import().open(str(path), "w", format="mp4")
        self._stream: Any = None
        self._fps = fps
        self.num_frames = 0

    def append(self, clip: bytes) -> None:
        with _import().open(io.BytesIO(clip)) as source:
            stream = source.streams.video[0]
            if self._stream is None:
                self._stream = self._container.add_stream_from_template(stream)
            before = int(self.num_frames / (self._fps * stream.time_base))  # of whole numbers
            for packet in source.demux(stream):
                if packet.dts is not None:  # the last one only says that it is over
                    packet.dts += before
                    packet.pts += before
                    packet.stream = self._stream
                    self._container.mux(packet)
            self.num_frames += stream.frames

    def close(self) -> None:
        self._container.close()


def decode(path: Path, start: float, num_frames: int, fps: float) -> np.ndarray:
    """Read ``num_frames`` images ``[T, H, W, 3]`` of a film, from the time ``start`` (seconds) on.
    ``ValueError`` where the film ends before, or is none."""
    images: list[np.ndarray] = []
    av = _import()
    with located(path, f"the film from {start:g} s on"), av.open(str(path)) as film:
        stream = film.streams.video[0]
        num_bytes = 3 * stream.width * stream.height * num_frames
        check_memory(num_bytes, f"{path}: {num_frames} frames")
        # One for all frames: each frame of its own would take longer than to decode it.
        colours = av.video.reformatter.VideoReformatter()
        film.seek(int(start / stream.time_base), stream=stream)
        for frame in film.decode(stream):
            late = frame.time - start - len(images) / fps
            if late > -0.5 / fps:
                if late > 0.5 / fps:
                    raise ValueError(f"it has no frame of step {len(images)} of the episode")
                images.append(colours.reformat(frame, format="rgb24").to_ndarray())
            if len(images) == num_frames:
                return np.stack(images)
        raise ValueError(f"it has {len(images)} frames there, but the episode {num_frames}")


def _import() -> Any:
    return needed("av", "lerobot", "PyAV is missing")
