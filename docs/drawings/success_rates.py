"""The success rates of docs/results.md with their intervals, beside BC's."""

from __future__ import annotations

import sys
from pathlib import Path

from canvas import AMBER, AZURE, BODY, SMALL, TITLE, Canvas

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from results import ALGORITHMS, TASKS, answers_of, pooled  # noqa: E402

CLONES = ("bc", "filtered_bc")
PANEL, NAMES, SCALE, ROW, TOP = 270, 104, 114, 17, 46


def draw() -> Canvas:
    tasks = [name for name, task in TASKS.items() if task.part == "rewards"]
    rates = {task: {k: pooled(a, "last") for k, a in answers_of(task).items()} for task in tasks}
    bottom = TOP + ROW * max(map(len, rates.values()))
    canvas = Canvas(PANEL * len(tasks), bottom + 40)
    for number, task in enumerate(tasks):
        _draw_task(canvas, PANEL * number, bottom, TASKS[task].title, rates[task])
    return canvas


def _draw_task(
    canvas: Canvas,
    left: float,
    bottom: float,
    title: str,
    rates: dict[str, tuple[float, float, float, int]],
) -> None:
    begin = left + NAMES

    def at(rate: float) -> float:
        return begin + SCALE * rate

    canvas.text(at(0.5), 10, title, TITLE, weight="bold", ha="center")
    for tick in (0, 0.25, 0.5, 0.75, 1):
        canvas.line((at(tick), at(tick)), (TOP - 6, bottom), alpha=0.35, linewidth=0.8)
        canvas.text(at(tick), bottom + 10, f"{tick:g}", SMALL, ha="center")
    canvas.text(at(0.5), bottom + 26, "success rate", BODY, ha="center")
    canvas.line((at(rates["bc"][0]),) * 2, (TOP - 6, bottom), color=AMBER, linestyle="--")
    canvas.text(at(rates["bc"][0]), TOP - 14, "BC", SMALL, color=AMBER, ha="center", weight="bold")
    canvas.text(at(1) + 19, TOP - 14, "rate", SMALL, ha="center")
    canvas.text(at(1) + 43, TOP - 14, "n", SMALL, ha="center")
    for place, algorithm in enumerate(sorted(rates, key=lambda k: -rates[k][0])):
        rate, low, high, n = rates[algorithm]
        y, colour = TOP + ROW * (place + 0.5), AMBER if algorithm in CLONES else AZURE
        canvas.text(begin - 8, y, ALGORITHMS[algorithm][0], SMALL, ha="right")
        canvas.line((at(low), at(high)), (y, y), color=colour, linewidth=2)
        canvas.dot(at(rate), y, colour)
        canvas.text(at(1) + 19, y, f"{rate:.2f}", SMALL, ha="center")
        canvas.text(at(1) + 43, y, f"{n}", SMALL, ha="center")
