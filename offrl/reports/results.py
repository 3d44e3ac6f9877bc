"""Results of trainings, in the form that reports are made of."""

import csv
import json
import logging
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from offrl.config.cells import short_key, task_of
from offrl.reports.run import OWN_PARTS, Run, is_run
from offrl.reports.study import (
    BEGUN,
    FAILED,
    FINISHED,
    FIRST,
    LAST,
    TABLE,
    WAITING,
    read_rows,
    read_table,
    run_of,
    write_rows,
)

log = logging.getLogger(__name__)

CSV = "report.csv"  # of a report, which can be made again of it
APART = (
    "report them apart, or give what differs another name (experiment.name, or name in the study)"
)
SUCCESS, RETURN, NORMALISED = "success rate", "return", "normalised return"
MEASURES = ("Success_Rate", "Return")  # of an evaluation; the first may be lacking


@dataclass(frozen=True)
class Measured:
    """The result of an evaluation."""

    success: float | None  #: The rate; ``None`` where none is reported.
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
    curve: list[tuple[int, float | None, float]] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)  #: That count as 0 and as 100; none: as is.
    steps: int = 0
    minutes: float = 0.0
    commit: str = ""
    versions: str = ""
    search: str = ""  #: What of its settings a search has found.
    data: str = ""  #: The fingerprint of the data.
    repeat: str = field(default="", compare=False)  #: The command that trains it.


def results_of(paths: Iterable[str | Path]) -> list[Result]:
    """The results in folders of runs, studies and reports, or of the runs and studies below, each
    once. ``FileNotFoundError`` for a folder that holds none, ``ValueError`` for trainings that
    cannot be told apart, or that no mean may hold."""
    found: list[Result] = []
    places: list[str] = []
    for path in (Path(path).expanduser() for path in paths):
        own = _found(path)
        if not own:
            raise FileNotFoundError(
                f"{path}: neither a run folder (config-*.json) nor a study ({TABLE}) nor a report "
                f"({CSV}), and no run or study is below it"
            )
        found += own
        places += [result.repeat or str(path) for result in own]
    results: dict[tuple[str, str, int], tuple[Result, str]] = {}
    for both in zip(_called_apart(found), places, strict=True):
        result, place = both
        of = (result.algorithm, result.task, result.seed)
        first, first_place = results.setdefault(of, both)
        if first != result and first.status == result.status == FINISHED:
            raise ValueError(
                f"two different trainings are both of {result.algorithm} on {result.task} with "
                f"seed {result.seed}: {first_place} and {place}; {APART}"
            )
        if (result.status == FINISHED, result.steps) > (first.status == FINISHED, first.steps):
            results[of] = both  # the other one is known less well
    _refuse_unlike(results.values())
    return [result for result, _ in results.values()]


def _refuse_unlike(results: Iterable[tuple[Result, str]]) -> None:
    """Trainings of which a mean is taken have the same data, and about as many steps."""
    firsts: dict[tuple[str, str], tuple[Result, str]] = {}
    for both in results:
        other, place = both
        if other.status != FINISHED:
            continue
        one, first_place = firsts.setdefault((other.algorithm, other.task), both)
        what = "data" if one.data != other.data else "steps"
        was, now = getattr(one, what), getattr(other, what)
        if was and now and (what == "data" or not 0.9 < was / now < 1.1):
            raise ValueError(
                f"trainings of {one.algorithm} on {one.task} differ in their {what} ({was} and "
                f"{now}): with seed {one.seed} {first_place}, with seed {other.seed} {place}; "
                f"{APART}"
            )


def _called_apart(results: Sequence[Result]) -> list[Result]:
    """Tasks that are paths of data, by as much of their ends as tells them from other data."""
    paths = {(r.task, r.data) for r in results if Path(r.task).is_absolute()}

    def name(task: str, data: str) -> str:
        parts = Path(task).parts
        ends = ("/".join(parts[-length:]) for length in range(1, len(parts)))
        others = [path for path, other in paths if other != data]
        return next((e for e in ends if not any(o.endswith(f"/{e}") for o in others)), task)

    names = {of: name(*of) for of in paths}
    return [replace(r, task=names.get((r.task, r.data), r.task)) for r in results]


