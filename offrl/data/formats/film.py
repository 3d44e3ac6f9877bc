"""Films (MP4): of an episode's images, many in one file without recoding, and frames out of them.

PyAV brings the FFmpeg that it needs. (torchcodec needs the system's, and PyTorch in processes that
only read data.)
"""

import io
from pathlib import Path
from typing import Any

import numpy as np

from offrl.data.formats.hdf5 import located
from offrl.lazy import needed
from offrl.memory import check_memory

# Films are H.264 (yuv420p) with a key frame at every other frame, so that a frame is found without
# decoding others, as LeRobot wants it. Pixels come back within a few units (docs/howto/convert.md).
CODEC = "libx264"
# No frame refers to a later one (bf). A slower preset gains nothing on small images. x264's mbtree
# now and then (in two films of a thousand) gives other bytes for the same images.
FILM_OPTIONS = {"crf": "18", "g": "2", "bf": "0", "preset": "faster", "x264-params": "mbtree=0"}
PIXELS = "yuv420p"
TOLERANCE = 0.05  # share by which a film's rate may be unlike that of its steps


def encode_film(frames: np.ndarray, fps: int) -> bytes:
    """Make the film (MP4) of an episode's images ``[T, H, W, 3]`` (uint8); H and W are even."""
    av, file = _av(), io.BytesIO()
    with av.open(file, "w", format="mp4") as clip:
        stream = clip.add_stream(CODEC, rate=fps, options=FILM_OPTIONS)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = PIXELS
        stream.codec_context.thread_count = 1  # other episodes use the other cores
        for frame in frames:
            clip.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        clip.mux(stream.encode())
    return file.getvalue()


class Film:
    """A film file to which the films of episodes are appended without recoding."""

    def __init__(self, path: Path, fps: int):
        self._container = _av().open(str(path), "w", format="mp4")
        self._stream: Any = None
        self._fps = fps
        self.num_frames = 0

    def append(self, clip: bytes) -> None:
        with _av().open(io.BytesIO(clip)) as source:
            stream = source.streams.video[0]
            if self._stream is None:
                self._stream = self._container.add_stream_from_template(stream)
            before = int(self.num_frames / (self._fps * stream.time_base))  # integers are exact
            for packet in source.demux(stream):
                if packet.dts is not None:  # the last packet only marks the end
                    packet.dts += before
                    packet.pts += before
                    packet.stream = self._stream
                    self._container.mux(packet)
            self.num_frames += stream.frames

    def close(self) -> None:
        self._container.close()


class OpenFilm:
    """A film file that is open to read frames out of it: its ``size`` (height, width), ``codec``
    and ``num_frames``, by its header.

    threads: that decode; 0: one for each core. More than one take memory, and time to start.
    """

    def __init__(self, path: Path, threads: int = 1):
        self.path, av = path, _av()
        with located(path, "the film"):
            self._container = av.open(str(path))
            self._stream = self._container.streams.video[0]
            self._stream.codec_context.thread_count = threads
            self._stream.thread_type = "AUTO"
            self.size = self._stream.height, self._stream.width
            self.codec, self.num_frames = self._stream.codec.canonical_name, self._stream.frames
        # One converter for all frames: making one per frame takes longer than decoding.
        self._colours = av.video.reformatter.VideoReformatter()

    def check(self, start: float, num_frames: int, fps: float) -> None:
        """Raise ``ValueError`` if by the file's header the film is of another rate, or has no
        ``num_frames`` frames from the time ``start`` (seconds) on. Frames are not decoded."""
        stream = self._stream
        with located(self.path, f"the film from {start:g} s on"):
            rate = float(stream.average_rate or fps)
            if self.num_frames > 1 and abs(rate / fps - 1) > TOLERANCE:
                raise ValueError(f"it has {rate:g} frames a second, but the steps' fps is {fps:g}")
            if stream.duration is not None:
                end = float(stream.duration * stream.time_base)
                found = int((end - start) * fps + 0.5)
                if found < num_frames:
                    raise ValueError(f"it has {found} frames there, but the episode {num_frames}")

    def frames(self, start: float, first: int, last: int, fps: float) -> np.ndarray:
        """Decode the images ``[T, H, W, 3]`` of the steps ``first:last`` of an episode whose film
        begins at the time ``start`` (seconds). ``ValueError`` if the film is damaged or short."""
        place, stream, num_frames = f"the film from {start:g} s on", self._stream, last - first
        check_memory(num_frames * 3 * self.size[0] * self.size[1], f"{self.path}: {place}")
        images, k = np.empty((num_frames, *self.size, 3), np.uint8), 0
        if not num_frames:
            return images
        with located(self.path, place):
            self._container.seek(int((start + first / fps) / stream.time_base), stream=stream)
            for frame in self._container.decode(stream):
                late = frame.time - start - (first + k) / fps
                if late > 0.5 / fps:
                    raise ValueError(f"it has no frame of step {first + k} of the episode")
                if late > -0.5 / fps:
                    images[k] = self._colours.reformat(frame, format="rgb24").to_ndarray()
                    k += 1
                    if k == num_frames:
                        return images
            raise ValueError(f"it has {first + k} frames there, but the episode {last} or more")


def _av() -> Any:
    return needed("av", "lerobot", "PyAV is missing")
