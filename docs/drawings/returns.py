"""The learning curves of docs/results.md: offrl beside Stable-Baselines3."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from canvas import AMBER, AZURE, Canvas
from curves import HEADER, PANEL, ROW, Panel, legend
from matplotlib.ticker import MaxNLocator

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from online_results import CASES, LIBRARIES, SPANS, answers_of  # noqa: E402

COLOURS = {"offrl": AZURE, "sb3": AMBER}
COLUMNS = 3


def draw() -> Canvas:
    drawn = [name for name in CASES if answers_of(name, "offrl")]
    num_rows = -(-len(drawn) // COLUMNS)
    canvas = Canvas(PANEL * COLUMNS, HEADER + ROW * num_rows)
    legend(canvas, {title: COLOURS[library] for library, (title, _) in LIBRARIES.items()})
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
    panel = Panel(canvas, left, top, CASES[name].title, CASES[name].num_steps, ticks)
    middles = panel.x(CASES[name].num_steps * (np.arange(SPANS) + 0.5) / SPANS)
    for library, values in curves.items():
        colour, heights = COLOURS[library], panel.y(values)
        style = {"color": colour, "alpha": 0.25, "linewidth": 0}
        canvas.axes.fill_between(middles, heights.min(0), heights.max(0), **style)
        canvas.line(middles, panel.y(values.mean(0)), color=colour, linewidth=1.6)
