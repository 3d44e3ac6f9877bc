"""Results of trainings, as data for reports."""

import csv
import json
import logging
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from offrl.outputs import whole_file
from offrl.reports.run import OWN_PARTS, Run, task_of

log = logging.getLogger(__name__)

CSV = "report.csv"  # a report's data, from which it can be made again
APART = (
    "report them apart, or give what differs another name (experiment.name, or name in the study)"
)
FINISHED, FAILED, BEGUN, WAITING = "finished", "failed", "begun", "waiting"
SUCCESS, RETURN, NORMALISED = "success rate", "return", "normalised return"


@dataclass(frozen=True)
class Measurement:
    """The result of an evaluation."""

    success: float | None  #: The rate; ``None`` if not reported.
    total: float  #: The mean return.
    n: int  #: The number of episodes.


@dataclass(frozen=True)
class Outcome:
    """A training and its result, or the reason why there is none."""

    algorithm: str
    task: str
    seed: int
    status: str = FINISHED
    why: str = ""
    final: Measurement | None = None  #: That of the last policy.
    best: Measurement | None = None  #: That of the best checkpoint.
    #: Evaluations during the training, ``(step, success rate, return)``.
    curve: list[tuple[int, float | None, float]] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)  #: Those that count as 0 and 100.
    steps: int = 0
    minutes: float = 0.0
    commit: str = ""
    versions: str = ""
    search: str = ""  #: The settings that a search has found.
    data: str = ""  #: The fingerprint of the data.
    repeat: str = field(default="", compare=False)  #: The command that trains it.


def each_once(found: Sequence[tuple[Outcome, str]]) -> list[Outcome]:
    """Keep one result of each training: the finished one, or that with more steps.

    found: results, each with its place, for messages. Raises ``ValueError`` for different trainings
        that are indistinguishable, or that would be averaged although they differ.
    """
    results: dict[tuple[str, str, int], tuple[Outcome, str]] = {}
    named = _with_distinct_names([result for result, _ in found])
    for both in zip(named, (place for _, place in found), strict=True):
        result, place = both
        of = (result.algorithm, result.task, result.seed)
        first, first_place = results.setdefault(of, both)
        if first != result and first.status == result.status == FINISHED:
            raise ValueError(
                f"two different trainings are both of {result.algorithm} on {result.task} with "
                f"seed {result.seed}: {first_place} and {place}; {APART}"
            )
        if (result.status == FINISHED, result.steps) > (first.status == FINISHED, first.steps):
            results[of] = both  # the other one has less data
    _refuse_unlike(results.values())
    return [result for result, _ in results.values()]


def _refuse_unlike(results: Iterable[tuple[Outcome, str]]) -> None:
    """Raise ``ValueError`` unless trainings to be averaged have the same data and length."""
    firsts: dict[tuple[str, str], tuple[Outcome, str]] = {}
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


def _with_distinct_names(results: Sequence[Outcome]) -> list[Outcome]:
    """Shorten tasks that are paths of data to ends that are still distinct."""
    paths = {(r.task, r.data) for r in results if Path(r.task).is_absolute()}

    def name(task: str, data: str) -> str:
        parts = Path(task).parts
        ends = ("/".join(parts[-length:]) for length in range(1, len(parts)))
        others = [path for path, other in paths if other != data]
        return next((e for e in ends if not any(o.endswith(f"/{e}") for o in others)), task)

    names = {of: name(*of) for of in paths}
    return [replace(r, task=names.get((r.task, r.data), r.task)) for r in results]


def run_result(path: Path, **known: Any) -> Outcome:
    """Read the result of the training in a run folder; ``known`` fields take precedence."""
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
    is_whole = run.is_finished  # also after a failure and a resume
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
    return Outcome(
        **found,
        final=_measured(last) if is_whole else None,
        best=_measured(run.logs("test")) if is_whole else None,
        curve=[
            (r["step"], r["logs"].get("Success_Rate"), r["logs"]["Return"]) for r in evaluations
        ],
        steps=run.steps,
        minutes=round(run.seconds / 60, 3),
        commit=run.provenance.get("git_commit", ""),
        versions=", ".join(f"{k} {v}" for k, v in packages.items() if v != "none"),
        data=run.provenance.get("dataset_fingerprint", ""),
    )


def _measured(logs: Mapping[str, float]) -> Measurement | None:
    if not {"Return", "n"} <= logs.keys():
        return None
    return Measurement(logs.get("Success_Rate"), logs["Return"], int(logs["n"]))


def write_results(path: Path, results: Iterable[Outcome]) -> None:
    """Write results as CSV, a row for each."""
    write_rows(path, map(asdict, results), [f.name for f in fields(Outcome)])


def read_results(path: Path) -> list[Outcome]:
    """Read the results in a CSV file that ``write_results`` wrote."""
    texts = {f.name for f in fields(Outcome) if f.type is str}
    found = []
    try:
        for row in read_rows(path, [f.name for f in fields(Outcome)]):
            known: dict[str, Any] = {k: v if k in texts else json.loads(v) for k, v in row.items()}
            known |= {k: Measurement(**known[k]) for k in ("final", "best") if known[k]}
            points = known["curve"]
            known["curve"] = [(int(step), rate, float(total)) for step, rate, total in points]
            found.append(Outcome(**known))
    except (ValueError, TypeError, csv.Error) as error:
        raise ValueError(f"{path} is damaged, or not from offrl report: {error}") from None
    return found


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Write a CSV file; values other than text and numbers become JSON."""
    with whole_file(path) as partial, open(partial, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, columns)
        table.writeheader()
        plain = (str, int, float)
        table.writerows(
            {k: v if isinstance(v, plain) else json.dumps(v) for k, v in row.items()}
            for row in rows
        )


def read_rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Read the rows of a CSV file. Raises ``ValueError`` if it lacks any of the ``columns``."""
    csv.field_size_limit(sys.maxsize)  # curves are long fields
    with open(path, newline="", encoding="utf-8") as file:
        table = csv.DictReader(file, restval="")
        rows = list(table)
    if missing := [name for name in columns if name not in (table.fieldnames or ())]:
        raise ValueError(f"{path} lacks the columns {', '.join(missing)}")
    return rows
