"""Finds results of trainings in folders of runs, studies and reports."""

import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from offrl.reports.results import CSV, FAILED, WAITING, Outcome, each_once, read_results, run_result
from offrl.reports.run import OWN_PARTS, Run, is_run
from offrl.studies.table import FIRST, LAST, TABLE, read_table, run_of
from offrl.tree import short_key

log = logging.getLogger(__name__)


def results_of(paths: Iterable[str | Path]) -> list[Outcome]:
    """Read the results in folders of runs, studies and reports, or of the runs and studies below.

    Each result is listed once. Raises ``FileNotFoundError`` for a folder without results, and
    ``ValueError`` for trainings that are indistinguishable or cannot be averaged.
    """
    found: list[tuple[Outcome, str]] = []
    for path in (Path(path).expanduser() for path in paths):
        own = _read_folder(path)
        if not own:
            raise FileNotFoundError(
                f"{path}: neither a run folder (config-*.json) nor a study ({TABLE}) nor a report "
                f"({CSV}), and no run or study is below it"
            )
        found += [(result, result.repeat or str(path)) for result in own]
    return each_once(found)


def _read_folder(path: Path) -> list[Outcome]:
    if (path / CSV).is_file():
        return read_results(path / CSV)
    if (path / TABLE).is_file():
        return [_outcome_of_cell(path, row) for row in read_table(path)]
    if is_run(path):
        return [_outcome_by_study(path) or run_result(path)]
    studies = [table.parent for table in sorted(path.glob(f"**/{TABLE}")) if table.is_file()]
    runs = sorted({config.parent for config in path.glob("**/config-*.json")})
    runs = [run for run in runs if not run.name.startswith(".")]  # still being made
    runs = [run for run in runs if not any(study in run.parents for study in studies)]
    unknown = [run for run in runs if Run(run, last=True).is_of_own_parts]
    for run in unknown:
        log.warning(f"{run} is left out: {OWN_PARTS}")
    found = (*studies, *(run for run in runs if run not in unknown))
    return [result for folder in found for result in _read_folder(folder)]


def _outcome_of_cell(study: Path, row: Mapping[str, str]) -> Outcome:
    own = {k: v for k, v in row.items() if v and k not in (*FIRST, *LAST)}
    settings = [f"{short_key(k, own)} {v}" for k, v in own.items()]
    try:
        seed, returns = int(row["seed"]), json.loads(row["returns"] or "[]")
    except ValueError as error:
        raise ValueError(f"{study / TABLE} is damaged at {row['cell']}: {error}") from None
    known: dict[str, Any] = {
        "algorithm": ", ".join([row["config"], *settings]),
        "seed": seed,
        "returns": returns,
        "search": row["search"],
        "repeat": row["command"],
    }
    if row["dataset"]:
        known["task"] = row["dataset"]
    if row["status"] == FAILED:
        known |= {"status": FAILED, "why": row["why"]}
    if run := run_of(study / row["cell"]):  # it may be newer than the table
        return run_result(run, **known)
    return Outcome(**{"task": "", "status": WAITING, **known})


def _outcome_by_study(path: Path) -> Outcome | None:
    """Read the result of a single run by its name in the study that started it, if any."""
    cell = path.resolve().parent
    if not (cell.parent / TABLE).is_file() or run_of(cell) != path.resolve():
        return None
    rows = [row for row in read_table(cell.parent) if row["cell"] == cell.name]
    return _outcome_of_cell(cell.parent, rows[0]) if rows else None