def _found(path: Path) -> list[Result]:
    if (path / CSV).is_file():
        return _read(path / CSV)
    if (path / TABLE).is_file():
        return [_of_cell(path, row) for row in read_table(path)]
    if is_run(path):
        return [_of_its_study(path) or _of_run(path)]
    studies = [table.parent for table in sorted(path.glob(f"**/{TABLE}")) if table.is_file()]
    runs = sorted({config.parent for config in path.glob("**/config-*.json")})
    runs = [run for run in runs if not run.name.startswith(".")]  # which is being made
    runs = [run for run in runs if not any(study in run.parents for study in studies)]
    unknown = [run for run in runs if Run(run, last=True).is_of_own_parts]
    for run in unknown:
        log.warning(f"{run} is left out: {OWN_PARTS}")
    found = (*studies, *(run for run in runs if run not in unknown))
    return [result for folder in found for result in _found(folder)]


def _of_cell(study: Path, row: Mapping[str, str]) -> Result:
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
    if run := run_of(study / row["cell"]):  # which may have gone on since the table was written
        return _of_run(run, **known)
    return Result(**{"task": "", "status": WAITING, **known})


def _of_its_study(path: Path) -> Result | None:
    """A run by itself, as the study calls it that began it, if one did."""
    cell = path.resolve().parent
    if not (cell.parent / TABLE).is_file() or run_of(cell) != path.resolve():
        return None
    rows = [row for row in read_table(cell.parent) if row["cell"] == cell.name]
    return _of_cell(cell.parent, rows[0]) if rows else None


def _of_run(path: Path, **known: Any) -> Result:
    run = Run(path)
    if run.num_damaged:
        log.warning(f"{path}/metrics.jsonl: {run.num_damaged} damaged lines are left out")
    if run.is_of_own_parts:
        raise ValueError(f"{path}: {OWN_PARTS}")
    run.check_config("experiment.name", "train.seed")
    config = run.config
    data = [entry["path"] for entry in config["train"].get("data") or []]
    is_path = len(data) == 1 and not config["experiment"].get("env")
    packages = run.provenance.get("packages", {})
    is_whole = run.is_finished  # also one that had failed, and was gone on with
    options = ["--config", str(run.config_file)] if is_whole else ["--resume", str(path)]
    found: dict[str, Any] = {
        "algorithm": config["experiment"]["name"],
        "task": str(Path(data[0]).absolute().with_suffix("")) if is_path else task_of(config),
        "seed": config["train"]["seed"],
        "status": BEGUN,
        "repeat": shlex.join(["offrl", "train", *options]),
        **known,
    }
    if is_whole:
        found |= {"status": FINISHED, "why": ""}
    evaluations = run.evaluations
    last = run.logs("test_last") or (evaluations[-1]["logs"] if evaluations else {})
    if is_whole and not last:
        found["why"] = f"{path}/metrics.jsonl has no evaluation"
    return Result(
        **found,
        final=_measured(last) if is_whole else None,
        best=_measured(run.logs("test")) if is_whole else None,
        curve=[(r["step"], *map(r["logs"].get, MEASURES)) for r in evaluations],
        steps=run.steps,
        minutes=round(run.seconds / 60, 3),
        commit=run.provenance.get("git_commit", ""),
        versions=", ".join(f"{k} {v}" for k, v in packages.items() if v != "none"),
        data=run.provenance.get("dataset_fingerprint", ""),
    )


def _measured(logs: Mapping[str, float]) -> Measured | None:
    if not {"Return", "n"} <= logs.keys():
        return None
    return Measured(*map(logs.get, MEASURES), int(logs["n"]))


def write_results(path: Path, results: Iterable[Result]) -> None:
    """Write results as CSV, a row for each."""
    write_rows(path, map(asdict, results), [f.name for f in fields(Result)])


def _read(path: Path) -> list[Result]:
    names = [f.name for f in fields(Result)]
    try:
        return [_of_row(row) for row in read_rows(path, names)]
    except (ValueError, TypeError, csv.Error) as error:
        raise ValueError(f"{path} is damaged, or not from offrl report: {error}") from None


def _of_row(row: Mapping[str, str]) -> Result:
    texts = {f.name for f in fields(Result) if f.type is str}
    known: dict[str, Any] = {k: v if k in texts else json.loads(v) for k, v in row.items()}
    known |= {k: Measured(**known[k]) for k in ("final", "best") if known[k]}
    known["curve"] = [(int(step), rate, float(total)) for step, rate, total in known["curve"]]
    return Result(**known)
