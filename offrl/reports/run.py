"""Reads the results of a training from its run folder."""

import logging
import math
import re
import shlex
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from offrl.config.files import read_config_file
from offrl.reports.records import read_records
from offrl.tree import leaves

RATES = ("Success_Rate", "Success_Rate_Low", "Success_Rate_High", "n", "Return")
# Types of the values that are read from the provenance.
KINDS = {"git_commit": str, "dataset_fingerprint": str, "packages": dict, "finished": int}
# Types of the values that are read from the config, if present.
CONFIG = {
    "experiment.name": str,
    "experiment.epoch_every_n_steps": int | None,
    "experiment.rollout.enabled": bool,
    "train.num_epochs": int,
    "train.num_steps": int | None,
    "train.seed": int,
    "train.data": list | None,
}
NEEDED = ("experiment.epoch_every_n_steps", "experiment.rollout.enabled", "train.num_epochs")
CRITERIA = ("rollout_success_rate", "rollout_return", "validation")  # the first that was measured
# How updates are made, with values that need no word.
USUAL = {"engine": ("auto", "eager"), "precision": ("fp32",), "accumulate": (1,)}
OWN_PARTS = "a run of a user's own parts; its figures are in metrics.jsonl"

log = logging.getLogger(__name__)


def length_of(config: Mapping[str, Any]) -> int:
    """Return the number of steps or epochs of a training with such a config."""
    if "alg_para" in config:
        return config["max_steps"]
    return config["train"].get("num_steps") or config["train"]["num_epochs"]


def task_of(config: Mapping[str, Any]) -> str:
    """Return the default name of a training's task: its environment, or its data."""
    if env := config.get("experiment", {}).get("env"):
        return str(env)
    data = config.get("train", {}).get("data") or []
    files = data if isinstance(data, list) else [data]
    paths = [file.get("path") if isinstance(file, Mapping) else file for file in files]
    return ", ".join(Path(str(path)).stem for path in paths)


def is_run(path: str | Path) -> bool:
    """Say whether a folder is a run folder."""
    return any(Path(path).expanduser().glob("config-*.json"))


def runs_in(folder: Path) -> list[Path]:
    """List the run folders in a folder, the newest last."""
    return [path for path in sorted(folder.glob("[!.]*")) if is_run(path)]


def newest_run(folder: Path) -> Path | None:
    """Return a run folder itself, or the newest one in a folder of runs."""
    return folder if is_run(folder) else next(reversed(runs_in(folder)), None)


def kept_checkpoints(run: Path) -> list[Path]:
    """List the checkpoints of epochs that a run has kept, the newest first."""
    numbers = {p: re.search(r"epoch_(\d+)", p.name) for p in run.glob("models/*.pth")}
    epochs = {path: int(number[1]) for path, number in numbers.items() if number}
    return sorted(epochs, key=lambda path: epochs[path], reverse=True)


def best_kept(run: Path, names: Mapping[str, str]) -> Path | None:
    """Return the best checkpoint that a run has kept, of the ``best_checkpoints`` in its state."""
    return next((run / "models" / names[x] for x in CRITERIA if x in names), None)


