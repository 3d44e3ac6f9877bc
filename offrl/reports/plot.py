"""Plots of a run's learning curve, of the divergence of replayed demonstrations, and of a step."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from offrl.lazy import needed
from offrl.outputs import whole_file
from offrl.reports.records import read_records

log = logging.getLogger(__name__)

NO_CURVE = "none: see the warning, or install matplotlib (pip install 'offrl[plot]')"


def write_learning_curve(run: Any) -> Path | None:
    """Draw losses and success rates over the steps: ``learning_curve-SHA8.png`` in the run folder.

    Returns ``None`` without matplotlib, and, with a warning, if it fails: that must not end a
    training.
    """
    path = run.path / f"learning_curve-{run.sha}.png"
    try:
        with whole_file(path) as partial:
            records = defaultdict(list)
            for record in read_records(run.metrics)[0]:
                records[record["type"]].append(record)
            _draw(f"{run.path.parent.name}/{run.path.name}", records, partial)
    except ImportError:
        return None
    except Exception as error:
        log.warning(f"no learning curve: {error}")
        return None
    return path


def _draw(title: str, records: Mapping[str, list[Any]], path: Path) -> None:
    from matplotlib.figure import Figure  # pyplot is not needed

    figure = Figure(figsize=(10, 3.6))
    losses, results = figure.subplots(1, 2)
    acted = records["collect"]
    _draw_losses(losses, records)
    measured = [r["logs"] for r in (*acted, *records["rollout"], *records["test"])]
    rates = [logs["Success_Rate"] for logs in measured if "Success_Rate" in logs]
    if (measured and not rates) or (acted and not any(rates)):  # as in most of online RL
        _draw_returns(results, records)
    else:
        _draw_success(results, records)
    for axes in (losses, results):
        axes.set_xlabel("steps in the environment" if acted else "gradient steps")
    # Fixed margins, as finding the best ones takes as long as all else.
    right = 0.985 if len(figure.axes) == 2 else 0.925  # returns have an axis of their own
    figure.subplots_adjust(left=0.085, right=right, bottom=0.14, top=0.84, wspace=0.22)
    figure.suptitle(title, parse_math=False)  # names may contain dollars
    figure.savefig(path, dpi=110)


def _draw_losses(axes: Any, records: Mapping[str, list[Any]]) -> None:
    for kind in ("train", "valid"):
        _plot(axes, records[kind], "Loss", "-", kind, linewidth=1)
    axes.set(ylabel="loss", title="Loss")
    if all(r["logs"].get("Loss", 0) > 0 for r in records["train"]):
        axes.set_yscale("log")
        # Plain numbers, as powers of ten need the slow formula parser.
        low, high = axes.get_ylim()
        axes.yaxis.set(major_formatter="{x:g}", minor_formatter="{x:g}" if high < 9 * low else "")


def _draw_returns(axes: Any, records: Mapping[str, list[Any]]) -> None:
    _plot(axes, records["collect"], "Return", "-", "while acting, with exploration")
    _plot(axes, records["rollout"], "Return", "o-", "evaluation")
    _plot(axes, records["test"], "Return", "D", "final test")
    axes.set(ylabel="return", xlim=(0, None), title="Mean return")


def _plot(
    axes: Any, records: Sequence[Any], name: str, style: str, label: str, **form: Any
) -> None:
    """Draw the number ``name`` of records over their steps."""
    points = [(r["step"], r["logs"][name]) for r in records if name in r["logs"]]
    if points:
        style = "o" if style == "-" and len(points) == 1 else style  # a point makes no line
        axes.plot(*zip(*points, strict=True), style, label=label, **form)
        axes.legend()


def _draw_success(axes: Any, records: Mapping[str, list[Any]]) -> None:
    points = []
    for kind, style, label in (("rollout", "o-", "during training"), ("test", "D", "final test")):
        # A rate over only the episodes that did not crash is not comparable.
        rated = [r["logs"] | r for r in records[kind] if r["logs"]["Crashed"] == 0]
        rated = [r for r in rated if "Success_Rate" in r]
        if rated:
            rates = [r["Success_Rate"] for r in rated]
            below = [r["Success_Rate"] - r["Success_Rate_Low"] for r in rated]
            above = [r["Success_Rate_High"] - r["Success_Rate"] for r in rated]
            steps = [r["step"] for r in rated]
            axes.errorbar(steps, rates, [below, above], fmt=style, capsize=3, label=label)
            axes.legend()
        points += rated
    axes.set(
        ylabel="success rate",
        xlim=(0, None),
        ylim=(-0.02, 1.04),
        title="Success rate, 95 % interval",
    )
    # Returns, on an axis of their own, if they tell more than the success rate.
    if any(abs(r["Return"] - r["Success_Rate"]) > 0.01 for r in points):
        pairs = zip(*((r["step"], r["Return"]) for r in points), strict=True)
        returns = axes.twinx()
        returns.plot(*pairs, "s--", color="tab:green", markersize=4)
        returns.set_ylabel("return", color="tab:green")


def write_divergence(path: Path, of_demos: Mapping[str, Sequence[float]]) -> None:
    """Draw the distances of replayed from recorded states over the steps of each demonstration.
    Raises ``ImportError`` without matplotlib."""
    drawing = needed("matplotlib.figure", "plot", "no plot of the divergence")
    figure = drawing.Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for demo, values in of_demos.items():
        axes.plot(values, linewidth=1, label=demo)
    axes.set(
        xlabel="step",
        ylabel="largest difference",
        title="Recorded states and those of the replayed actions",
    )
    axes.set_yscale("symlog", linthresh=1e-9)
    if len(of_demos) <= 10:
        axes.legend(fontsize="small")
    with whole_file(path) as partial:
        figure.savefig(partial, dpi=110)


def write_profile(
    path: Path,
    title: str,
    parts: Mapping[str, float],
    median: float,
    operators: Sequence[tuple[str, float]],
) -> None:
    """Draw the milliseconds of the parts of a training step as one bar, with the ``median`` step as
    a line, and below it those of the slowest operators. Raises ``ImportError`` without
    matplotlib."""
    drawing = needed("matplotlib.figure", "plot", "no picture of the step (--output)")
    figure = drawing.Figure(figsize=(9, 2.6 + 0.24 * len(operators)), layout="constrained")
    step, slowest = figure.subplots(2, 1, height_ratios=[1.1, 0.4 + 0.24 * len(operators)])
    whole, begun = sum(parts.values()), 0.0
    for i, (name, ms) in enumerate(parts.items()):
        color = f"C{i % 10}" if i < 10 else "0.6"
        step.barh(0, ms, left=begun, color=color, label=f"{name} {ms / whole:.1%}")
        if ms > 0.07 * whole:
            step.text(begun + ms / 2, 0, name.replace(" ", "\n"), ha="center", va="center", size=8)
        begun += ms
    step.axvline(median, color="black", linestyle="--", label=f"median step {median:.3g} ms")
    step.set(xlabel="ms", yticks=[], xlim=(0, None))
    step.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small", frameon=False)
    step.set_title(title, parse_math=False)
    names, times = zip(*operators, strict=True)
    slowest.barh(names, times, color="0.5")
    slowest.invert_yaxis()
    slowest.set(xlabel="ms of a step, while the operators are recorded", title="Slowest operators")
    with whole_file(path) as partial:
        figure.savefig(partial, dpi=110)
