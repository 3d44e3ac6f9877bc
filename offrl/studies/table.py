"""Reads the state of a study's cells, and writes ``study.csv`` with a row for each."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from offrl.reports.results import BEGUN, FAILED, FINISHED, WAITING, read_rows, write_rows
from offrl.reports.run import Run, runs_in
from offrl.studies.cells import Cell

TABLE = "study.csv"
CONFIG = "config.json"  # a cell's config when it was begun
WHY = "failed.txt"  # reason why a cell's training failed
FIRST = ("cell", "config", "algorithm", "dataset", "seed")
MEASURED = ("Success_Rate", "Success_Rate_Low", "Success_Rate_High", "Return", "Horizon", "n")
TESTS = {"test": "best", "test_last": "last"}  # records of final tests, and their policies
LAST = (
    *("status", "why", "steps", "of_steps"),
    *(f"{which}_{name.lower()}" for which in TESTS.values() for name in MEASURED),
    *("minutes", "returns", "search", "run", "command"),
)


def run_of(folder: Path) -> Path | None:
    """Find the run folder of a begun cell: the first finished one, else the newest."""
    runs = runs_in(folder)
    if len(runs) < 2:
        return runs[0] if runs else None
    return next((run for run in runs if Run(run).is_finished), runs[-1])


def read_run(folder: Path, last: bool = False) -> Run | None:
    """Read the run of a cell, if it has begun; with ``last`` only its last few records."""
    path = run_of(folder)
    return Run(path, last) if path else None


def row_of(cell: Cell, output: Path) -> dict[str, Any]:
    """Make the row of a cell in ``study.csv``."""
    row: dict[str, Any] = dict.fromkeys((*FIRST, *LAST), "")
    row |= cell.settings  # later keys take precedence
    row |= {"cell": cell.name, "config": cell.config, "dataset": cell.dataset, "seed": cell.seed}
    row |= {"algorithm": cell.content.get("algo_name", ""), "returns": list(cell.returns)}
    row |= {"search": cell.search, "status": WAITING}
    noted = output / cell.name / WHY
    if run := read_run(noted.parent):
        row["algorithm"] = run.config["algo_name"]
        row["steps"], row["of_steps"] = run.done_of
        row["run"] = str(run.path.relative_to(output))
        row["status"] = FINISHED if run.is_finished else BEGUN
        row["minutes"] = round(run.seconds / 60, 2)
        for kind, which in TESTS.items():
            logs = run.logs(kind)
            row |= {f"{which}_{name.lower()}": logs.get(name, "") for name in MEASURED}
    if row["status"] != FINISHED:
        why = noted.read_text(encoding="utf-8").strip() if noted.is_file() else ""
        if why := why or cell.problem:
            row |= {"status": FAILED, "why": why}
    return row


def result_line(cell: Cell, output: Path) -> str:
    """Write a line about the result of a finished cell."""
    row = row_of(cell, output)
    known = ((x, row[f"{x}_success_rate"], row[f"{x}_return"]) for x in reversed(TESTS.values()))
    tests = [(which, rate, total) for which, rate, total in known if total != ""]
    if any(rate != "" for _, rate, _ in tests):
        words = [f"{which} {rate or 0:.2f} (return {total:.2f})" for which, rate, total in tests]
        return f"success rate of the {', of the '.join(words)}"
    words = [f"{which} {total:.2f}" for which, _, total in tests]
    return f"return of the {', of the '.join(words)}" if tests else "finished"


def write_table(output: Path, cells: Iterable[Cell], command: str) -> list[dict[str, Any]]:
    """Write ``study.csv``, and return its rows; ``command`` trains the cells."""
    rows = [row_of(cell, output) | {"command": command} for cell in cells]
    names = dict.fromkeys(name for row in rows for name in row)
    settings = [name for name in names if name not in (*FIRST, *LAST)]
    write_rows(output / TABLE, rows, [*FIRST, *settings, *LAST])
    return rows


def read_table(output: Path) -> list[dict[str, str]]:
    """Read the rows of ``study.csv``."""
    return read_rows(output / TABLE, [*FIRST, *LAST])
