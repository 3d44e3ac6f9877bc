"""The pictures of a report."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from offrl.outputs import whole_file
from offrl.reports.results import FINISHED, SUCCESS, Outcome
from offrl.reports.scores import Interval, Scores

COLUMNS = 3  # panels in a row
PANEL = (4.2, 3.6)  # inches
NAME = 36  # characters of a line of an algorithm's name


def write_figures(scores: Scores, folder: Path) -> dict[str, str]:
    """Write the pictures for which there is data, and return their captions by file names."""
    drawn = {
        "curves.png": (_curves, any(r.curve for r in scores.results), CURVES),
        "scores.png": (_final_scores, any(r.final for r in scores.results), FINAL),
        "aggregates.png": (_aggregates, scores.can_be_averaged, AGGREGATES),
        "profiles.png": (_profiles, scores.can_be_averaged, PROFILES),
        "improvement.png": (_improvement, len(scores.ranked) > 1, IMPROVEMENT),
        "time.png": (_time, any(r.minutes for r in scores.results if r.final), TIME),
    }
    for name, (draw, is_there, _) in drawn.items():
        if is_there:
            figure = draw(scores)
            with whole_file(folder / name) as partial:
                figure.savefig(partial, dpi=110)
    return {name: caption for name, (_, is_there, caption) in drawn.items() if is_there}


CURVES = (
    "Evaluations during the training: the mean over seeds, and a band from the worst seed to the "
    "best, interpolated between the steps of the evaluations. Seeds that are not finished "
    "are shown only where no seed is."
)
FINAL = (
    "The policies that the trainings ended with: a dot for each seed, and the mean with its 95 % "
    "interval over seeds (stratified bootstrap)."
)
AGGREGATES = "The trainings on all common tasks together, with 95 % intervals."
PROFILES = (
    "The share of trainings whose final score is above a threshold, with 95 % intervals: where one "
    "line is above another everywhere, that algorithm's trainings are better whatever one asks for."
)
IMPROVEMENT = (
    "The probability that a training of the row's algorithm ends with a better policy than one of "
    "the column's."
)
TIME = "Minutes of training, without evaluations: the median, and all trainings as dots."


def _figure(size: tuple[float, float]) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=size, layout="constrained")


def _panels(number: int, height: float = PANEL[1], beside: float = 0.0) -> tuple[Any, list[Any]]:
    """Make a figure with a number of panels, and with room for names beside them."""
    columns = min(number, COLUMNS)
    rows = -(-number // columns)
    figure = _figure((max(6.0, PANEL[0] * columns) + beside, height * rows))
    axes = figure.subplots(rows, columns, squeeze=False)
    for unused in axes.flat[number:]:
        unused.set_visible(False)
    return figure, list(axes.flat[:number])


def _label(name: str, width: int = NAME) -> str:
    """Format a name for a picture: break long ones into lines, and escape dollars."""
    return fill(name.replace("$", r"\$"), width, break_long_words=False)


def _row_panels(scores: Scores, number: int) -> tuple[Any, list[Any]]:
    """Make a figure with a number of panels that have a row for each algorithm."""
    names = [*map(_label, scores.algorithms)]
    lines = [line for name in names for line in name.split("\n")]
    beside = 0.08 * max(0, max(map(len, lines)) - 20)
    figure, panels = _panels(number, 1.2 + 0.28 * len(lines), beside)
    for axes in panels:
        is_left = axes.get_subplotspec().is_first_col()
        axes.set_yticks(range(len(names)), names if is_left else [""] * len(names))
        axes.set_ylim(len(names) - 0.5, -0.5)
    return figure, panels


def _colors(scores: Scores) -> dict[str, Any]:
    import matplotlib

    many = matplotlib.colormaps["tab10" if len(scores.algorithms) <= 10 else "tab20"]
    return {name: many(i % many.N) for i, name in enumerate(scores.algorithms)}


def _legend(figure: Any, lines: Mapping[str, Any]) -> None:
    """Write the names of lines below a figure. Lines are passed, because matplotlib would leave out
    names that begin with an underscore."""
    names = [_label(name, 2 * NAME) for name in lines]
    room = 11 * figure.get_figwidth()  # characters in a row
    columns = max(1, int(room / (max(map(len, names)) + 7)))
    num_lines = sum(name.count("\n") + 1 for name in names) / columns
    figure.set_figheight(figure.get_figheight() + 0.18 * max(0, num_lines - 1))
    figure.legend(lines.values(), names, loc="outside lower center", ncols=columns, frameon=False)


def _curves(scores: Scores) -> Any:
    tasks = [t for t in scores.tasks if any(r.task == t and r.curve for r in scores.results)]
    figure, panels = _panels(len(tasks))
    colors = _colors(scores)
    lines: dict[str, Any] = {}
    for axes, task in zip(panels, tasks, strict=True):
        for number, (algorithm, color) in enumerate(colors.items()):
            own = [r for r in scores.results if (r.task, r.algorithm) == (task, algorithm)]
            steps, values = _common_steps(scores, [result for result in own if result.curve])
            width = 3 - 2 * number / len(colors)  # so that coinciding curves are all visible
            form = {"color": color, "markersize": 2 + width, "linewidth": width}
            if values:
                (lines[algorithm],) = axes.plot(steps, np.mean(values, axis=0), "o-", **form)
                low, high = (f(values, axis=0) for f in (np.min, np.max))
                axes.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)
        _show_measure(axes, scores, task)
        axes.set(title=_label(task), xlabel="steps", xlim=(0, None))
    _legend(figure, lines)
    return figure


def _common_steps(scores: Scores, results: Sequence[Outcome]) -> tuple[list[int], list[np.ndarray]]:
    """Return all seeds' evaluation steps in the range that all of them cover, and each seed's
    scores there. Unfinished seeds are used only if none is finished."""
    seeds = [r for r in results if r.status == FINISHED] or results
    curves = [[(x[0], scores.number(r, *x[1:])) for x in r.curve] for r in seeds]
    first = max((curve[0][0] for curve in curves), default=0)
    last = min((curve[-1][0] for curve in curves), default=0)
    found = {step for curve in curves for step, _ in curve if first <= step <= last}
    steps = sorted(found or {first})  # one step, if no range is common
    return steps, [np.interp(steps, *np.transpose(curve)) for curve in curves]


def _show_measure(axes: Any, scores: Scores, task: str, which: str = "y") -> None:
    measure = scores.measures[task]
    axes.set(**{f"{which}label": measure})
    if measure == SUCCESS:
        axes.set(**{f"{which}lim": (-0.03, 1.03)})


def _final_scores(scores: Scores) -> Any:
    tasks = [t for t in scores.tasks if any(scores.of(a, t) for a in scores.algorithms)]
    figure, panels = _row_panels(scores, len(tasks))
    for axes, task in zip(panels, tasks, strict=True):
        _dots(axes, scores, [scores.means.get((a, task)) for a in scores.algorithms])
        for row, algorithm in enumerate(scores.algorithms):
            seeds = scores.of(algorithm, task)
            axes.plot(seeds, [row] * len(seeds), ".", color="0.4", markersize=4, zorder=3)
        _show_measure(axes, scores, task, "x")
        axes.set_title(_label(task))
    return figure


def _dots(axes: Any, scores: Scores, intervals: Sequence[Interval | None]) -> None:
    """Draw a row for each algorithm, with its interval."""
    for row, (color, interval) in enumerate(zip(_colors(scores).values(), intervals, strict=True)):
        if interval:
            value, low, high = interval
            axes.plot([low, high], [row, row], color=color, linewidth=5, alpha=0.5)
            axes.plot(value, row, "|", color=color, markersize=14, markeredgewidth=3)
    axes.grid(axis="x", alpha=0.3)


def _aggregates(scores: Scores) -> Any:
    aggregates = scores.aggregates
    names = list(next(iter(aggregates.values())))
    figure, panels = _row_panels(scores, len(names))
    for axes, name in zip(panels, names, strict=True):
        _dots(axes, scores, [aggregates.get(a, {}).get(name) for a in scores.algorithms])
        axes.set(title=name, xlabel=scores.measures[scores.common[0]])
    return figure


def _profiles(scores: Scores) -> Any:
    figure, [axes] = _panels(1)
    every = np.concatenate([scores.matrix(a).ravel() for a in scores.compared])
    measure = scores.measures[scores.common[0]]
    low, high = (0.0, 1.0) if measure == SUCCESS else (every.min(), every.max())
    thresholds = np.linspace(low, high, 101)
    colors, lines = _colors(scores), {}
    for algorithm in scores.compared:
        color = colors[algorithm]
        share, below, above = scores.profile(algorithm, thresholds)
        (lines[algorithm],) = axes.plot(thresholds, share, color=color)
        axes.fill_between(thresholds, below, above, color=color, alpha=0.12, linewidth=0)
    axes.set(xlabel=f"final {measure} above", ylabel="share of trainings", ylim=(-0.03, 1.03))
    _legend(figure, lines)
    return figure


def _improvement(scores: Scores) -> Any:
    names, table = [*map(_label, scores.ranked)], scores.pairs()
    most_lines = 1 + max(name.count("\n") for name in names)
    side = 2.2 + max(0.5, 0.22 * most_lines) * len(names)
    figure = _figure((max(6.0, side + 1.5), side))
    axes = figure.subplots()
    image = axes.imshow(table, cmap="RdBu", vmin=0, vmax=1)
    for (row, column), value in np.ndenumerate(table):
        if row != column:
            color = "white" if abs(value - 0.5) > 0.3 else "black"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=color, size=8)
    turned = {"rotation": 40, "ha": "right"} if most_lines == 1 else {"rotation": 90}
    axes.set_xticks(range(len(names)), names, **turned)
    axes.set_yticks(range(len(names)), names)
    figure.colorbar(image, label="P(row is better)")
    return figure


def _time(scores: Scores) -> Any:
    figure, [axes] = _row_panels(scores, 1)
    for row, (algorithm, color) in enumerate(_colors(scores).items()):
        minutes = [r.minutes for r in scores.results if r.algorithm == algorithm and r.final]
        if minutes:
            axes.barh(row, np.median(minutes), color=color, alpha=0.5)
            axes.plot(minutes, [row] * len(minutes), ".", color="0.3", markersize=4)
    axes.set_xlabel("minutes of training")
    return figure
