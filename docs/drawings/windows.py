"""The windows over one short demonstration, and what padding repeats; offrl's own code computes
them."""

from __future__ import annotations

import numpy as np
import torch
from canvas import BLUE, BROWN, GREY, PURPLE, SMALL, TITLE, WHITE, Canvas

from offrl.data.steps import StepStore
from offrl.data.windows import Window, WindowDataset

LENGTH, FRAME_STACK, SEQ_LENGTH = 6, 3, 3
WIDTH, CELL, ROW, LEFT, TOP, KEPT = 540, 44, 32, 90, 124, 492


def windows(pad: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """The steps that windows see and whether these are within the demonstration, ``[B, T]``."""
    store = StepStore([LENGTH])
    store.fill({"step": np.arange(LENGTH)})
    window = Window(FRAME_STACK, SEQ_LENGTH, pad_frame_stack=pad, pad_seq_length=pad)
    dataset = WindowDataset(store, [], ["step"], window, get_pad_mask=True, load_next_obs=False)
    batch = dataset.get_batch(torch.arange(len(dataset)))
    return batch["step"].numpy(), batch["pad_mask"][..., 0].numpy()


def draw() -> Canvas:
    steps, pad_mask = windows()
    whole = {tuple(row) for row in windows(pad=False)[0]}
    canvas = Canvas(WIDTH, TOP + ROW * len(steps) + 34)
    _draw_demonstration(canvas)
    _draw_head(canvas)
    masks = LEFT + CELL * steps.shape[1] + 28
    for i, (row, inside) in enumerate(zip(steps, pad_mask, strict=True)):
        y = TOP + ROW * i
        canvas.text(LEFT - 12, y + ROW / 2, f"window {i}", ha="right")
        for t, (step, is_inside) in enumerate(zip(row, inside, strict=True)):
            colour = BLUE if is_inside else BROWN if t < FRAME_STACK else PURPLE
            _draw_cell(canvas, LEFT + CELL * t, y, str(step), colour)
        for t, is_inside in enumerate(inside):
            canvas.text(masks + 16 * t, y + ROW / 2, str(int(is_inside)), ha="center")
        kept = "yes" if tuple(row) in whole else "no"
        canvas.text(KEPT, y + ROW / 2, kept, ha="center")
    current = LEFT + CELL * (FRAME_STACK - 1)
    canvas.panel(current - 1, TOP - 2, CELL + 2, ROW * len(steps) + 4, edge=GREY, corner=5)
    canvas.text(current + CELL / 2, TOP + ROW * len(steps) + 14, "current step", ha="center")
    return canvas


def _draw_cell(canvas: Canvas, x: float, y: float, words: str, colour: str) -> None:
    canvas.panel(x + 2, y + 2, CELL - 4, ROW - 4, face=colour)
    canvas.text(x + CELL / 2, y + ROW / 2, words, TITLE, color=WHITE, ha="center", weight="bold")


def _draw_demonstration(canvas: Canvas) -> None:
    """And what the colours mean."""
    canvas.text(LEFT - 12, 17, "demonstration", ha="right")
    for step in range(LENGTH):
        _draw_cell(canvas, LEFT + CELL * step, 2, str(step), BLUE)
    meanings = {
        BLUE: "a step",
        BROWN: "the first step, repeated",
        PURPLE: "the last step, repeated",
    }
    x = LEFT + 2
    for colour, words in meanings.items():
        canvas.panel(x, 45, 18, 12, face=colour, corner=3)
        canvas.text(x + 24, 51, words, SMALL)
        x += 66 if colour == BLUE else 150


def _draw_head(canvas: Canvas) -> None:
    """What the columns are, above brackets."""
    middle, right = LEFT + CELL * (FRAME_STACK - 1), LEFT + CELL * (FRAME_STACK + SEQ_LENGTH - 1)
    parts = {
        (LEFT, middle): ["frame_stack − 1", f"= {FRAME_STACK - 1} earlier steps"],
        (middle, right): ["seq_length", f"= {SEQ_LENGTH} steps"],
    }
    for (begin, end), lines in parts.items():
        canvas.lines((begin + end) / 2, TOP - 28, lines, SMALL, ha="center")
        canvas.line((begin + 3, end - 3), (TOP - 9, TOP - 9), linewidth=1.5)
    masks = right + 28 + 8 * (FRAME_STACK + SEQ_LENGTH - 2)
    canvas.text(masks, TOP - 22, "pad_mask", SMALL, ha="center")
    canvas.lines(KEPT, TOP - 28, ["kept without", "padding"], SMALL, ha="center")
