"""Writes log records: JSON lines, CSV, text, TensorBoard, and Weights & Biases on request."""

import csv
import io
import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from offrl.lazy import needed
from offrl.outputs import explained_errors, write_text
from offrl.reports.records import Record, read_records
from offrl.training.loop import Loop

log = logging.getLogger(__name__)

DRAWN = ("train", "collect", "valid", "rollout", "test", "test_last", "proxy")
TENSORBOARD_TAGS = {kind: kind.title() for kind in DRAWN} | {"epoch": "Timing_Stats"}


class Logger:
    """Writes records except ``progress``, and passes all on.

    ``metrics.jsonl`` has a line per record, ``metrics.csv`` a line per number (``type, epoch,
    step, time, name, value``). After a resume all files equal those of an uninterrupted run:
    records after the checkpoint are dropped, and damaged lines with a warning.
    """

    def __init__(self, trainer: Loop):
        self.trainer = trainer
        config, run = trainer.config.experiment.logging, trainer.run
        records, num_damaged = read_records(run.metrics)
        if num_damaged:
            log.warning(f"{run.metrics}: {num_damaged} damaged lines are left out")
        elif not records and trainer.has_given({"type": "train", "epoch": 1}):
            log.warning(f"{run.metrics}: lost; it begins anew behind step {trainer.step}")
        known = [record for record in records if trainer.has_given(record)]
        self._jsonl = _rewrite(run.metrics, map(_json_line, known))
        header = "type,epoch,step,time,name,value\n"
        self._csv = _rewrite(run.path / "metrics.csv", [header, *map(_csv_lines, known)])
        self._text: logging.Handler | None = None
        if config.terminal_output_to_txt:
            size, now = trainer.restored.get("log_size"), run.log_size
            with explained_errors(run.log_text):
                if size is not None and now > size:  # records after the checkpoint
                    os.truncate(run.log_text, size)
                elif size is not None and now < size:
                    log.warning(f"{run.log_text}: {size - now} bytes that were written are lost")
                self._text = _TextLog(run.log_text)
            self._text.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
            logging.getLogger("offrl").addHandler(self._text)
        self._tensorboard = self._wandb = None
        first = (trainer.evaluating or {"epoch": trainer.epoch})["epoch"]
        if config.log_tb:
            from torch.utils.tensorboard import SummaryWriter

            # The files from this epoch on are purged, and its records written again.
            self._tensorboard = SummaryWriter(run.logs / "tb", purge_step=first)
        if config.log_wandb:
            wandb = needed("wandb", "wandb", "experiment.logging.log_wandb: wandb is missing")
            self._wandb = wandb.init(
                project=config.wandb_proj_name,
                name=f"{trainer.config.experiment.name}-{run.path.name}",
                id=run.path.name,
                resume="allow",
                dir=run.logs,
                config=trainer.config.to_dict(),
            )
        for record in known:
            if record["epoch"] >= first:
                self._draw(record)

    def __call__(self, records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            if record["type"] != "progress":
                self._write(record)
            yield record

    def close(self) -> None:
        """Close all files."""
        if self._text:
            logging.getLogger("offrl").removeHandler(self._text)
        for output in (self._jsonl, self._csv, self._text, self._tensorboard):
            if output:
                with suppress(OSError):  # errors of a full disk were reported before
                    output.close()
        if self._wandb:
            self._wandb.finish()

    def _write(self, record: Record) -> None:
        with explained_errors(self.trainer.run.path):
            for file, lines in ((self._jsonl, _json_line), (self._csv, _csv_lines)):
                file.write(lines(record))
                file.flush()
            if self._text and not record["type"].endswith("episode"):
                numbers = "  ".join(f"{k} {v:.5g}" for k, v in record["logs"].items())
                what = " ".join(filter(None, [record["type"], record.get("env")]))
                line = f"epoch {record['epoch']}  {what}  {numbers}"
                self._text.handle(logging.makeLogRecord({"msg": line, "levelno": logging.INFO}))
            scalars = self._draw(record)
        if self._wandb and scalars:
            # Steps must not decrease, as they do with evaluations in the background.
            self._wandb.log(scalars | {"epoch": record["epoch"]}, step=self.trainer.step)

    def _draw(self, record: Record) -> dict[str, float]:
        """Write TensorBoard; return the numbers by robomimic's tags
        (``Rollout/Success_Rate/Lift``)."""
        group = TENSORBOARD_TAGS.get(record["type"].removeprefix("env_"))
        suffix, logs = "", record["logs"].items() if group else ()
        if group in ("Rollout", "Test"):
            environments = list(self.trainer.environments)
            suffix = f"/{record.get('env', environments[0] if len(environments) == 1 else 'all')}"
        scalars = {f"{group}/{name}{suffix}": value for name, value in logs}
        if self._tensorboard:
            for tag, value in scalars.items():
                self._tensorboard.add_scalar(tag, value, record["epoch"])
            self._tensorboard.flush()
        return scalars


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


class _TextLog(logging.FileHandler):
    """A text log that raises errors of writing, as all other outputs do."""

    def handleError(self, record: logging.LogRecord) -> None:
        with explained_errors(Path(self.baseFilename)):
            raise


def _rewrite(path: Path, lines: Iterable[str]) -> TextIO:
    """Write the lines into a new file, and open it for appending."""
    write_text(path, "".join(lines))
    return open(path, "a", encoding="utf-8")
