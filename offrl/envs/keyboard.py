"""Driving a simulated arm from the keyboard, in a window that shows what its camera sees."""

import subprocess
import time
from typing import Any

import numpy as np

from offrl.processes import program

# What a key moves: the component of the action, and which way. The camera looks at the robot, so
# "away" is towards its base.
MOVES = {
    "w": (0, -1),
    "s": (0, 1),
    "a": (1, -1),
    "d": (1, 1),
    "r": (2, 1),
    "f": (2, -1),
    "z": (3, -1),
    "x": (3, 1),
    "t": (4, -1),
    "g": (4, 1),
    "c": (5, -1),
    "v": (5, 1),
}
HELP = (
    "w s a d  away, near, left, right   r f  up, down",
    "z x t g c v  turn   space  open, close the gripper",
    "backspace  once more from the start   esc  finish",
)
WINDOW, PIXELS = "offrl teleoperate", 512
GRIPPER, BACKSPACE, ESCAPE = " ", "\b", "\x1b"
HELD = 0.12  # seconds that a key moves the arm after it was heard of; held down it repeats faster
_PROBE = "import cv2; cv2.namedWindow('offrl'); cv2.waitKey(1)"


class Discarded(Exception):
    """The operator throws the episode away."""


class Finished(Exception):
    """The operator is done; the episode that goes on is thrown away."""


def check_window() -> None:
    """Raise ``ValueError``, which says why, where no window can be opened. It is tried in another
    process: libraries of windows end theirs where there is no display."""
    done = subprocess.run(program(_PROBE), capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "display" in line or "rror" in line]
        why = lines[0].strip() if lines else f"exit status {done.returncode}"
        raise ValueError(
            f"no window can be opened here ({why:.120}); run it where there is a display (a "
            "desktop, ssh -X, VNC), with opencv-python and not its headless variant"
        )


class Operator:
    """Answers observations as a policy does (``run_episode``), with what the keyboard says.

    An action is ``[x, y, z, three rotations, gripper]``. Steps come at ``control_freq`` Hz at
    most; simulation and rendering may take longer.
    """

    def __init__(self, env: Any, control_freq: float, strength: float = 0.5):
        import cv2

        shape = env.action_space.shape
        if shape != (7,):
            raise ValueError(
                f"the keyboard drives one arm by its pose and a gripper, 7 numbers, and actions "
                f"have {shape[0]} here; name one robot and a controller of poses (--env-kwargs)"
            )
        self.env, self.period, self.strength = env, 1 / control_freq, strength
        self.caption = ""
        self._heard: dict[str, float] = {}  # when a key was heard of last
        self._is_closed = False
        self._due = time.monotonic()
        # Without the buttons of OpenCV's own, whose keys would be taken from the arm.
        cv2.namedWindow(WINDOW, cv2.WINDOW_AUTOSIZE | cv2.WINDOW_GUI_NORMAL)

    def start_episode(self, caption: str) -> None:
        self.caption, self._is_closed = caption, False
        self._heard.clear()
        self._due = time.monotonic()

    def __call__(self, obs: Any, goal: Any = None, reward: float = 0.0) -> np.ndarray:
        self._show()
        self._listen()
        now = time.monotonic()
        action = np.zeros(7, dtype=np.float32)
        for key, (part, sign) in MOVES.items():
            if now - self._heard.get(key, -HELD) < HELD:
                action[part] += sign * self.strength
        action[6] = 1 if self._is_closed else -1
        return action

    def close(self) -> None:
        import cv2

        cv2.destroyAllWindows()

    def _show(self) -> None:
        import cv2

        frame = np.full((PIXELS + 80, PIXELS, 3), 255, np.uint8)
        frame[:PIXELS] = self.env.render(size=PIXELS)[..., ::-1]
        for line, text in enumerate((self.caption, *HELP)):
            where, font = (8, PIXELS + 17 + 18 * line), cv2.FONT_HERSHEY_SIMPLEX
            cv2.putText(frame, text, where, font, 0.45, (0, 0, 0), 1, cv2.LINE_AA)
        cv2.imshow(WINDOW, frame)

    def _listen(self) -> None:
        """Take keys until the next step is due, at least those that wait."""
        import cv2

        self._due = max(self._due + self.period, time.monotonic())
        while True:
            left = int(1000 * (self._due - time.monotonic()))
            code = cv2.waitKey(max(left, 1))
            if cv2.getWindowProperty(WINDOW, cv2.WND_PROP_VISIBLE) < 1:
                raise Finished
            if code >= 0:
                self._take(chr(code & 0xFF).lower())
            elif left <= 1:
                return

    def _take(self, key: str) -> None:
        if key == ESCAPE:
            raise Finished
        if key == BACKSPACE:
            raise Discarded
        if key == GRIPPER:
            self._is_closed = not self._is_closed
        self._heard[key] = time.monotonic()
