"""What became of a study: a row for each of its cells, ``study.csv``."""

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from offrl.config.files import read_config_file
from offrl.config.study import Cell
from offrl.outputs import whole_file
from offrl.reports.records import read_records
from offrl.reports.run import is_run

TABLE = "study.csv"
CONFIG = "config.json"  # of a cell, as it was begun
WHY = "failed.txt"  # of a cell: why its training ended
FINISHED, FAILED, BEGUN, WAITING = "finished", "failed", "begun", "waiting"
FIRST = ("cell", "config", "algorithm", "dataset", "seed")
MEASURED = ("Success_Rate", "Success_Rate_Low", "Success_Rate_High", "Return", "Horizon", "n")
TESTS = {"test": "best", "test_last": "last"}  # the records of final tests, and of which policy
LAST = (
    *("status", "why", "steps", "of_steps"),
    *(f"{which}_{name.lower()}" for which in TESTS.values() for name in MEASURED),
    *("minutes", "returns", "run"),
)


def run_of(folder: Path) -> Path | None:
    """The run folder of a cell, if it has begun."""
    return next((path for path in sorted(folder.glob("[!.]*")) if is_run(path)), None)


def is_finished(run: Path) -> bool:
    """Whether a training has come to its end, its final test included."""
    return _has_ended(*_read(run))


def _has_ended(config: Mapping[str, Any], records: list[dict[str, Any]]) -> bool:
    rollout = config["experiment"]["rollout"]
    if rollout["enabled"] and any(r["type"] == "rollout" for r in records):
        wanted = {"test", *(["test_last"] if rollout.get("test_last") else [])}
        return wanted <= {r["type"] for r in records if not r["logs"].get("Crashed")}
    done, of = _done(config, records)  # of what is not evaluated, such as planners
    return done >= of


def share_done(run: Path) -> float:
    """How much of a training is done, 0 to 1, by the last records of its log."""
    done, wanted = _done(_config(run), read_records(run / "metrics.jsonl", last=True)[0])
    return min(1.0, done / wanted)


def _read(run: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    return _config(run), read_records(run / "metrics.jsonl")[0]


def _config(run: Path) -> dict[str, Any]:
    return read_config_file(sorted(run.glob("config-*.json"))[0])


def _done(config: Mapping[str, Any], records: list[dict[str, Any]]) -> tuple[int, int]:
    """How many steps of how many, or epochs, where these are whole passes over the data."""
    train, per_epoch = config["train"], config["experiment"]["epoch_every_n_steps"]
    key = "step" if train.get("num_steps") or per_epoch else "epoch"
    wanted = train.get("num_steps") or train["num_epochs"] * (per_epoch or 1)
    return max((record[key] for record in records), default=0), wanted


def row_of(cell: Cell, output: Path) -> dict[str, Any]:
    """What is known of a cell."""
    row: dict[str, Any] = dict.fromkeys((*FIRST, *cell.settings, *LAST), "")
    row |= {"cell": cell.name, "config": cell.config, "dataset": cell.dataset, "seed": cell.seed}
    row["returns"] = list(cell.returns)
    row |= cell.settings | {"algorithm": cell.content.get("algo_name", ""), "status": WAITING}
    folder = output / cell.name
    if run := run_of(folder):
        config, records = _read(run)
        row["steps"], row["of_steps"] = _done(config, records)
        row["run"] = str(run.relative_to(output))
        row["status"] = FINISHED if _has_ended(config, records) else BEGUN
        seconds = [r["logs"].get("Train_Time", 0.0) for r in records if r["type"] == "epoch"]
        row["minutes"] = round(sum(seconds) / 60, 2)
        for record in records:
            if which := TESTS.get(record["type"]):
                logs = record["logs"]
                row |= {f"{which}_{name.lower()}": logs.get(name, "") for name in MEASURED}
    why = cell.problem or _text(folder / WHY)
    return row | ({"status": FAILED, "why": why} if why else {})


def result_line(cell: Cell, output: Path) -> str:
    """What a finished cell reached, in words."""
    row = row_of(cell, output)
    rates = [
        f"{which} {row[f'{which}_success_rate']:.2f} (return {row[f'{which}_return']:.1f})"
        for which in reversed(TESTS.values())
        if row[f"{which}_success_rate"] != ""
    ]
    return f"success rate of the {', of the '.join(rates)}" if rates else "finished"


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


def write_table(output: Path, cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """Write ``study.csv``, and give its rows."""
    rows = [row_of(cell, output) for cell in cells]
    names = dict.fromkeys(name for row in rows for name in row)
    settings = [name for name in names if name not in (*FIRST, *LAST)]
    with whole_file(output / TABLE) as partial, open(partial, "w", newline="") as file:
        table = csv.DictWriter(file, [*FIRST, *settings, *LAST])
        table.writeheader()
        table.writerows({k: _plain(v) for k, v in row.items()} for row in rows)
    return rows


def read_table(output: Path) -> list[dict[str, str]]:
    """The rows of ``study.csv``."""
    with open(output / TABLE, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float)) else json.dumps(value)
