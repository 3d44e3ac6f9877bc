"""A window that shows what an environment renders, as fast as it would go in reality."""

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np

from offrl.envs.keyboard import ESCAPE, Finished, check_window

FPS = 20  # of environments that do not say


def can_show() -> str | None:
    """``None`` if a window can be opened here, else why not."""
    try:
        check_window()
    except ValueError as error:
        return str(error).split(";")[0]
    return None


def frame_rate(env: Any) -> int:
    """Frames in a second of an environment's time."""
    return (getattr(env, "metadata", None) or {}).get("render_fps") or FPS


def free_name(path: Path) -> Path:
    """``path``, or where something is there already, the same with the first free number."""
    names = (path.with_stem(f"{path.stem}-{i}") for i in itertools.count(2))
    return next(name for name in itertools.chain([path], names) if not name.exists())


class Window:
    """Shows one frame after the other. ``Finished`` is raised when a person closes it or presses
    Escape."""

    def __init__(self, title: str, fps: int = FPS):
        import cv2

        self.title, self._period = title, 1 / fps
        self._due = time.monotonic()
        cv2.namedWindow(title, cv2.WINDOW_AUTOSIZE | cv2.WINDOW_GUI_NORMAL)

    def show(self, frame: np.ndarray) -> None:
        """Show an image ``[H, W, 3]``, and wait until the next one is due."""
        import cv2

        cv2.imshow(self.title, np.ascontiguousarray(frame[..., ::-1]))
        self._due = max(self._due + self._period, time.monotonic())
        left = int(1000 * (self._due - time.monotonic()))
        code = cv2.waitKey(max(left, 1))
        is_closed = cv2.getWindowProperty(self.title, cv2.WND_PROP_VISIBLE) < 1
        if is_closed or (code >= 0 and chr(code & 0xFF) == ESCAPE):
            raise Finished

    def close(self) -> None:
        import cv2

        cv2.destroyAllWindows()
