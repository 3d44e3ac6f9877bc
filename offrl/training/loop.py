"""The loop of every training, as a generator of log records."""

import json
import logging
import pickle
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch

from offrl import parallel
from offrl.checkpoint import read_checkpoint, while_loading, write_checkpoint
from offrl.config import Config
from offrl.outputs import keep, put
from offrl.reports.records import Record, Recording
from offrl.seeding import rng_state, set_rng_state
from offrl.training.averages import AnswerError, Averages, checked_logs
from offrl.training.interrupts import Interrupts
from offrl.training.run import (
    RunFolder,
    check_parts,
    newest_checkpoint,
    note_changes,
    note_provenance,
)

log = logging.getLogger(__name__)

EVALUATION = ("episode", "env_rollout", "rollout")  # types of records, during a training


class Loop(Recording, ABC):
    """A training in epochs with a run folder, which can be left and resumed at any record. A
    subclass, called the source, begins epochs, does their work, and finishes records.

    run: An earlier run to resume.
    """

    WORK_RECORDS: ClassVar[Sequence[str]]  #: The types of records about the work.

    config: Any
    config_file: Path | None = None  #: The given config file; a new run folder gets a copy.
    environments: Mapping[str, dict[str, Any]]  # ``env_args`` for evaluation, by names in logs

    def __init__(self, run: RunFolder | None = None):
        self._run = run
        self.epoch = 0
        self.step = 0
        self.interrupts = Interrupts()
        self.restored: Mapping[str, Any] = {}  # the ``variable_state`` of the checkpoint
        self.pending: Record | None = None  # see ``holding``
        # Epoch and step of the copy that is evaluated in the background.
        self.evaluating: dict[str, int] | None = None
        self._log_size = 0  # size after the last record
        self._due: list[str] = []  # record types of this epoch that are still due

    # -- methods of a source -----------------------------------------------------------------------

    @property
    @abstractmethod
    def num_steps(self) -> int:
        """Return the number of steps of the whole training."""

    @property
    @abstractmethod
    def is_last(self) -> bool:
        """Say whether this epoch is the last."""

    @property
    def problems(self) -> Sequence[str]:
        """Return problems so far despite which the training goes on."""
        return ()

    @abstractmethod
    def _begin_epoch(self) -> list[str]:
        """Prepare an epoch. Returns the types of its records, those of the work first."""

    @abstractmethod
    def _work(self) -> Iterator[Record]:
        """Do the rest of this epoch's work, and yield ``progress`` records."""

    @abstractmethod
    def _finish(self, kind: str) -> Mapping[str, float]:
        """Do the work for a record of this epoch, and return its logs."""

    @abstractmethod
    def save(self, path: Path | None = None, scores: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint to ``path``, or else the one to resume from, with best ``scores``."""

    @abstractmethod
    def _write_first(self, run: RunFolder) -> None:
        """Fill a new run folder before it appears."""

    # -- the loop ---------------------------------------------------------------------------------

    def __call__(self) -> Iterator[Record]:
        """Train, and yield a record after each part of the work."""
        if self.pending is not None:
            record, self.pending = self.pending, None
            self._log_size = self._size_of_log()
            yield record
        while self._due or not self.is_last:
            if not self._due:
                self.epoch += 1
                self._due = self._begin_epoch()
            if self._due[0] == self.WORK_RECORDS[0]:
                yield from self._work()
            logs = self._finish(self._due[0])
            self._log_size = self._size_of_log()
            yield self.record(self._due.pop(0), logs)

    @contextmanager
    def holding(self, record: Record) -> Iterator[None]:
        """Hold a record while a wrapper works on it: it comes again if the work is abandoned."""
        self.pending = record
        yield
        self.pending = None

    def has_given(self, record: Record) -> bool:
        """Say whether a record of an earlier process is final, and will not come again. Tests
        follow the training and are always repeated."""
        kind, epoch = record["type"], record["epoch"]
        if self.is_of_copy(record):
            return False
        if "test" in kind or epoch != self.epoch:
            return "test" not in kind and epoch < self.epoch
        is_under_way = self._due or self.pending is not None
        return kind in {*self.WORK_RECORDS} - {*self._due} if is_under_way else True

    def is_of_copy(self, record: Record) -> bool:
        """Say whether a record is of the evaluation in the background that is under way."""
        is_same = self.evaluating is not None and record["epoch"] == self.evaluating["epoch"]
        return is_same and record["type"] in EVALUATION

    @property
    def run(self) -> RunFolder:
        """Return the run folder. It is made on first use, complete, so that it can be resumed."""
        if self._run is None:
            self._run = RunFolder.create(self.config, self._write_first)
        return self._run

    def close(self) -> None:
        """Unlock the run folder for other processes."""
        if self._run is not None:
            self._run.unlock()

    def _size_of_log(self) -> int:
        return 0 if self._run is None else self._run.log_size


class Training(Loop):
    """Trains one of offrl's algorithms, with checkpoints from which it resumes with the same bits.
    A subclass also assembles the parts in the config.

    run: An earlier run to resume from its newest undamaged checkpoint (``RunFolder.open``).
    """

    config: Config
    algo: Any
    device: torch.device
    instructions: Mapping[str, Any] = {}

    def __init__(self, config: Any, run: RunFolder | None = None):
        super().__init__(run)
        self._last_step = 0  # the last step of this epoch
        self._seconds: dict[str, float] = {}
        self._is_torn = False  # true while an update is half done
        path, checkpoint = None, None
        if run is not None:
            path, checkpoint = parallel.by_first(newest_checkpoint, run)
        self.data = self._assemble(config, checkpoint)
        note_provenance(self.config, self.data, run)
        self._begin_epoch()
        if checkpoint is not None:
            with while_loading(checkpoint, path):
                try:
                    self.restore(checkpoint)
                except (AttributeError, IndexError, KeyError, RuntimeError, TypeError) as error:
                    raise ValueError(f"no training goes on from it ({error!r:.200})") from None

    def __repr__(self) -> str:
        done = f"epoch {self.epoch} of {self.config.train.num_epochs}, step {self.step}"
        return f"{type(self).__name__}({self.algo!r}, {done})"

    @abstractmethod
    def _assemble(self, config: Any, checkpoint: Mapping[str, Any] | None) -> Any:
        """Make the parts in the config, to resume from ``checkpoint``. Returns the data."""

    @abstractmethod
    def _go_on_from(self, state: Mapping[str, Any]) -> None:
        """Restore the position in a checkpoint."""

    @property
    def num_steps(self) -> int:
        train, steps = self.config.train, self.config.experiment.epoch_every_n_steps or 0
        return train.num_steps or train.num_epochs * steps

    @property
    def is_last(self) -> bool:
        return self.epoch >= self.config.train.num_epochs

    def __call__(self) -> Iterator[Record]:
        """Train, and yield a record after each part of the work."""
        if self._is_torn:
            raise ValueError(
                f"{self.config.algo_name}: step {self.step + 1} was left in its midst, by an error "
                "or an interrupt, with half an update; go on from a checkpoint (restore)"
            )
        where = self.config.algo_name  # errors name the algorithm and the step
        try:
            yield from super().__call__()
        except AnswerError as error:
            where += f", step {self.step} (epoch {self.epoch})"
            raise ValueError(f"{where}: {error}") from None
        except RuntimeError as error:
            what = " ".join(str(error).split())
            if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in what:
                raise
            raise ValueError(
                f"{where}, after step {self.step}: out of memory ({what:.200}); lower "
                "train.batch_size, or make the networks smaller"
            ) from None
        except SystemExit as error:
            where += f", epoch {self.epoch}, after step {self.step}"
            raise ValueError(
                f"{where}: the algorithm called sys.exit({error.code!r}), which would end the "
                "training without a word; raise an error that says what is wrong"
            ) from None

    def _logs(self, averages: Averages, may_be_infinite: bool = False) -> dict[str, float]:
        return checked_logs(self.algo.log_info(averages.mean()), may_be_infinite)

    def _check_weights(self) -> None:
        """Raise ``ValueError`` for weights that are not finite, or differ between processes."""
        norm = torch.nn.utils.get_total_norm(list(self.algo.nets.parameters()))
        if not torch.isfinite(norm):
            self._diverged(self.step)
        high, low = parallel.largest(float(norm), -float(norm))
        if high != -low:
            raise ValueError(
                f"{self.config.algo_name}: the weights are no longer those of the other processes; "
                "only Algo.optimize averages gradients: make every step there, or use one process"
            )

    def _diverged(self, step: int) -> None:
        self._is_torn = True
        raise ValueError(
            f"{self.config.algo_name}: the loss became NaN or infinite at step {step} (epoch "
            f"{self.epoch}); lower the learning rate (algo.optim_params) or set "
            "train.max_grad_norm. Checkpoints, where there are any, hold earlier weights"
        )

    # -- the run folder and checkpoints -----------------------------------------------------------

    def _write_first(self, run: RunFolder) -> None:
        if self.config.experiment.save.enabled:
            try:  # a user's algorithm may add content that cannot be written or read
                write_checkpoint(run.last_checkpoint, self.state())
                read_checkpoint(run.last_checkpoint)
            except (AttributeError, TypeError, ValueError, pickle.PicklingError) as error:
                reason = str(error).removeprefix(f"{run.last_checkpoint}: ").split(";")[0]
                raise ValueError(
                    f"{self.config.algo_name}: what serialize() gives cannot be in a checkpoint: "
                    f"{reason}; give tensors, numbers, strings, lists and dicts"
                ) from None
        if self.config_file is not None and self.config.train.model_dest:  # see ``TaggedFiles``
            shutil.copyfile(self.config_file, run.path / f"given-{self.config_file.name}")

    def save(self, path: Path | None = None, scores: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint; without a ``path``, ``last.pth`` to resume from."""
        state = self.state(resumes=path is None)
        state["variable_state"] |= scores or {}
        if path is not None:
            write_checkpoint(path, state)
            return
        last, new = self.run.last_checkpoint, self.run.path / ".last.partial.pth"
        write_checkpoint(new, state)
        if last.exists():
            keep(last, self.run.previous_checkpoint)
        put(new, last)

    def keep_copy(self) -> None:
        """Write the policy as it is now into a file, to be evaluated while the training goes on."""
        self.save(self.run.evaluated)
        self.evaluating = {"epoch": self.epoch, "step": self.step}

    def drop_copy(self) -> None:
        """Delete the copy of a policy whose evaluation has ended."""
        self.run.evaluated.unlink(missing_ok=True)
        self.evaluating = None

    def state(self, resumes: bool = True) -> dict[str, Any]:
        """Return the content of a checkpoint; the checkpointer adds the best scores. If ``resumes``
        is false, the checkpoint only keeps a policy, and large parts may be left out."""
        copied = {}
        if resumes and self.evaluating not in (None, {"epoch": self.epoch, "step": self.step}):
            copied = {"evaluated": read_checkpoint(self.run.evaluated)}  # of earlier weights
        return copied | {
            "variable_state": {
                "epoch": self.epoch,
                "step": self.step,
                "last_step": self._last_step,
                "due": list(self._due),
                "pending": self.pending,
                "evaluating": self.evaluating if resumes else None,
                "seconds": dict(self._seconds),
                "log_size": self._log_size if self.pending else self._size_of_log(),
            },
            "rng": rng_state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state`` as if never interrupted; warn of differences that prevent that."""
        theirs, ours = state["algo_name"], self.config.algo_name
        if theirs != ours:
            raise ValueError(f"a checkpoint of {theirs!r}; this run trains {ours!r}")
        check_parts(state, "the checkpoint")
        self.algo.deserialize(state["model"])
        self.restored = progress = state["variable_state"]
        self.epoch, self.step = progress["epoch"], progress["step"]
        self._last_step, self.pending = progress["last_step"], progress["pending"]
        self._due = list(progress["due"])
        self._seconds |= progress["seconds"]
        self._go_on_from(state)
        set_rng_state(state["rng"])
        self._is_torn = False
        self._restore_copy(state)
        note_changes(self.config, json.loads(state["config"]), self.step)
        now = self.config.meta.provenance
        for key in ("git_commit", "num_threads", "packages"):
            then = state["provenance"].get(key)
            if then != now[key]:
                log.warning(
                    f"resumed with another {key} ({now[key]}, was {then}): the "
                    "weights may differ from those of an uninterrupted run"
                )

    def _restore_copy(self, state: Mapping[str, Any]) -> None:
        """Write the copy of the policy that was being evaluated into its file again, if any."""
        evaluating = state["variable_state"].get("evaluating")
        if evaluating is None:
            if self._run is not None:
                self.drop_copy()
        elif "evaluated" in state:
            write_checkpoint(self.run.evaluated, state["evaluated"])
        else:  # nothing was learned since
            self.save(self.run.evaluated)
        self.evaluating = evaluating
