"""What trainings reached, in the form that reports are made of."""

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from offrl.outputs import whole_file
from offrl.reports.run import Run, is_run
from offrl.reports.study import BEGUN, CONFIG, FINISHED, FIRST, LAST, TABLE, read_table

CSV = "report.csv"  # of a report, which can be made again of it
SUCCESS, RETURN, NORMALISED = "success rate", "return", "normalised return"


@dataclass(frozen=True)
class Measured:
    """The result of an evaluation."""

    success: float
    total: float  #: The mean return.
    n: int  #: Episodes.


@dataclass(frozen=True)
class Result:
    """A training: what was trained, with what result, or why there is none."""

    algorithm: str
    task: str
    seed: int
    status: str = FINISHED
    why: str = ""
    final: Measured | None = None  #: Of the policy that the training ended with.
    best: Measured | None = None  #: Of its best checkpoint.
    #: During the training ``(step, success rate, return)``.
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)  #: That count as 0 and as 100; none: as is.
    steps: int = 0
    minutes: float = 0.0
    commit: str = ""
    versions: str = ""
    data: str = ""  #: The fingerprint of the data.
    repeat: str = ""  #: The command that trains it.


def results_of(paths: Iterable[str | Path]) -> list[Result]:
    """The results in folders of runs, of studies and of reports, or of what is below.
    ``FileNotFoundError`` for a folder that holds none."""
    results: list[Result] = []
    for path in map(Path, paths):
        path = path.expanduser()
        if (path / CSV).is_file():
            found = _read(path / CSV)
        elif (path / TABLE).is_file():
            found = [_of_cell(path, row) for row in read_table(path)]
        elif is_run(path):
            found = [_of_run(path)]
        else:
            runs = sorted({p.parent for p in path.glob("**/config-*.json")})
            found = [_of_run(run) for run in runs]
        if not found:
            raise FileNotFoundError(
                f"{path}: neither a run folder (config-*.json) nor a study ({TABLE}) nor a report "
                f"({CSV}), and nothing of that kind is below it"
            )
        results += found
    return results


def _of_cell(study: Path, row: Mapping[str, str]) -> Result:
    settings = [f"{k.rpartition('.')[2]} {v}" for k, v in row.items() if k not in (*FIRST, *LAST)]
    config = study / row["cell"] / CONFIG
    known: dict[str, Any] = {
        "algorithm": ", ".join([row["config"], *settings]),
        "task": row["dataset"],
        "seed": int(row["seed"]),
        "status": row["status"],
        "why": row["why"],
        "returns": json.loads(row.get("returns") or "[]"),
        "repeat": f"offrl train --config {config}" if config.is_file() else "",
    }
    run = study / row["run"]
    return _of_run(run, **known) if row["run"] and is_run(run) else Result(**known)


def _of_run(path: Path, **known: Any) -> Result:
    run = Run(path)
    config = run.config
    rollouts = [r for r in run.of_type("rollout") if "Success_Rate" in r["logs"]]
    data = [Path(entry["path"]).stem for entry in config["train"].get("data") or []]
    packages = run.provenance.get("packages", {})
    found: dict[str, Any] = {
        "algorithm": config["experiment"]["name"],
        "task": config["experiment"].get("env") or ", ".join(data),
        "seed": config["train"]["seed"],
        "status": FINISHED if run.is_finished else BEGUN,
        "repeat": f"offrl train --config {run.config_file}",
    }
    found |= known
    last = run.logs("test_last") or (rollouts[-1]["logs"] if rollouts else {})
    is_whole = found["status"] == FINISHED
    return Result(
        **found,
        final=_measured(last) if is_whole else None,
        best=_measured(run.logs("test")) if is_whole else None,
        curve=[(r["step"], r["logs"]["Success_Rate"], r["logs"]["Return"]) for r in rollouts],
        steps=run.steps,
        minutes=round(run.seconds / 60, 3),
        commit=run.provenance.get("git_commit", ""),
        versions=", ".join(f"{k} {v}" for k, v in packages.items() if v != "none"),
        data=run.provenance.get("dataset_fingerprint", ""),
    )


def _measured(logs: Mapping[str, float]) -> Measured | None:
    if "Success_Rate" not in logs:
        return None
    return Measured(logs["Success_Rate"], logs["Return"], int(logs["n"]))


def write_results(path: Path, results: Iterable[Result]) -> None:
    """Write results as CSV, a row for each."""
    with whole_file(path) as partial, open(partial, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, [f.name for f in fields(Result)])
        table.writeheader()
        for result in results:
            row = asdict(result)
            table.writerow({k: v if isinstance(v, str) else json.dumps(v) for k, v in row.items()})


def _read(path: Path) -> list[Result]:
    texts = {f.name for f in fields(Result) if f.type is str}
    with open(path, newline="", encoding="utf-8") as file:
        rows = [
            {k: v if k in texts else json.loads(v) for k, v in row.items()}
            for row in csv.DictReader(file)
        ]
    for row in rows:
        row |= {k: Measured(**row[k]) for k in ("final", "best") if row[k]}
        row["curve"] = [tuple(point) for point in row["curve"]]
    return [Result(**row) for row in rows]
