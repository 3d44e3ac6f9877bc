"""The learning curves of docs/results.md: offrl beside Stable-Baselines3."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from canvas import AMBER, AZURE, BODY, SMALL, TITLE, Canvas
from matplotlib.ticker import MaxNLocator

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from online_results import CASES, LIBRARIES, SPANS, answers_of  # noqa: E402

COLOURS = {"offrl": AZURE, "sb3": AMBER}
COLUMNS, PANEL, ROW = 3, 220, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 30, 46  # around the plot in a panel
HEADER = 26


def draw() -> Canvas:
    drawn = [name for name in CASES if answers_of(name, "offrl")]
    num_rows = -(-len(drawn) // COLUMNS)
    canvas = Canvas(PANEL * COLUMNS, HEADER + ROW * num_rows)
    for place, (library, (title, _)) in enumerate(LIBRARIES.items()):
        x = LEFT + 70 * place
        canvas.line((x, x + 18), (12, 12), color=COLOURS[library], linewidth=2)
        canvas.text(x + 24, 12, title, BODY)
    for place, name in enumerate(drawn):
        _draw_case(canvas, PANEL * (place % COLUMNS), HEADER + ROW * (place // COLUMNS), name)
    return canvas


def curves_of(case: str, library: str) -> np.ndarray:
    """The returns of all seeds, ``[seeds, SPANS]``; where no episode ended, between those before
    and after."""
    curves = []
    for answer in answers_of(case, library):
        curve = np.array(answer["curve"], dtype=float)
        known = np.flatnonzero(~np.isnan(curve))
        curves.append(np.interp(np.arange(SPANS), known, curve[known]))
    return np.array(curves)


def _draw_case(canvas: Canvas, left: float, top: float, name: str) -> None:
    curves = {library: curves_of(name, library) for library in LIBRARIES}
    curves = {library: values for library, values in curves.items() if len(values)}
    least = min(values.min() for values in curves.values())
    ticks = MaxNLocator(4).tick_values(least, max(values.max() for values in curves.values()))
    steps = CASES[name].num_steps
    x0, x1, y0, y1 = left + LEFT, left + PANEL - RIGHT, top + ROW - BOTTOM, top + TOP

    def height(value: np.ndarray | float) -> np.ndarray | float:
        return y0 + (y1 - y0) * (value - ticks[0]) / (ticks[-1] - ticks[0])

    canvas.text((x0 + x1) / 2, top + 12, CASES[name].title, TITLE, weight="bold", ha="center")
    for tick in ticks:
        canvas.line((x0, x1), (height(tick),) * 2, alpha=0.35, linewidth=0.8)
        canvas.text(x0 - 6, height(tick), f"{tick:g}", SMALL, ha="right")
    for share in (0, 0.5, 1):
        at = x0 + share * (x1 - x0)
        canvas.text(at, y0 + 11, f"{share * steps / 1000:g}", SMALL, ha="center")
    canvas.text((x0 + x1) / 2, y0 + 26, "thousand steps", BODY, ha="center")
    middles = x0 + (x1 - x0) * (np.arange(SPANS) + 0.5) / SPANS
    for library, values in curves.items():
        colour, heights = COLOURS[library], height(values)
        style = {"color": colour, "alpha": 0.25, "linewidth": 0}
        canvas.axes.fill_between(middles, heights.min(0), heights.max(0), **style)
        canvas.line(middles, height(values.mean(0)), color=colour, linewidth=1.6)
