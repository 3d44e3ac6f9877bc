"""The learning curve of a run as a picture."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_learning_curve(run: Any) -> Path | None:
    """Losses and success rate over the steps, ``learning_curve-SHA8.png`` in the run folder.

    ``None`` where matplotlib is not installed.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return None

    records = defaultdict(list)
    with open(run.path / "metrics.jsonl", encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            records[record["type"]].append(record)

    figure, (losses, success) = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for kind in ("train", "valid"):
        points = [(r["step"], r["logs"]["Loss"]) for r in records[kind]]
        if points:
            losses.plot(*zip(*points, strict=True), label=kind, linewidth=1)
    losses.set(xlabel="gradient steps", ylabel="loss", title="Loss")
    losses.legend()
    if all(r["logs"]["Loss"] > 0 for r in records["train"]):
        losses.set_yscale("log")

    for kind, style in (("rollout", "o-"), ("test", "D")):
        rated = [r for r in records[kind] if "Success_Rate" in r["logs"]]
        if not rated:
            continue
        rates = [r["logs"]["Success_Rate"] for r in rated]
        below = [r["logs"]["Success_Rate"] - r["logs"]["Success_Rate_Low"] for r in rated]
        above = [r["logs"]["Success_Rate_High"] - r["logs"]["Success_Rate"] for r in rated]
        label = "during training" if kind == "rollout" else "final test"
        success.errorbar(
            [r["step"] for r in rated], rates, [below, above], fmt=style, capsize=3, label=label
        )
        success.legend()
    success.set(
        xlabel="gradient steps",
        ylabel="success rate",
        ylim=(-0.02, 1.04),
        title="Success rate, 95 % interval",
    )
    success.set_xlim(left=0)
    _draw_returns(success, records)
    figure.suptitle(f"{run.path.parent.name}/{run.path.name}")

    path = run.path / f"learning_curve-{run.sha}.png"
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def _draw_returns(axis: Any, records: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Returns, on an axis of their own, where they say more than the success rate."""
    points = [
        (r["step"], r["logs"]["Return"], r["logs"]["Success_Rate"])
        for kind in ("rollout", "test")
        for r in records[kind]
        if "Success_Rate" in r["logs"]
    ]
    if any(abs(total - rate) > 0.01 for _, total, rate in points):
        steps, totals, _ = zip(*points, strict=True)
        returns = axis.twinx()
        returns.plot(steps, totals, "s--", color="tab:green", markersize=4)
        returns.set_ylabel("return", color="tab:green")
