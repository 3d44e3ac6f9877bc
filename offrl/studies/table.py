"""Reads what became of a study: a row for each of its cells, ``study.csv``."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from offrl.reports.results import BEGUN, FAILED, FINISHED, WAITING, read_rows, write_rows
from offrl.reports.run import Run, is_run
from offrl.studies.cells import Cell

TABLE = "study.csv"
CONFIG = "config.json"  # of a cell, as it was begun
WHY = "failed.txt"  # of a cell: why its training ended
FIRST = ("cell", "config", "algorithm", "dataset", "seed")
MEASURED = ("Success_Rate", "Success_Rate_Low", "Success_Rate_High", "Return", "Horizon", "n")
TESTS = {"test": "best", "test_last": "last"}  # the records of final tests, and of which policy
LAST = (
    *("status", "why", "steps", "of_steps"),
    *(f"{which}_{name.lower()}" for which in TESTS.values() for name in MEASURED),
    *("minutes", "returns", "search", "run", "command"),
)


def run_of(folder: Path) -> Path | None:
    """The run folder of a cell, if it has begun. If somebody has trained it anew: the first that is
    finished, else the newest."""
    runs = [path for path in sorted(folder.glob("[!.]*")) if is_run(path)]
    if len(runs) < 2:
        return runs[0] if runs else None
    return next((run for run in runs if Run(run).is_finished), runs[-1])


def row_of(cell: Cell, output: Path) -> dict[str, Any]:
    """Give what is known of a cell."""
    row: dict[str, Any] = dict.fromkeys((*FIRST, *cell.settings, *LAST), "")
    row |= cell.settings  # of which none takes the place of what is known
    row |= {"cell": cell.name, "config": cell.config, "dataset": cell.dataset, "seed": cell.seed}
    row |= {"algorithm": cell.content.get("algo_name", ""), "returns": list(cell.returns)}
    row["search"] = cell.search
    row["status"] = WAITING
    folder = output / cell.name
    if path := run_of(folder):
        run = Run(path)
        row["algorithm"] = run.config["algo_name"]
        row["steps"], row["of_steps"] = run.done_of
        row["run"] = str(path.relative_to(output))
        row["status"] = FINISHED if run.is_finished else BEGUN
        row["minutes"] = round(run.seconds / 60, 2)
        for kind, which in TESTS.items():
            logs = run.logs(kind)
            row |= {f"{which}_{name.lower()}": logs.get(name, "") for name in MEASURED}
    why = "" if row["status"] == FINISHED else _text(folder / WHY) or cell.problem
    return row | ({"status": FAILED, "why": why} if why else {})


def result_line(cell: Cell, output: Path) -> str:
    """Give what a finished cell reached, in words."""
    row = row_of(cell, output)
    tested = [which for which in reversed(TESTS.values()) if row[f"{which}_return"] != ""]
    is_rated = any(row[f"{which}_success_rate"] != "" for which in tested)
    told = [
        f"{which} {row[f'{which}_success_rate'] or 0:.2f} (return {row[f'{which}_return']:.2f})"
        if is_rated
        else f"{which} {row[f'{which}_return']:.2f}"
        for which in tested
    ]
    what = "success rate" if is_rated else "return"
    return f"{what} of the {', of the '.join(told)}" if told else "finished"


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


def write_table(output: Path, cells: Iterable[Cell], command: str) -> list[dict[str, Any]]:
    """Write ``study.csv``, and give its rows.

    command: that trains them.
    """
    rows = [row_of(cell, output) | {"command": command} for cell in cells]
    names = dict.fromkeys(name for row in rows for name in row)
    settings = [name for name in names if name not in (*FIRST, *LAST)]
    write_rows(output / TABLE, rows, [*FIRST, *settings, *LAST])
    return rows


def read_table(output: Path) -> list[dict[str, str]]:
    """The rows of ``study.csv``."""
    return read_rows(output / TABLE, [*FIRST, *LAST])
