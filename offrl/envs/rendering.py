"""Rendering: the choice of MuJoCo's OpenGL back end, windows that show frames in real time, and one
in which a person drives an arm by the keyboard."""

import itertools
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from offrl.processes import program

BACKENDS = ("egl", "osmesa")
INSTALL_HINT = "apt-get install libegl1 libgl1 libosmesa6 (or the like), then offrl doctor"
FPS = 20  # default for environments
# Components of actions, and their keys. The camera looks at the robot: "away" is towards it.
PAIRS = ("ws", "ad", "fr", "zx", "tg", "cv")  # two keys per component: less and more
MOVES = {pair[i]: (part, 2 * i - 1) for part, pair in enumerate(PAIRS) for i in (0, 1)}
HELP = (
    "w s a d  away, near, left, right   r f  up, down",
    "z x t g c v  turn   space  open, close the gripper",
    "backspace  once more from the start   esc  finish",
)
WINDOW, PIXELS = "offrl teleoperate", 512
GRIPPER, BACKSPACE, ESCAPE = " ", "\b", "\x1b"
STRENGTH = 0.5  # size of the motion by a key
HELD = 0.12  # seconds that a key press moves the arm; the keyboard repeats a held key faster

_PROBE = """
import mujoco
xml = "<mujoco><worldbody><geom size='1' rgba='1 0 0 1'/></worldbody></mujoco>"
model = mujoco.MjModel.from_xml_string(xml)
renderer = mujoco.Renderer(model, 16, 16)
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer.update_scene(data)
assert renderer.render().any()
"""
_WINDOW_PROBE = "import cv2; cv2.namedWindow('offrl'); cv2.waitKey(1)"


def renders_observations(env_args: Mapping[str, Any]) -> bool:
    """Say whether an environment renders images for its observations."""
    env_kwargs = env_args.get("env_kwargs")
    return isinstance(env_kwargs, Mapping) and bool(env_kwargs.get("use_camera_obs"))


def complaints(script: str, **environ: str) -> list[str]:
    """Run Python code in a process of its own, which graphics libraries may crash. Returns the
    lines that it prints if it fails; none if it works."""
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 60}
    try:
        result = subprocess.run(program(script), env=os.environ | environ, check=False, **options)
    except subprocess.TimeoutExpired:
        return ["hangs"]
    if result.returncode == 0:
        return []
    lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
    return lines or [f"exit status {result.returncode}"]


def probe(backend: str) -> str | None:
    """Say why ``backend`` does not render; ``None`` if it does. (A process has only one choice.)"""
    return next(reversed(complaints(_PROBE, MUJOCO_GL=backend)), None)


def working_backend() -> str | None:
    """Find the back end that ``MUJOCO_GL`` names, or the first that works, or ``None``."""
    chosen = os.environ.get("MUJOCO_GL")
    candidates = [name for name in BACKENDS if not chosen or name == chosen]
    return next((name for name in candidates if probe(name) is None), None)


def needed_backend(needs: str = "") -> str:
    """Return ``working_backend()``; ``ValueError``, with what ``needs`` it, if none works."""
    backend = working_backend()
    if backend is None:
        why = f"{needs}: " if needs else ""
        raise ValueError(f"{why}no rendering back end works here; {INSTALL_HINT}")
    return backend


class Finished(Exception):
    """Raised when a person closes the window or presses Escape."""


def can_show() -> str | None:
    """Say why no window can be opened here; ``None`` if one can."""
    lines = complaints(_WINDOW_PROBE)
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
    """Return ``path``, or if it exists, the same with the first free number."""
    numbered = (path.with_stem(f"{path.stem}-{i}") for i in itertools.count(2))
    return next(name for name in itertools.chain([path], numbered) if not name.exists())


class Screen:
    """A window that shows frames. Raises ``Finished`` when a person closes it or presses Escape."""

    def __init__(self, title: str, fps: float = FPS):
        import cv2

        self.title, self._period = title, 1 / fps
        self._due = time.monotonic()
        # OpenCV's own buttons would take keys for themselves.
        cv2.namedWindow(title, cv2.WINDOW_AUTOSIZE | cv2.WINDOW_GUI_NORMAL)

    def show(self, frame: np.ndarray) -> None:
        """Show an image ``[H, W, 3]``, and handle keys until the next one is due."""
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
        """Handle a key."""
        if key == ESCAPE:
            raise Finished

    def close(self) -> None:
        import cv2

        cv2.destroyAllWindows()


class Discarded(Exception):
    """Raised when the operator discards the episode."""


class Operator(Screen):
    """Chooses actions ``[x, y, z, three rotations, gripper]`` by the keyboard, for ``run_episode``,
    at most at ``control_freq`` Hz. Escape discards the running episode."""

    def __init__(self, env: Any, control_freq: float):
        shape = env.action_space.shape
        if shape != (7,):
            raise ValueError(
                f"the keyboard drives one arm by its pose and a gripper, 7 numbers, and actions "
                f"have {shape[0]} here; name one robot and a controller of poses (--env-kwargs)"
            )
        super().__init__(WINDOW, control_freq)
        self.env, self.caption = env, ""
        self._heard: dict[str, float] = {}  # time of each key's last press
        self._is_closed = False

    def start_episode(self, caption: str) -> None:
        self.caption, self._is_closed = caption, False
        self._heard.clear()

    def __call__(self, obs: Any, goal: Any = None, reward: float = 0.0) -> np.ndarray:
        import cv2

        picture = np.full((PIXELS + 80, PIXELS, 3), 255, np.uint8)
        picture[:PIXELS] = self.env.render(size=PIXELS)
        for line, text in enumerate((self.caption, *HELP)):
            where, font = (8, PIXELS + 17 + 18 * line), cv2.FONT_HERSHEY_SIMPLEX
            cv2.putText(picture, text, where, font, 0.45, (0, 0, 0), 1, cv2.LINE_AA)
        self.show(picture)
        now = time.monotonic()
        action = np.zeros(7, dtype=np.float32)
        for key, (part, sign) in MOVES.items():
            if now - self._heard.get(key, -HELD) < HELD:
                action[part] += sign * STRENGTH
        action[6] = 1 if self._is_closed else -1
        return action

    def take(self, key: str) -> None:
        super().take(key)
        if key == BACKSPACE:
            raise Discarded
        if key == GRIPPER:
            self._is_closed = not self._is_closed
        self._heard[key] = time.monotonic()
