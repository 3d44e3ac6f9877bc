"""What became of a training, from its folder alone."""

import shlex
from datetime import timedelta
from pathlib import Path
from typing import Any

from offrl.config.files import read_config_file
from offrl.reports.records import read_records

RATES = ("Success_Rate", "Success_Rate_Low", "Success_Rate_High", "n", "Return")


def is_run(path: str | Path) -> bool:
    """Whether a folder is that of a run."""
    return any(Path(path).expanduser().glob("config-*.json"))


def run_facts(path: Path) -> dict[str, Any]:
    """What was trained on what, how long, with which success, and how to do it again."""
    config_file = sorted(path.glob("config-*.json"))[0]
    config = read_config_file(config_file)
    if "alg_para" in config:
        raise ValueError(f"{path}: a run of a user's own parts; its figures are in metrics.jsonl")
    records, num_damaged = read_records(path / "metrics.jsonl")
    rollouts = [record for record in records if record["type"] == "rollout"]
    epochs = [record["epoch"] for record in records if record["type"] == "epoch"]
    tests = [record for record in records if record["type"] == "test"]
    done, wanted = max(epochs, default=0), config["train"]["num_epochs"]
    again = ["offrl", "train", "--config", str(config_file)]
    go_on = ["offrl", "train", "--resume", str(path)]
    trained = sum(r["logs"].get("Train_Time", 0.0) for r in records if r["type"] == "epoch")
    times = [record["time"] for record in records] or [0.0]
    provenance = (config.get("meta") or {}).get("provenance") or {}
    return {
        "run": str(path),
        "algorithm": config["algo_name"],
        "data": [entry["path"] for entry in config["train"].get("data") or []],
        "seed": config["train"]["seed"],
        "epochs": {"done": done, "of": wanted},
        "steps": max((record["step"] for record in records), default=0),
        "time": {
            "training": str(timedelta(seconds=round(trained))),
            "from the first record to the last": str(
                timedelta(seconds=round(times[-1] - times[0]))
            ),
        },
        "best_success": _rates(max(rollouts, key=_rank, default=None)),
        "last_success": _rates(rollouts[-1] if rollouts else None),
        "test": _rates(tests[-1] if tests else None),
        "versions": provenance,
        "repeat": shlex.join(again),
        "resume": shlex.join(go_on) if done < wanted and not tests else None,
        "wrong": [f"{path}/metrics.jsonl: {num_damaged} damaged lines"] if num_damaged else [],
        "remarks": [],
    }


def _rank(record: dict[str, Any]) -> tuple[float, float]:
    logs = record["logs"]
    return logs.get("Success_Rate", -1.0), logs.get("Return", 0.0)


def _rates(record: dict[str, Any] | None) -> dict[str, Any] | None:
    if record is None:
        return None
    rates = {name.lower(): record["logs"][name] for name in RATES if name in record["logs"]}
    return {"epoch": record["epoch"], **rates}