class Run:
    """The content of a run folder; with ``last``, only the last few records of its log."""

    def __init__(self, path: str | Path, last: bool = False):
        self.path = Path(path).expanduser()
        self.config_file = sorted(self.path.glob("config-*.json"))[0]
        if not self.config_file.is_file():  # reading a pipe would block
            raise ValueError(f"{self.config_file} is no regular file; put the config there again")
        self.config = read_config_file(self.config_file)
        if not self.is_of_own_parts:
            self.check_config(*NEEDED)
        records, num_damaged = read_records(self.path / "metrics.jsonl", last)
        self.records = [record for record in records if _is_whole(record)]
        self.num_damaged = num_damaged + len(records) - len(self.records)

    def check_config(self, *keys: str) -> None:
        """Raise ``ValueError`` if the config lacks a key (dotted path) or one has a wrong type."""
        known = leaves(self.config)
        lacking = [key for key in keys if key not in known]
        odd = [k for k, kind in CONFIG.items() if k in known and not isinstance(known[k], kind)]
        entries = [] if "train.data" in odd else known.get("train.data") or []
        if not all(isinstance(x, dict) and isinstance(x.get("path"), str) for x in entries):
            odd.append("train.data")
        if wrong := lacking or odd:
            raise ValueError(
                f"{self.config_file}: {'lacks' if lacking else 'damaged:'} {', '.join(wrong)}; put "
                "it back as it was (last.pth holds it, too: config)"
            )

    @property
    def is_of_own_parts(self) -> bool:
        """Say whether a pipeline of user's parts made it, whose numbers have no fixed meaning."""
        return "alg_para" in self.config

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        """List the records of a type."""
        return [record for record in self.records if record["type"] == kind]

    def logs(self, kind: str) -> dict[str, float]:
        """Return the numbers of the last record of a type, or an empty dict."""
        found = self.of_type(kind)
        return found[-1]["logs"] if found else {}

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """The records of evaluations during the training in which all episodes were run."""
        found = self.of_type("rollout")
        return [r for r in found if "Return" in r["logs"] and not r["logs"].get("Crashed")]

    def kept_checkpoints(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield the kept checkpoints of evaluated epochs, each with its evaluation's record."""
        for record in self.evaluations:
            paths = sorted(self.path.glob(f"models/model_epoch_{record['epoch']}-*.pth"))
            yield from ((path, record) for path in paths[:1])

    @property
    def steps(self) -> int:
        """The number of training steps so far."""
        return max((record["step"] for record in self.records), default=0)

    @property
    def seconds(self) -> float:
        """The seconds of training, without evaluations."""
        return sum(record["logs"].get("Train_Time", 0.0) for record in self.of_type("epoch"))

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """The provenance in the config. Damaged values are left out with a warning."""
        meta = self.config.get("meta") or {}
        said = (meta.get("provenance") or {}) if isinstance(meta, dict) else meta
        known = said if isinstance(said, dict) else {"": said}
        whole = {k: v for k, v in known.items() if k and isinstance(v, KINDS.get(k, object))}
        if lost := known.keys() - whole.keys():
            what = ", ".join(sorted(lost)) or "all of it"
            log.warning(f"{self.config_file}: meta.provenance is damaged; left out: {what}")
        return whole

    @property
    def done_of(self) -> tuple[int, int]:
        """Return the numbers of finished and of all steps (or epochs, if these are passes)."""
        train, per_epoch = self.config["train"], self.config["experiment"]["epoch_every_n_steps"]
        key = "step" if train.get("num_steps") or per_epoch else "epoch"
        wanted = train.get("num_steps") or train["num_epochs"] * (per_epoch or 1)
        return max((record[key] for record in self.records), default=0), wanted

    @property
    def is_finished(self) -> bool:
        """Say whether it is complete, including its final tests, by its records and, for runs of
        ``offrl train``, by a mark in the provenance."""
        mark = self.provenance.get("finished")
        is_marked = mark == length_of(self.config)
        if self.is_of_own_parts or not (is_marked or mark is None):
            return is_marked
        rollout = self.config["experiment"]["rollout"]
        tests = {"test", *(["test_last"] if rollout.get("test_last") else [])}
        if rollout["enabled"] and {"rollout", *tests} & {r["type"] for r in self.records}:
            whole = [r for r in self.records if "Return" in r["logs"]]
            return tests <= {r["type"] for r in whole if not r["logs"].get("Crashed")}
        # Without evaluation, as for planners, it ends with the last epoch.
        done, wanted = self.done_of
        return done >= wanted and self.records[-1:] == self.of_type("epoch")[-1:]


def _is_whole(record: Mapping[str, Any]) -> bool:
    """Say whether a record has valid numbers, and a return with a success rate."""
    logs = record["logs"]
    numbers = (logs.get(name, 0.0) for name in (*RATES, "Train_Time"))
    return all(map(math.isfinite, numbers)) and ("Return" in logs or "Success_Rate" not in logs)


def run_facts(path: Path) -> dict[str, Any]:
    """Return a summary of a run: algorithm, data, length, results, and the command to repeat it."""
    run = Run(path)
    config = run.config
    if run.is_of_own_parts:
        raise ValueError(f"{path}: {OWN_PARTS}")
    run.check_config("algo_name", "train.seed")
    updates = {key: config["train"].get(key, USUAL[key][0]) for key in USUAL}
    rollouts, tests = run.of_type("rollout"), run.of_type("test")
    best = max(
        run.evaluations,
        key=lambda r: (r["logs"].get("Success_Rate", 0.0), r["logs"]["Return"]),
        default=None,
    )
    done = max((record["epoch"] for record in run.of_type("epoch")), default=0)
    times = [record["time"] for record in run.records] or [0.0]
    wrong = [f"{path}/metrics.jsonl: {run.num_damaged} damaged lines"] if run.num_damaged else []
    if not run.is_finished and run.provenance.get("finished") == length_of(config):
        wrong.append(f"{path}/metrics.jsonl: lacks records of a training that has come to its end")
    return {
        "run": str(path),
        "algorithm": config["algo_name"],
        "data": [entry["path"] for entry in config["train"].get("data") or []],
        "seed": config["train"]["seed"],
        "updates": {k: v for k, v in updates.items() if v not in USUAL[k]},
        "status": "finished" if run.is_finished else "not finished",
        "epochs": {"done": done, "of": config["train"]["num_epochs"]},
        "steps": run.steps,
        "time": {
            "training": str(timedelta(seconds=round(run.seconds))),
            "from the first record to the last": str(
                timedelta(seconds=round(times[-1] - times[0]))
            ),
        },
        "best_evaluation": _rates(best),
        "last_evaluation": _rates(rollouts[-1] if rollouts else None),
        "test": _rates(tests[-1] if tests else None),
        "versions": {k: v for k, v in run.provenance.items() if k != "finished"},
        "repeat": shlex.join(["offrl", "train", "--config", str(run.config_file)]),
        "resume": None
        if run.is_finished
        else shlex.join(["offrl", "train", "--resume", str(path)]),
        "wrong": wrong,
        "remarks": [],
    }


def _rates(record: dict[str, Any] | None) -> dict[str, Any] | None:
    if record is None:
        return None
    rates = {name.lower(): record["logs"][name] for name in RATES if name in record["logs"]}
    return {"epoch": record["epoch"], **rates}
