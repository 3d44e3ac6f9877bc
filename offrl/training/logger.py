"""Log records into files: TensorBoard, JSON lines, CSV, text, and Weights & Biases on request."""

import csv
import io
import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from offrl.training.trainer import Record, Trainer

TENSORBOARD_TAGS = {
    "train": "Train",
    "valid": "Valid",
    "rollout": "Rollout",
    "test": "Test",
    "proxy": "Proxy",
    "epoch": "Timing_Stats",
}


class Logger:
    """Passes records on and writes down all but ``progress``.

    ``metrics.jsonl`` has a line per record, ``metrics.csv`` a line per number (``type, epoch,
    step, time, name, value``). After a resume both hold what an uninterrupted run would have
    written: lines that the checkpoint does not know of are dropped, for they come again.
    """

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        config, run = trainer.config.experiment.logging, trainer.run
        known = _known_records(run.path / "metrics.jsonl", trainer.epoch)
        self._jsonl = _rewrite(run.path / "metrics.jsonl", map(_json_line, known))
        header = "type,epoch,step,time,name,value\n"
        self._csv = _rewrite(run.path / "metrics.csv", [header, *map(_csv_lines, known)])
        self._text: logging.Handler | None = None
        if config.terminal_output_to_txt:
            self._text = logging.FileHandler(run.logs / "log.txt")
            self._text.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
            logging.getLogger("offrl").addHandler(self._text)
        self._tensorboard = None
        if config.log_tb:
            from torch.utils.tensorboard import SummaryWriter

            self._tensorboard = SummaryWriter(run.logs / "tb", purge_step=trainer.epoch + 1)
        self._wandb = self._start_wandb() if config.log_wandb else None

    def __call__(self, records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            if record["type"] != "progress":
                self._write(record)
            yield record

    def close(self) -> None:
        if self._text:
            logging.getLogger("offrl").removeHandler(self._text)
        for output in (self._jsonl, self._csv, self._text, self._tensorboard):
            if output:
                output.close()
        if self._wandb:
            self._wandb.finish()

    def _write(self, record: Record) -> None:
        self._jsonl.write(_json_line(record))
        self._jsonl.flush()
        self._csv.write(_csv_lines(record))
        self._csv.flush()
        if self._text and not record["type"].endswith("episode"):
            numbers = "  ".join(f"{k} {v:.5g}" for k, v in record["logs"].items())
            what = " ".join(filter(None, [record["type"], record.get("env")]))
            line = f"epoch {record['epoch']}  {what}  {numbers}"
            self._text.handle(logging.makeLogRecord({"msg": line, "levelno": logging.INFO}))
        scalars = self._scalars(record)
        if self._tensorboard:
            for tag, value in scalars.items():
                self._tensorboard.add_scalar(tag, value, record["epoch"])
            self._tensorboard.flush()
        if self._wandb and scalars:
            self._wandb.log(scalars | {"epoch": record["epoch"]}, step=record["step"])

    def _scalars(self, record: Record) -> dict[str, float]:
        """Numbers by robomimic's tags: ``Train/Loss``, ``Rollout/Success_Rate/Lift``, ..."""
        group = TENSORBOARD_TAGS.get(record["type"].removeprefix("env_"))
        if group is None:
            return {}
        suffix = ""
        if group in ("Rollout", "Test"):
            environments = list(self.trainer.environments)
            suffix = f"/{record.get('env', environments[0] if len(environments) == 1 else 'all')}"
        return {f"{group}/{name}{suffix}": value for name, value in record["logs"].items()}

    def _start_wandb(self) -> Any:
        try:
            import wandb
        except ImportError:
            raise ValueError(
                "experiment.logging.log_wandb: wandb is not installed; pip install 'offrl[wandb]'"
            ) from None
        run = self.trainer.run
        return wandb.init(
            project=self.trainer.config.experiment.logging.wandb_proj_name,
            name=f"{self.trainer.config.experiment.name}-{run.path.name}",
            id=run.path.name,
            resume="allow",
            dir=run.logs,
            config=self.trainer.config.to_dict(),
        )


def _json_line(record: Record) -> str:
    return json.dumps(record) + "\n"


def _csv_lines(record: Record) -> str:
    head = [record["type"], record["epoch"], record["step"], record["time"]]
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows(
        [*head, f"{name}/{record['env']}" if "env" in record else name, value]
        for name, value in record["logs"].items()
    )
    return lines.getvalue()


def _known_records(path: Path, epoch: int) -> list[Record]:
    """Those in a file up to an epoch. A test follows the last checkpoint and is run again."""
    if not path.exists():
        return []
    with open(path, encoding="utf-8") as file:  # a killed process may have cut the last line
        records = [json.loads(line) for line in file if line.endswith("\n")]
    return [r for r in records if r["epoch"] <= epoch and "test" not in r["type"]]


def _rewrite(path: Path, lines: Iterable[str]) -> TextIO:
    """Open for appending, after these lines."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text("".join(lines), encoding="utf-8")
    partial.replace(path)
    return open(path, "a", encoding="utf-8")
