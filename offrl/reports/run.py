"""What became of a training, from its folder alone."""

import shlex
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from offrl.config.files import read_config_file
from offrl.reports.records import read_records

RATES = ("Success_Rate", "Success_Rate_Low", "Success_Rate_High", "n", "Return")
OWN_PARTS = "a run of a user's own parts; its figures are in metrics.jsonl"


def is_run(path: str | Path) -> bool:
    """Whether a folder is that of a run."""
    return any(Path(path).expanduser().glob("config-*.json"))


class Run:
    """What lies in the folder of a training.

    last: to read of its log the last few records alone.
    """

    def __init__(self, path: str | Path, last: bool = False):
        self.path = Path(path).expanduser()
        self.config_file = sorted(self.path.glob("config-*.json"))[0]
        self.config = read_config_file(self.config_file)
        self.records, self.num_damaged = read_records(self.path / "metrics.jsonl", last)

    @property
    def is_of_own_parts(self) -> bool:
        """Whether it is that of a user's own parts, whose figures only they know."""
        return "alg_para" in self.config

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        """The records of a type."""
        return [record for record in self.records if record["type"] == kind]

    def logs(self, kind: str) -> dict[str, float]:
        """The numbers of the last record of a type; none, if there is no such record."""
        found = self.of_type(kind)
        return found[-1]["logs"] if found else {}

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The records of evaluations during the training, all of whose episodes were run."""
        found = self.of_type("rollout")
        return [r for r in found if "Return" in r["logs"] and not r["logs"].get("Crashed")]

    def kept_checkpoints(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """The checkpoints that are kept of epochs that were evaluated, with the records of it."""
        for record in self.evaluations:
            paths = sorted(self.path.glob(f"models/model_epoch_{record['epoch']}-*.pth"))
            yield from ((path, record) for path in paths[:1])

    @property
    def steps(self) -> int:
        """Training steps so far."""
        return max((record["step"] for record in self.records), default=0)

    @property
    def seconds(self) -> float:
        """The seconds of training, without evaluations."""
        return sum(record["logs"].get("Train_Time", 0.0) for record in self.of_type("epoch"))

    @property
    def provenance(self) -> dict[str, Any]:
        """With what it was trained."""
        return (self.config.get("meta") or {}).get("provenance") or {}

    @property
    def done_of(self) -> tuple[int, int]:
        """How many steps are done of how many, or epochs, where these are whole passes over the
        data."""
        train, per_epoch = self.config["train"], self.config["experiment"]["epoch_every_n_steps"]
        key = "step" if train.get("num_steps") or per_epoch else "epoch"
        wanted = train.get("num_steps") or train["num_epochs"] * (per_epoch or 1)
        return max((record[key] for record in self.records), default=0), wanted

    @property
    def is_finished(self) -> bool:
        """Whether it has come to its end, its final tests included."""
        rollout = self.config["experiment"]["rollout"]
        tests = {"test", *(["test_last"] if rollout.get("test_last") else [])}
        if rollout["enabled"] and {"rollout", *tests} & {r["type"] for r in self.records}:
            return tests <= {r["type"] for r in self.records if not r["logs"].get("Crashed")}
        # What is not evaluated, such as planners, has ended with its last epoch.
        done, wanted_steps = self.done_of
        return done >= wanted_steps and self.records[-1:] == self.of_type("epoch")[-1:]


def run_facts(path: Path) -> dict[str, Any]:
    """What was trained on what, how long, with which result, and how to do it again."""
    run = Run(path)
    config = run.config
    if run.is_of_own_parts:
        raise ValueError(f"{path}: {OWN_PARTS}")
    rollouts, tests = run.of_type("rollout"), run.of_type("test")
    done = max((record["epoch"] for record in run.of_type("epoch")), default=0)
    wanted = config["train"]["num_epochs"]
    again = ["offrl", "train", "--config", str(run.config_file)]
    go_on = ["offrl", "train", "--resume", str(path)]
    times = [record["time"] for record in run.records] or [0.0]
    damaged = f"{path}/metrics.jsonl: {run.num_damaged} damaged lines"
    return {
        "run": str(path),
        "algorithm": config["algo_name"],
        "data": [entry["path"] for entry in config["train"].get("data") or []],
        "seed": config["train"]["seed"],
        "epochs": {"done": done, "of": wanted},
        "steps": run.steps,
        "time": {
            "training": str(timedelta(seconds=round(run.seconds))),
            "from the first record to the last": str(
                timedelta(seconds=round(times[-1] - times[0]))
            ),
        },
        "best_evaluation": _rates(max(rollouts, key=_rank, default=None)),
        "last_evaluation": _rates(rollouts[-1] if rollouts else None),
        "test": _rates(tests[-1] if tests else None),
        "versions": run.provenance,
        "repeat": shlex.join(again),
        "resume": None if run.is_finished else shlex.join(go_on),
        "wrong": [damaged] if run.num_damaged else [],
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
