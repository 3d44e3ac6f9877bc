"""A window that shows what an environment renders, as fast as it would go in reality."""

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np

from offrl.envs.rendering import complaints

FPS = 20  # of environments that do not say
ESCAPE = "\x1b"
_PROBE = "import cv2; cv2.namedWindow('offrl'); cv2.waitKey(1)"


class Finished(Exception):
    """Tells that a person has closed the window, or pressed Escape."""


def can_show() -> str | None:
    """Say why no window can be opened here; ``None`` if one can."""
    lines = complaints(_PROBE)
    telling = (line for line in lines if "display" in line or "rror" in line)
    return f"no window can be opened here ({next(telling, lines[-1]):.120})" if lines else None


def check_window() -> None:
    """Raise ``ValueError``, which says why, where no window can be opened."""
    if why := can_show():
        raise ValueError(
            f"{why}; run it where there is a display (a desktop, ssh -X, VNC), with opencv-python "
            "and not its headless variant"
        )


def frame_rate(env: Any) -> int:
    """Return the number of frames in a second of an environment's time."""
    return (getattr(env, "metadata", None) or {}).get("render_fps") or FPS


def free_name(path: Path) -> Path:
    """Return ``path``, or where something is there already, the same with the first free number."""
    numbered = (path.with_stem(f"{path.stem}-{i}") for i in itertools.count(2))
    return next(name for name in itertools.chain([path], numbered) if not name.exists())


class Screen:
    """Shows one frame after the other. ``Finished`` is raised when a person closes it or presses
    Escape."""

    def __init__(self, title: str, fps: float = FPS):
        import cv2

        self.title, self._period = title, 1 / fps
        self._due = time.monotonic()
        # OpenCV's own buttons would take keys for themselves.
        cv2.namedWindow(title, cv2.WINDOW_AUTOSIZE | cv2.WINDOW_GUI_NORMAL)

    def show(self, frame: np.ndarray) -> None:
        """Show an image ``[H, W, 3]``, and take keys until the next one is due, at least those that
        wait. Simulation and rendering may take longer."""
        import cv2

        cv2.imshow(self.title, np.ascontiguousarray(frame[..., ::-1]))
        self._due = max(self._due + self._period, time.monotonic())
        while True:
            left = int(1000 * (self._due - time.monotonic()))
            code = cv2.waitKey(max(left, 1))
            if cv2.getWindowProperty(self.title, cv2.WND_PROP_VISIBLE) < 1:
                raise Finished
            if code >= 0:
                self.take(chr(code & 0xFF).lower())
            elif left <= 1:
                return

    def take(self, key: str) -> None:
        """Do what a key asks for."""
        if key == ESCAPE:
            raise Finished

    def close(self) -> None:
        import cv2

        cv2.destroyAllWindows()
