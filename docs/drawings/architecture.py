"""The layers of offrl, what each package is for, and the four roles."""

from __future__ import annotations

from typing import NamedTuple

from canvas import BLUE, BODY, GREY, SLATE, SMALL, Canvas


class Part(NamedTuple):
    name: str
    lines: list[str]
    role: str = ""


LAYERS: list[list[Part]] = [  # from the top to the bottom, number 0
    [
        Part("tools", ["one thin file per command of the program"]),
        Part("testing", ["what every algorithm must do"]),
    ],
    [Part("pipelines", ["trainings of a user's own parts, which a file combines"])],
    [
        Part("faces", ["agents, environments and", "roles, for scripts"]),
        Part("studies", ["many trainings: grids,", "searches, what became of them"]),
    ],
    [
        Part(
            "training",
            [
                "The loop is a generator of log records. Around it are wrappers:",
                "logger, evaluator, proxies, checkpointer, progress.",
            ],
            "Trainer",
        )
    ],
    [Part("online", ["acts and learns in rounds: agents, trainers, explorers and their Learner"])],
    [
        Part(
            "assembly",
            ["puts together what a config describes, and refuses what cannot be trained"],
        )
    ],
    [Part("checkpoint", ["what is written is read again as a policy, an environment, a training"])],
    [
        Part("evaluation", ["episodes with fixed seeds"]),
        Part("reports", ["curves, films, a page for browsers"]),
    ],
    [
        Part(
            "algos", ["networks + optimizers + one update rule:", "one file per algorithm"], "Algo"
        ),
        Part("edits", ["new files of demonstrations,", "made of others"]),
    ],
    [
        Part("data", ["files, steps, windows,", "batches; writing files"]),
        Part("envs", ["simulators, workers,", "experts that demonstrate"]),
        Part("models", ["networks:", "encoder → trunk → head"], "Model"),
    ],
    [
        Part("acting", ["an Algo at an environment:", "numpy in, numpy out"], "Agent"),
        Part("kernels", ["what is there for speed alone,", "each beside its plain form"]),
    ],
    [
        Part("config", ["typed sections"]),
        Part("registry", ["names → classes"]),
        Part("aliases", ["earlier names"]),
        Part("robomimic", ["its names, its files"]),
        Part("specs", ["what is observed"]),
        Part("normalize", ["statistics"]),
        Part("language", ["text → vectors"]),
        Part("lazy", ["PyTorch, when needed"]),
        Part("links", ["which are followed"]),
        Part("images", ["other forms of them"]),
        Part("memory", ["what is free"]),
        Part("modules", ["what may be imported"]),
        Part("tree", ["nested dicts"]),
        Part("seeding", ["all random state"]),
        Part("outputs", ["whole files or none"]),
        Part("parallel", ["one training, N processes"]),
        Part("cluster", ["the connection to Ray"]),
        Part("beside_ray", ["outlives Ray"]),
        Part("processes", ["signals, shared work"]),
        Part("video", ["films that play"]),
        Part("intervals", ["of success rates"]),
    ],
]
WIDTH, MARGIN, TOP, GAP, INSET, PER_ROW = 540, 24, 32, 18, 6, 4


def draw() -> Canvas:
    heights = [INSET + sum(_height(row) + INSET for row in _rows(layer)) for layer in LAYERS]
    canvas = Canvas(WIDTH, TOP + sum(heights) + GAP * (len(LAYERS) - 1) + 2)
    canvas.panel(MARGIN, 4, 22, 14, face=BLUE)
    canvas.text(MARGIN + 29, 11, "one of the four roles: Model, Algo, Agent, Trainer", BODY)
    y, middle = TOP, (MARGIN + WIDTH) / 2
    for number, (layer, height) in enumerate(zip(LAYERS, heights, strict=True)):
        if number > 0:
            canvas.arrow(middle, y + 2, y + GAP - 2)
            y += GAP
        canvas.panel(MARGIN, y, WIDTH - MARGIN - 1, height, edge=GREY, corner=6)
        canvas.text(8, y + height / 2, str(len(LAYERS) - 1 - number), BODY, weight="bold")
        _draw_layer(canvas, layer, y + INSET)
        y += height
    canvas.text(middle + 10, TOP + heights[0] + GAP / 2, "imports only what is below", SMALL)
    return canvas


def _rows(layer: list[Part]) -> list[list[Part]]:
    return [layer[i : i + PER_ROW] for i in range(0, len(layer), PER_ROW)]


def _height(row: list[Part]) -> float:
    return 24 + 12 * max(len(part.lines) for part in row)


def _draw_layer(canvas: Canvas, layer: list[Part], y: float) -> None:
    pitch = (WIDTH - MARGIN - 1 - INSET) / min(len(layer), PER_ROW)
    for row in _rows(layer):
        for column, (name, lines, role) in enumerate(row):
            place = (MARGIN + INSET + pitch * column, y, pitch - INSET, _height(row))
            colour = BLUE if role else SLATE
            canvas.box(*place, title=name, lines=lines, colour=colour, tag=role)
        y += _height(row) + INSET
