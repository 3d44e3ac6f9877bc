"""Writes checkpoints of a training, also under tagged names into a user's folder."""

import json
import logging
import math
import os
import re
import shutil
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from offrl.checkpoint import read_checkpoint, write_checkpoint
from offrl.config.schema import SaveConfig
from offrl.outputs import whole_file, writable_folder, write_text
from offrl.processes import Interrupted
from offrl.reports.run import CRITERIA, best_kept, kept_checkpoints
from offrl.training.loop import Loop, Record, Training
from offrl.training.run import git

log = logging.getLogger(__name__)


class Checkpointer:
    """Writes ``last.pth`` and, as ``experiment.save`` says, ``models/model_epoch_N-SHA8.pth``. The
    earlier ``last.pth`` is kept as ``previous.pth``. It wraps the evaluator and the logger, so that
    everything in a checkpoint has been logged."""

    LAST_EVERY = 20  # writing last.pth, for resuming, takes at most a twentieth of the time

    def __init__(self, trainer: Loop):
        self.trainer = trainer
        # Pipelines have no such section, as their algorithms decide when to save.
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
        self._improved = set(restored.get("improved", []))  # best in this epoch, not saved
        self._last_saved = time.monotonic()  # time of the last file in models/
        self._last_written = -math.inf  # last.pth
        self._cost = 0.0

    def __call__(self, records: Iterable[Record]) -> Iterator[Record]:
        try:
            for record in records:
                if self.config.enabled:
                    improved = self._note(record)
                    if self.trainer.is_of_copy(record):
                        self._keep_copy(record["epoch"], improved)
                    else:
                        self._improved |= improved
                    if record["type"] == "epoch":
                        self._save(record["epoch"])
                if self.trainer.interrupts.saves:
                    self._write()
                    self.trainer.interrupts.saves = False
                    log.info("saved at step %s", record["step"])
                yield record
        except Interrupted:
            self._write()
            raise

    @property
    def best_checkpoint(self) -> Path | None:
        """Return the checkpoint to use: the best one that was kept, else the last."""
        run = self.trainer.run
        last = run.last_checkpoint if run.last_checkpoint.exists() else None
        return best_kept(run.path, self.best["best_checkpoints"]) or last

    def _note(self, record: Record) -> set[str]:
        """Note the scores in a record. Returns the criteria by which it is the best so far."""
        logs, improved = record["logs"], set()
        if record["type"] == "valid" and logs["Loss"] < self.best["best_valid_loss"]:
            self.best["best_valid_loss"] = logs["Loss"]
            improved.add("validation")
        # A rate over fewer episodes, because some were lost, is ignored.
        if record["type"] == "rollout" and "Return" in logs and not logs.get("Crashed"):
            if logs["Return"] > self.best["best_return"]:
                self.best["best_return"] = logs["Return"]
                improved.add("rollout_return")
            # Of equally successful policies the one of higher return is best, then the one trained
            # longer (except without any success, or if the environment reports none).
            score = (logs.get("Success_Rate", 0.0), logs["Return"])
            best = (max(0.0, self.best["best_success_rate"]), self.best["best_success_return"])
            if score > best or (score == best and score[0] > 0):
                self.best["best_success_rate"] = logs.get("Success_Rate", -math.inf)
                self.best["best_success_return"] = logs["Return"]
                improved.add("rollout_success_rate")
        return improved

    def _name_best(self, path: Path, improved: Collection[str]) -> bool:
        """Note that a file is the best by what improved. Returns whether it is kept for that."""
        is_best = [c for c in CRITERIA if c in improved and self.config[f"on_best_{c}"]]
        self.best["best_checkpoints"] |= dict.fromkeys(is_best, path.name)
        return bool(is_best)

    def _keep_copy(self, epoch: int, improved: Collection[str]) -> None:
        """Keep the copy that was evaluated in the background if it is the best so far."""
        run, path = self.trainer.run, self.trainer.run.checkpoint(epoch)
        if self._name_best(path, improved):
            self._put_scores(path if path.exists() else run.evaluated, path)
            newest = kept_checkpoints(run.path)[0]  # which is asked for the best one
            if newest != path:
                self._put_scores(newest, newest)
            self._last_saved, self._last_written = time.monotonic(), -math.inf

    def _put_scores(self, source: Path, path: Path) -> None:
        content = read_checkpoint(source)
        content["variable_state"] |= self.best | {"improved": []}
        write_checkpoint(path, content)

    def _save(self, epoch: int) -> None:
        path = self.trainer.run.checkpoint(epoch)
        is_best = self._name_best(path, self._improved)
        self._improved.clear()
        if is_best or self.config.is_due(epoch, time.monotonic() - self._last_saved):
            self._write(path)
            self._last_saved = time.monotonic()
        waited = time.monotonic() - self._last_written
        if is_best or self.trainer.is_last or waited > self.LAST_EVERY * self._cost:
            self._write()
            self._last_written = time.monotonic()

    def _write(self, path: Path | None = None) -> None:
        started = time.monotonic()
        if self.config.enabled:
            self.trainer.save(path, self.best | {"improved": sorted(self._improved)})
        self._cost = time.monotonic() - started


