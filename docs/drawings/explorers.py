"""What limits the steps per second of many explorers: the picture of docs/concepts/scaling.md."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from canvas import AMBER, AZURE, BODY, GREY, PURPLE, SMALL, TEAL, TITLE, Canvas
from curves import BOTTOM, HEADER, LEFT, PANEL, RIGHT, ROW, TOP, legend

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
from scaling import LINKS, Costs, Traffic, predict, seconds_of  # noqa: E402

FOUND = json.loads((BENCHMARKS / "results/scaling.json").read_text(encoding="utf-8"))
COSTS = Costs(**FOUND["costs"])
SHOWN = "CartPole", "Atari (Pong)", "robosuite"
LINK = "1 Gbit/s"
COLOURS = {"explorers": GREY, "link": PURPLE, "Broker": TEAL, "Learner": AMBER, "reached": AZURE}
EXPLORERS = np.unique(np.geomspace(1, 1000, 61).round().astype(int))
TICKS = {1e2: "100", 1e3: "1k", 1e4: "10k", 1e5: "100k", 1e6: "1M"}  # steps per second


def draw() -> Canvas:
    canvas = Canvas(PANEL * len(SHOWN), HEADER + ROW)
    titles = {"link": f"link, {LINK}"}
    legend(canvas, {titles.get(name, name): colour for name, colour in COLOURS.items()}, 110)
    traffics = {found["title"]: Traffic(**found) for found in FOUND["traffics"]}
    for place, title in enumerate(SHOWN):
        _draw(canvas, PANEL * place, HEADER, traffics[title])
    return canvas


def _draw(canvas: Canvas, left: float, top: float, traffic: Traffic) -> None:
    x0, x1, y0, y1 = left + LEFT, left + PANEL - RIGHT, top + ROW - BOTTOM, top + TOP
    x = x0 + (x1 - x0) * np.log10(EXPLORERS) / 3

    def height(rates: np.ndarray | float) -> np.ndarray:
        share = np.log10(np.asarray(rates) / min(TICKS)) / np.log10(max(TICKS) / min(TICKS))
        return y0 + (y1 - y0) * np.where((share < -0.05) | (share > 1), np.nan, share)

    canvas.text((x0 + x1) / 2, top + 12, traffic.title, TITLE, weight="bold", ha="center")
    for rate, label in TICKS.items():
        canvas.line((x0, x1), (height(rate),) * 2, alpha=0.35, linewidth=0.8)
        canvas.text(x0 - 6, height(rate), label, SMALL, ha="right")
    for decade in range(4):
        canvas.text(x0 + (x1 - x0) * decade / 3, y0 + 11, f"{10**decade}", SMALL, ha="center")
    canvas.text((x0 + x1) / 2, y0 + 26, "explorers", BODY, ha="center")
    given = [(traffic, COSTS, int(num), LINKS[LINK]) for num in EXPLORERS]
    seconds = [seconds_of(*of_one) for of_one in given]
    rates = {name: [1 / one[name] for one in seconds] for name in seconds[0]}
    rates["reached"] = [predict(*of_one).rate for of_one in given]
    for name, colour in COLOURS.items():
        style = {"linewidth": 3.0, "zorder": 2} if name == "reached" else {"zorder": 3}
        canvas.line(x, height(np.array(rates[name]) * traffic.num_steps), color=colour, **style)
