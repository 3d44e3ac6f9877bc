"""A panel for curves over the steps of a training."""

from __future__ import annotations

from typing import Any

import numpy as np
from canvas import BODY, SMALL, TITLE, Canvas

PANEL, ROW = 220, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 30, 46  # around the plot in a panel
HEADER = 26


class Panel:
    """``x`` and ``y`` give the place on the canvas of a step and of a value.

    ticks: the values that have a line; the first and the last one are the limits.
    """

    def __init__(self, canvas: Canvas, left: float, top: float, title: str, steps: int, ticks: Any):
        self._x0, self._x1 = left + LEFT, left + PANEL - RIGHT
        self._y0, self._y1 = top + ROW - BOTTOM, top + TOP
        self._steps, self._least, self._most = steps, ticks[0], ticks[-1]
        middle = (self._x0 + self._x1) / 2
        canvas.text(middle, top + 12, title, TITLE, weight="bold", ha="center")
        for tick in ticks:
            canvas.line((self._x0, self._x1), (self.y(tick),) * 2, alpha=0.35, linewidth=0.8)
            canvas.text(self._x0 - 6, self.y(tick), f"{tick:g}", SMALL, ha="right")
        for step in (0, steps / 2, steps):
            canvas.text(self.x(step), self._y0 + 11, f"{step / 1000:g}", SMALL, ha="center")
        canvas.text(middle, self._y0 + 26, "thousand steps", BODY, ha="center")

    def x(self, step: Any) -> Any:
        return self._x0 + (self._x1 - self._x0) * np.asarray(step) / self._steps

    def y(self, value: Any) -> Any:
        share = (np.asarray(value) - self._least) / (self._most - self._least)
        return self._y0 + (self._y1 - self._y0) * share


def legend(canvas: Canvas, colours: dict[str, str], spread: float = 70) -> None:
    """Say above the panels what is drawn in which colour."""
    for place, (title, colour) in enumerate(colours.items()):
        x = LEFT + spread * place
        canvas.line((x, x + 18), (12, 12), color=colour, linewidth=2)
        canvas.text(x + 24, 12, title, BODY)
