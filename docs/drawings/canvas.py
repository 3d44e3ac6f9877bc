"""What the drawings share: boxes, text and arrows that read well on a white page and a dark one.

Text in boxes is white on colours of medium darkness; everything outside of them has mid tones. The
ground is transparent, text stays text, and the same content gives the same file.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

WHITE, GREY = "#ffffff", "#7a7a7a"
SLATE, BLUE, TEAL, BROWN, PURPLE = "#566573", "#2b6ca3", "#227d74", "#a8552b", "#7d5ba6"
AZURE, AMBER = "#3f86c6", "#b9770e"  # of lines and dots outside of boxes
SMALL, BODY, TITLE = 9, 10, 11  # points
LINE = 1.3  # the height of a line of text in its size
SETTINGS = {"svg.fonttype": "none", "font.family": "sans-serif", "font.sans-serif": "DejaVu Sans"}
UNNAMED = dict.fromkeys(("Creator", "Date", "Format", "Type"))  # no versions, no dates


class Canvas:
    """``width`` x ``height`` points; ``x`` runs to the right, ``y`` down."""

    def __init__(self, width: float, height: float):
        self.figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        self.axes = self.figure.add_axes((0, 0, 1, 1), frameon=False, xticks=[], yticks=[])
        self.axes.set(xlim=(0, width), ylim=(height, 0))

    def text(self, x: float, y: float, words: str, size: float = BODY, **style: Any) -> None:
        """From ``x`` on or, with ``ha``, before or around it; ``y`` is the middle of the line."""
        style = {"color": GREY, "va": "center_baseline"} | style
        self.axes.text(x, y, words, size=size, **style)

    def lines(self, x: float, y: float, lines: list[str], size: float = BODY, **style: Any) -> None:
        """One below the other, around ``y``."""
        first = y - (len(lines) - 1) / 2 * LINE * size
        for i, words in enumerate(lines):
            self.text(x, first + i * LINE * size, words, size, **style)

    def panel(
        self,
        *place: float,
        face: str = "none",
        edge: str = "none",
        alpha: float | None = None,
        corner: float = 4,
    ) -> None:
        """A rectangle at ``x``, ``y`` of a width and a height, without text."""
        x, y, width, height = place
        shape = f"round,pad=0,rounding_size={corner}"
        style = {"facecolor": face, "edgecolor": edge, "alpha": alpha, "boxstyle": shape}
        self.axes.add_patch(FancyBboxPatch((x, y), width, height, **style))

    def box(self, *place: float, title: str, lines: list[str], colour: str, tag: str = "") -> None:
        """A filled box with a title, a tag opposite to it, and lines of text."""
        x, y, width, height = place
        self.panel(*place, face=colour)
        top = y + (height - LINE * (TITLE + SMALL * len(lines))) / 2 + LINE * TITLE / 2
        self.text(x + 8, top, title, TITLE, color=WHITE, weight="bold")
        if tag:
            self.text(x + width - 8, top, tag, BODY, color=WHITE, style="italic", ha="right")
        for i, words in enumerate(lines):
            below = top + LINE * (TITLE / 2 + SMALL * (i + 0.5))
            self.text(x + 8, below, words, SMALL, color=WHITE)

    def line(self, x: tuple[float, float], y: tuple[float, float], **style: Any) -> None:
        self.axes.add_line(Line2D(x, y, **({"color": GREY, "linewidth": 1} | style)))

    def arrow(self, x: float, begin: float, end: float) -> None:
        """Down, or up."""
        style = {"arrowstyle": "-|>", "mutation_scale": 10, "shrinkA": 0, "shrinkB": 0}
        ends = {"posA": (x, begin), "posB": (x, end)}
        self.axes.add_patch(FancyArrowPatch(**ends, color=GREY, linewidth=1.2, **style))

    def dot(self, x: float, y: float, colour: str) -> None:
        self.axes.add_line(Line2D([x], [y], marker="o", markersize=6, color=colour))

    def write(self, path: Path) -> None:
        text = io.StringIO()
        with matplotlib.rc_context(SETTINGS | {"svg.hashsalt": path.name}):
            self.figure.savefig(text, format="svg", transparent=True, metadata=UNNAMED)
        # Whoever looks at it may not have the font that it was laid out for, a wide one.
        svg = text.getvalue().replace("'DejaVu Sans', sans-serif", "sans-serif")
        path.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", "utf-8")
