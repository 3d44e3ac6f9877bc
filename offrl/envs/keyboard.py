"""Driving a simulated arm from the keyboard, in a window that shows what its camera sees."""

import time
from typing import Any

import numpy as np

from offrl.envs.window import Screen

# The component of the action that a key moves, and which way. The camera looks at the robot, so
# "away" is towards its base.
PAIRS = ("ws", "ad", "fr", "zx", "tg", "cv")  # of keys, for less and for more of a component
MOVES = {pair[i]: (part, 2 * i - 1) for part, pair in enumerate(PAIRS) for i in (0, 1)}
HELP = (
    "w s a d  away, near, left, right   r f  up, down",
    "z x t g c v  turn   space  open, close the gripper",
    "backspace  once more from the start   esc  finish",
)
WINDOW, PIXELS = "offrl teleoperate", 512
GRIPPER, BACKSPACE = " ", "\b"
STRENGTH = 0.5  # of the motion that a key stands for
HELD = 0.12  # seconds that a key moves the arm after it was heard of; held down it repeats faster


class Discarded(Exception):
    """Tells that the operator throws the episode away."""


class Operator(Screen):
    """Answers observations as a policy does (``run_episode``), with what the keyboard says.

    An action is ``[x, y, z, three rotations, gripper]``. Steps come at ``control_freq`` Hz at most.
    Escape throws the episode that goes on away.
    """

    def __init__(self, env: Any, control_freq: float):
        shape = env.action_space.shape
        if shape != (7,):
            raise ValueError(
                f"the keyboard drives one arm by its pose and a gripper, 7 numbers, and actions "
                f"have {shape[0]} here; name one robot and a controller of poses (--env-kwargs)"
            )
        super().__init__(WINDOW, control_freq)
        self.env, self.caption = env, ""
        self._heard: dict[str, float] = {}  # when a key was heard of last
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
