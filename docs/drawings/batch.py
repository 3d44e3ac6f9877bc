"""How a batch flows from a file to the numbers of the log."""

from __future__ import annotations

from canvas import BLUE, BODY, GREY, TEAL, TITLE, Canvas

# Whose steps they are; of each its name, what it holds, and what there is to say of it.
STEPS: list[tuple[str, str, list[tuple[str, str, list[str]]]]] = [
    (
        "offrl/data",
        TEAL,
        [
            (
                "HDF5 file",
                "of each demonstration: arrays [steps, ...]",
                [
                    "It is checked when it is opened. Errors",
                    "name the file, the demonstration, the key.",
                ],
            ),
            (
                "StepStore",
                "of each key: a column [N, ...] of all steps",
                [
                    "It lies on the device of the training, or is",
                    "streamed from the file if it does not fit.",
                ],
            ),
            (
                "Windows",
                "of each window: row numbers [T]",
                [
                    "They are computed and clamped to the",
                    "demonstration. No step is copied here.",
                ],
            ),
            (
                "batch",
                "of each key: a tensor [B, T, ...]",
                ["One gather per key takes the rows of", "all B windows at once."],
            ),
        ],
    ),
    (
        "the algorithm",
        BLUE,
        [
            (
                "process_batch_for_training",
                "float, channels first, normalised",
                [
                    "It chooses what the algorithm reads, and",
                    "moves that to the algorithm's device.",
                ],
            ),
            (
                "train_on_batch",
                "losses → one optimizer step per network",
                ["It calls update, which is the rule of the", "algorithm, as in its paper."],
            ),
            (
                "info",
                "0-dim tensors, the loss among them",
                ["They are averaged on the device, and", "read once per interval of the log."],
            ),
        ],
    ),
]
WIDTH, BOX, HEIGHT, GAP, INSET, HEAD = 540, 250, 42, 20, 8, 24


def draw() -> Canvas:
    heights = [HEAD + len(s) * (HEIGHT + GAP) - GAP + INSET for _, _, s in STEPS]
    canvas = Canvas(WIDTH, sum(heights) + GAP * (len(STEPS) - 1) + 4)
    y = 2.0
    for number, ((owner, colour, steps), height) in enumerate(zip(STEPS, heights, strict=True)):
        canvas.panel(1, y, WIDTH - 2, height, edge=GREY, corner=6)
        canvas.text(INSET + 2, y + HEAD / 2, owner, TITLE, weight="bold")
        top = y + HEAD
        for name, content, remarks in steps:
            is_last = number == len(STEPS) - 1 and name == steps[-1][0]
            place = (INSET, top, BOX, HEIGHT)
            canvas.box(*place, title=name, lines=[content], colour=colour)
            canvas.lines(INSET + BOX + 14, top + HEIGHT / 2, remarks, BODY)
            if not is_last:
                room = INSET + GAP + HEAD if name == steps[-1][0] else GAP
                canvas.arrow(INSET + BOX / 2, top + HEIGHT + 2, top + HEIGHT + room - 2)
            top += HEIGHT + GAP
        y += height + GAP
    return canvas
