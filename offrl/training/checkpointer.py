"""Writes checkpoints of a training."""

import logging
import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from offrl.config.experiment import SaveConfig
from offrl.processes import Interrupted
from offrl.training.loop import Loop, Record

log = logging.getLogger(__name__)

CRITERIA = ("rollout_success_rate", "rollout_return", "validation")  # the first that is there


class Checkpointer:
    """Writes ``last.pth`` and, when ``experiment.save`` says so, ``models/model_epoch_N-SHA8.pth``.
    The ``last.pth`` before stays as ``previous.pth``.

    It stands outside the evaluator and the logger, so that whatever a checkpoint knows of has been
    logged.
    """

    LAST_EVERY = 20  # the cost of last.pth, which is for resuming, is a twentieth of the time

    def __init__(self, trainer: Loop):
        self.trainer = trainer
        # Pipelines have no such section, as their algorithms say themselves when they save.
        self.config = getattr(trainer.config.experiment, "save", SaveConfig())
        self.best: dict[str, Any] = {
            "best_valid_loss": math.inf,
            "best_return": -math.inf,
            "best_success_rate": -math.inf,
            "best_success_return": -math.inf,
            "best_checkpoints": {},  # criterion -> file name
        }
        restored = trainer.restored
        self.best |= {key: value for key, value in restored.items() if key in self.best}
        self._improved = set(restored.get("improved", []))  # in this epoch, not saved yet
        self._last_saved = time.monotonic()  # in models/
        self._last_written = -math.inf  # last.pth
        self._cost = 0.0

    def __call__(self, records: Iterable[Record]) -> Iterator[Record]:
        try:
            for record in records:
                if self.config.enabled:
                    self._note(record)
                    if record["type"] == "epoch":
                        self._save(record["epoch"])
                if self.trainer.interrupts.saves:
                    self._write_last()
                    self.trainer.interrupts.saves = False
                    log.info("saved at step %s", record["step"])
                yield record
        except Interrupted:
            self._write_last()
            raise

    @property
    def best_checkpoint(self) -> Path | None:
        """Give the checkpoint to use: the best that was kept as such, else the last."""
        run, kept = self.trainer.run, self.best["best_checkpoints"]
        best = [run.models / kept[criterion] for criterion in CRITERIA if criterion in kept]
        last = [run.last_checkpoint] if run.last_checkpoint.exists() else []
        return next(iter(best + last), None)

    def _note(self, record: Record) -> None:
        logs = record["logs"]
        if record["type"] == "valid" and logs["Loss"] < self.best["best_valid_loss"]:
            self.best["best_valid_loss"] = logs["Loss"]
            self._improved.add("validation")
        # A rate over fewer episodes than another's, as some were lost, chooses nothing.
        if record["type"] == "rollout" and "Return" in logs and not logs.get("Crashed"):
            if logs["Return"] > self.best["best_return"]:
                self.best["best_return"] = logs["Return"]
                self._improved.add("rollout_return")
            # Of equally successful policies the one of higher return, then the one trained longer
            # (but not every one that never succeeds, or in an environment that reports none).
            score = (logs.get("Success_Rate", 0.0), logs["Return"])
            best = (max(0.0, self.best["best_success_rate"]), self.best["best_success_return"])
            if score > best or (score == best and score[0] > 0):
                self.best["best_success_rate"] = logs.get("Success_Rate", -math.inf)
                self.best["best_success_return"] = logs["Return"]
                self._improved.add("rollout_success_rate")

    def _save(self, epoch: int) -> None:
        is_best = [c for c in CRITERIA if c in self._improved and self.config[f"on_best_{c}"]]
        self._improved.clear()
        path = self.trainer.run.checkpoint(epoch)
        self.best["best_checkpoints"] |= dict.fromkeys(is_best, path.name)
        if is_best or self.config.is_due(epoch, time.monotonic() - self._last_saved):
            self._write(path)
            self._last_saved = time.monotonic()
        waited = time.monotonic() - self._last_written
        if is_best or self.trainer.is_last or waited > self.LAST_EVERY * self._cost:
            self._write_last()
            self._last_written = time.monotonic()

    def _write_last(self) -> None:
        if self.config.enabled:
            self._write()

    def _write(self, path: Path | None = None) -> None:
        started = time.monotonic()
        self.trainer.save(path, self.best | {"improved": sorted(self._improved)})
        self._cost = time.monotonic() - started
