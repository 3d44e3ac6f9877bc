"""What acting adds to offline policies, over the steps: the picture of docs/results.md."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from canvas import AMBER, AZURE, Canvas
from curves import HEADER, PANEL, ROW, Panel, legend

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from finetune import LEARNERS, TASKS, TITLES, Learner  # noqa: E402

COLOURS = {"iql": AMBER, "residual": AZURE}


def draw() -> Canvas:
    canvas = Canvas(PANEL * len(TASKS), HEADER + ROW)
    legend(canvas, {TITLES[way]: colour for way, colour in COLOURS.items()}, spread=110)
    for place, task in enumerate(TASKS):
        learners = [x for x in LEARNERS if x.task == task and x.found is not None]
        if learners:
            _draw_task(canvas, PANEL * place, learners)
    return canvas


def _draw_task(canvas: Canvas, left: float, learners: list[Learner]) -> None:
    answers = {learner.way: learner.found for learner in learners}
    steps = max(answer["steps"] for answer in answers.values())
    title = f"Success on {TITLES[learners[0].task]}"
    panel = Panel(canvas, left, HEADER, title, steps, np.linspace(0, 1, 5))
    for way, answer in answers.items():
        before, curve = answer["offline"]["Success_Rate"], answer["curve"]
        rates = [before, *(point["Success_Rate"] for point in curve)]
        places = panel.x([0, *(point["step"] for point in curve)])
        canvas.line(places, panel.y(rates), color=COLOURS[way], linewidth=1.6)
    low, high = (panel.y(answer["offline"][f"Success_Rate_{end}"]) for end in ("Low", "High"))
    style = {"color": "grey", "alpha": 0.25, "linewidth": 0}
    canvas.axes.fill_between(panel.x([0, steps]), low, high, **style)