def sha8(commit: str | None = None) -> str:
    """Return the first eight characters of a commit; ``None``: that of the working directory's
    repository, or ``nogit`` if there is none."""
    commit = (git("rev-parse", "--verify", "HEAD") or "nogit") if commit is None else commit
    if not re.fullmatch(r"[\w.-]+", commit):
        raise ValueError(f"gitsha: {commit!r} cannot stand in the names of files; give a commit")
    return commit[:8]


class TaggedNames:
    """The names of files in ``train.model_dest``, with the ``sha8`` of a ``commit``."""

    def __init__(self, folder: str | Path, commit: str | None = None):
        self.folder, self.sha = Path(folder).expanduser().absolute(), sha8(commit)
        self.final = self.folder / f"agent-final-{self.sha}.pth"

    def checkpoint(self, step: int) -> Path:
        return self.folder / f"agent-{step:09d}-{self.sha}.pth"

    def config(self, given: Path) -> Path:
        return self.folder / f"{given.stem}-{self.sha}{given.suffix}"

    def check_free(self, given: Path | None = None) -> None:
        """Make the folder if need be. Raises ``FileExistsError`` if it has files of another
        training of the same commit, and ``OSError`` if it cannot be written to."""
        writable_folder(self.folder)
        taken = sorted(self.folder.glob(f"agent-*-{self.sha}.pth"))
        if given is not None:
            config = self.config(given)
            if config.exists() and config.read_bytes() != given.read_bytes():
                taken.append(config)
        if taken:
            raise FileExistsError(f"{taken[0]} exists; move it, or set another train.model_dest")


class TaggedFiles:
    """Copies checkpoints in ``models/`` of the run folder into ``train.model_dest``, with the last
    policy as ``agent-final-SHA8.pth`` and the given config file, byte for byte. It wraps the
    checkpointer. The run folder stores place and commit, so that they stay the same when a run is
    resumed elsewhere.

    config_file: The given config file; ``None``: the one in the run folder, if any.
    """

    def __init__(self, trainer: Training, config_file: Path | None = None):
        self.trainer = trainer
        self.names = self._names(config_file)
        for unfinished in self.names.folder.glob(f".*-{self.names.sha}.*.partial*"):
            unfinished.unlink()  # files that a killed process left
        for given in trainer.run.path.glob("given-*"):
            own = given.with_name(given.name.removeprefix("given-"))
            put_beside(given, self.names.config(own), is_linked=False)
        if trainer.has_given({"type": "epoch", "epoch": trainer.epoch}):
            self._take()  # files that an earlier process left

    def __call__(self, records: Iterable[Record]) -> Iterator[Record]:
        for record in records:
            # The checkpointer has put the scores of an evaluation in the background into these.
            if record["type"] == "rollout" and record["epoch"] < self.trainer.epoch:
                self._take_kept(record["epoch"], record["step"])
                for newest in kept_checkpoints(self.trainer.run.path)[:1]:
                    self._renew(newest, read_checkpoint(newest)["variable_state"]["step"])
            if record["type"] == "epoch":
                self._take()
            yield record

    def _take_kept(self, epoch: int, step: int) -> None:
        for kept in self.trainer.run.models.glob(f"model_epoch_{epoch}-*.pth"):
            self._renew(kept, step)

    def _renew(self, kept: Path, step: int) -> None:
        copy = self.names.checkpoint(step)
        if copy.exists() and not copy.samefile(kept):
            copy.unlink()
        put_beside(kept, copy)

    def _take(self) -> None:
        path = self.names.checkpoint(self.trainer.step)
        self._take_kept(self.trainer.epoch, self.trainer.step)
        if self.trainer.is_last:
            if not path.exists():
                self.trainer.save(path)
            self.names.final.unlink(missing_ok=True)  # of a shorter training
            put_beside(path, self.names.final)

    def _names(self, config_file: Path | None) -> TaggedNames:
        remembered = self.trainer.run.path / "tagged.json"
        if remembered.exists():
            return TaggedNames(**json.loads(remembered.read_text(encoding="utf-8")))
        names = TaggedNames(self.trainer.config.train.model_dest or ".")
        if git("status", "--porcelain", "--untracked-files=no"):
            log.warning(f"files here differ from those of {names.sha}, which names of files say")
        log.info(f"checkpoints go to {names.folder} as well, with {names.sha} in their names")
        if config_file is not None:
            own = remembered.with_name(f"given-{config_file.name}")
            put_beside(config_file, own, is_linked=False)
        content = {"folder": str(names.folder), "commit": names.sha}
        write_text(remembered, json.dumps(content) + "\n")
        return names


def put_beside(source: Path, path: Path, is_linked: bool = True) -> None:
    """Link or copy a file to ``path``, unless that exists.

    is_linked: Make a hard link, which takes no space, if the file system can; else a copy.
    """
    if os.path.lexists(path):
        return
    with suppress(OSError):  # another file system, or one without links
        if is_linked:
            return os.link(source, path)
    with whole_file(path) as partial:
        shutil.copyfile(source, partial)
