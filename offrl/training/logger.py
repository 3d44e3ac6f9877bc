"""Log records into files: TensorBoard, JSON lines, CSV, text, and Weights & Biases on request."""

import csv
import io
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from offrl.training.trainer import Record, Trainer

TENSORBOARD_TAGS = {
    "train": "Train",
    "valid": "Valid",
    "rollout": "Rollout",
    "test": "Test",
    "env_rollout": "Rollout",
    "env_test": "Test",
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
        self._jsonl = _reopen(run.path / "metrics.jsonl", self._is_known_json)
        self._csv = _reopen(run.path / "metrics.csv", self._is_known_csv)
        if self._csv.tell() == 0:
            self._csv.write("type,epoch,step,time,name,value\n")
        self._text: logging.Handler | None = None
        if config.terminal_output_to_txt:
            self._text = logging.FileHandler(run.logs / "log.txt")
            self._text.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
            logging.getLogger("offrl").addHandler(self._text)
        self._tensorboard = self._start_tensorboard() if config.log_tb else None
        self._wandb = self._start_wandb() if config.log_wandb else None

    def __call__(self, records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            if record["type"] != "progress":
                self._write(record)
            yield record

    def close(self) -> None:
        self._jsonl.close()
        self._csv.close()
        if self._text:
            logging.getLogger("offrl").removeHandler(self._text)
            self._text.close()
        if self._tensorboard:
            self._tensorboard.close()
        if self._wandb:
            self._wandb.finish()

    def _write(self, record: Record) -> None:
        self._jsonl.write(json.dumps(record) + "\n")
        self._jsonl.flush()
        head = [record["type"], record["epoch"], record["step"], record["time"]]
        lines = io.StringIO()
        csv.writer(lines, lineterminator="\n").writerows(
            [*head, f"{name}/{record['env']}" if "env" in record else name, value]
            for name, value in record["logs"].items()
        )
        self._csv.write(lines.getvalue())
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
        group = TENSORBOARD_TAGS.get(record["type"])
        if group is None:
            return {}
        suffix = ""
        if group in ("Rollout", "Test"):
            environments = list(self.trainer.environments)
            suffix = f"/{record.get('env', environments[0] if len(environments) == 1 else 'all')}"
        return {f"{group}/{name}{suffix}": value for name, value in record["logs"].items()}

    def _is_known_json(self, line: str) -> bool:
        if not line.endswith("\n"):  # the process was killed while it wrote this
            return False
        record = json.loads(line)
        return self._is_known(record["type"], record["epoch"])

    def _is_known_csv(self, line: str) -> bool:
        fields = line.rstrip("\n").split(",")
        if fields[0] == "type":
            return True
        return (
            line.endswith("\n") and len(fields) == 6 and self._is_known(fields[0], int(fields[1]))
        )

    def _is_known(self, kind: str, epoch: int) -> bool:
        # A test follows the last checkpoint and is run again.
        return epoch <= self.trainer.epoch and not kind.startswith(("test", "env_test"))

    def _start_tensorboard(self) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(self.trainer.run.logs / "tb", purge_step=self.trainer.epoch + 1)

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


def _reopen(path: Path, keep: Callable[[str], bool]) -> TextIO:
    """Open for appending, after the lines that ``keep`` approves of."""
    if path.exists():
        with open(path, encoding="utf-8") as file:
            lines = [line for line in file if keep(line)]
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text("".join(lines), encoding="utf-8")
        partial.replace(path)
    return open(path, "a", encoding="utf-8")
