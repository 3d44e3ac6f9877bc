"""The training loop, as a generator of log records."""

import json
import logging
import pickle
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from offrl.checkpoint import read_checkpoint, while_loading, write_checkpoint
from offrl.config import Config
from offrl.data.loader import BatchLoader
from offrl.seeding import preserved_rng, rng_state, set_rng_state
from offrl.training.averages import AnswerError, Averages, check_finite, checked_logs
from offrl.training.experiment import Experiment
from offrl.training.interrupts import Interrupts
from offrl.training.resume import changed_keys, check_parts, newest_checkpoint
from offrl.training.run import RunFolder

log = logging.getLogger(__name__)

Record = dict[str, Any]


class Trainer:
    """``for record in Trainer(config)(): ...`` trains, and that is all it does.

    A record is ``{"type", "epoch", "step", "time", "logs"}``: ``progress`` every 100 steps,
    ``train`` and ``valid`` with an epoch's averages, ``epoch`` at its end. Checkpoints, evaluation,
    logs and the progress bar are wrappers around the generator. A loop that was left at a record
    goes on behind it when it is entered again.

    run: an earlier run, to go on with from its newest whole checkpoint (``RunFolder.open``).
    """

    PROGRESS_EVERY = 100  # steps between two looks at the loss, each of which waits for the device

    def __init__(self, config: Config, run: RunFolder | None = None):
        path, checkpoint = (None, None) if run is None else newest_checkpoint(run)
        self.experiment = parts = Experiment(config, run, checkpoint)
        self.config, self.device, self.algo = parts.config, parts.device, parts.algo
        self.dataset, self.instructions = parts.dataset, parts.instructions
        self.loader, self.valid_loader = parts.loader, parts.valid_loader
        self.environments, self.env_args = parts.environments, parts.env_args
        self._run = run
        self.epoch = 0
        self.step = 0
        self.interrupts = Interrupts()
        self.restored: Mapping[str, Any] = {}  # what the checkpoint's ``variable_state`` said
        self.pending: Record | None = None  # see ``holding``
        self._log_size = 0  # when the last record was given
        self._due: list[str] = []  # the records of this epoch that are still to come
        self._last_step = 0  # of this epoch
        self._averages = Averages(self.PROGRESS_EVERY)
        self._seconds = {"Train_Time": 0.0, "Valid_Time": 0.0}
        self._is_torn = False  # whether half an update was made
        if checkpoint is not None:
            with while_loading(checkpoint, path):
                try:
                    self.restore(checkpoint)
                except (AttributeError, IndexError, KeyError, RuntimeError, TypeError) as error:
                    raise ValueError(f"no training goes on from it ({error!r:.200})") from None

    @property
    def run(self) -> RunFolder:
        """The run folder. It is made when something is first written, and appears with a
        checkpoint in it, so that there is none that cannot be gone on with."""
        if self._run is None:
            self._run = RunFolder.create(self.config, self._write_first)
        return self._run

    def close(self) -> None:
        """Let others train in the run folder."""
        if self._run is not None:
            self._run.unlock()

    def _write_first(self, run: RunFolder) -> None:
        if self.config.experiment.save.enabled:
            state = self.state()
            try:  # what a user's algorithm adds may not be writable, or readable
                write_checkpoint(run.last_checkpoint, state)
                read_checkpoint(run.last_checkpoint)
            except (AttributeError, TypeError, ValueError, pickle.PicklingError) as error:
                reason = str(error).removeprefix(f"{run.last_checkpoint}: ").split(";")[0]
                raise ValueError(
                    f"{self.config.algo_name}: what serialize() gives cannot be in a checkpoint: "
                    f"{reason}; give tensors, numbers, strings, lists and dicts"
                ) from None

    def __call__(self) -> Iterator[Record]:
        """Train, and yield a record after each part of the work."""
        if self._is_torn:
            raise ValueError(
                f"{self.config.algo_name}: step {self.step + 1} was left in its midst, by an error "
                "or an interrupt, with half an update; go on from a checkpoint (restore)"
            )
        if self.pending is not None:
            record, self.pending = self.pending, None
            self._log_size = self._current_log_size()
            yield record
        batches = iter(self.loader)
        with self._named():
            while self._due or self.epoch < self.config.train.num_epochs:
                if not self._due:
                    self._begin_epoch()
                if self._due[0] == "train":
                    yield from self._train(batches)
                logs = self._finish(self._due[0])
                self._log_size = self._current_log_size()
                yield self.record(self._due.pop(0), logs)

    def record(self, kind: str, logs: Mapping[str, float]) -> Record:
        """Make a record of type ``kind`` for this moment of the training."""
        return {
            "type": kind,
            "epoch": self.epoch,
            "step": self.step,
            "time": time.time(),
            "logs": dict(logs),
        }

    @contextmanager
    def holding(self, record: Record) -> Iterator[None]:
        """A context for a wrapper that works on a record before it passes it on. If the work is
        abandoned, the record comes again."""
        self.pending = record
        yield
        self.pending = None

    def has_given(self, record: Record) -> bool:
        """Whether a record of an earlier process belongs to what is done, and does not come again.
        A test follows the training and is always run again."""
        kind, epoch = record["type"], record["epoch"]
        if "test" in kind or epoch != self.epoch:
            return "test" not in kind and epoch < self.epoch
        is_under_way = self._due or self.pending is not None
        return kind in {"train", "valid"} - {*self._due} if is_under_way else True

    def _current_log_size(self) -> int:
        return 0 if self._run is None else self._run.log_size

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self._last_step = self.step + (self.config.experiment.epoch_every_n_steps or 0)
        self._due = ["train", *["valid"] * (self.valid_loader is not None), "epoch"]
        self._averages = Averages(self.PROGRESS_EVERY)
        self._seconds = {"Train_Time": 0.0, "Valid_Time": 0.0}

    def _train(self, batches: Iterator[dict[str, Any]]) -> Iterator[Record]:
        """The steps of this epoch that are left."""
        self.algo.set_train()
        started = time.perf_counter() - self._seconds["Train_Time"]
        try:
            while self.step < self._last_step:
                self._is_torn = True
                batch = self.algo.process_batch_for_training(next(batches))
                info = self.algo.train_on_batch(batch, self.epoch)
                self.step += 1
                self._averages.add(info)
                self._is_torn = False
                is_last = self.step == self._last_step
                is_round = self.step % self.PROGRESS_EVERY == 0
                if is_last or is_round:
                    self._check_finite(self._averages.fold())
                if self.interrupts.is_asked:
                    self._check_weights()
                if not is_last and (is_round or self.interrupts.saves):
                    yield self.record("progress", self._train_logs())
                self.interrupts.check()
        finally:
            self._seconds["Train_Time"] = time.perf_counter() - started

    def _finish(self, kind: str) -> Mapping[str, float]:
        """The logs of a record of this epoch, when what it tells of is done."""
        if kind == "train":
            self._check_weights()
            return self._train_logs()
        if kind == "valid" and self.valid_loader is not None:
            started = time.perf_counter()
            logs = self._validate(self.valid_loader)
            self._seconds["Valid_Time"] = time.perf_counter() - started
            return logs
        self._is_torn = True
        self.algo.on_epoch_end(self.epoch)
        self._is_torn = False
        return self._seconds

    def _validate(self, loader: BatchLoader) -> dict[str, float]:
        """The same batches every epoch, so that losses compare."""
        steps = self.config.experiment.validation_epoch_every_n_steps or loader.batches_per_pass
        loader.position = 0
        averages = Averages(steps)
        self.algo.set_eval()
        with preserved_rng():
            for _, batch in zip(range(steps), loader, strict=False):
                self.interrupts.check()
                batch = self.algo.process_batch_for_training(batch)
                averages.add(self.algo.train_on_batch(batch, self.epoch, validate=True))
        # Of data that it was not made for, a density may well be infinite.
        return checked_logs(self.algo.log_info(averages.mean()))

    def _train_logs(self) -> dict[str, float]:
        logs = checked_logs(self.algo.log_info(self._averages.mean()))
        check_finite(logs)
        return logs

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Let what is wrong with an algorithm's answers name it and the step."""
        where = self.config.algo_name
        try:
            yield
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

    def _check_finite(self, losses: torch.Tensor) -> None:
        bad = (~torch.isfinite(losses)).nonzero()
        if len(bad):
            self._diverged(self.step - len(losses) + int(bad[0]) + 1)

    def _check_weights(self) -> None:
        """A finite loss can leave weights that are not; no checkpoint may hold those."""
        norm = torch.nn.utils.get_total_norm(list(self.algo.nets.parameters()))
        if not torch.isfinite(norm):
            self._diverged(self.step)

    def _diverged(self, step: int) -> None:
        self._is_torn = True
        raise ValueError(
            f"{self.config.algo_name}: the loss became NaN or infinite at step {step} (epoch "
            f"{self.epoch}); lower the learning rate (algo.optim_params) or set "
            "train.max_grad_norm. Checkpoints, where there are any, hold earlier weights"
        )

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds; the checkpointer adds the best scores."""
        return self.experiment.state() | {
            "variable_state": {
                "epoch": self.epoch,
                "step": self.step,
                "last_step": self._last_step,
                "due": list(self._due),
                "pending": self.pending,
                "seconds": dict(self._seconds),
                "log_size": self._log_size if self.pending else self._current_log_size(),
            },
            "averages": self._averages.state(),
            "rng": rng_state(),
            "loader": {"position": self.loader.position},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state`` as if never interrupted; warns of what would make a difference."""
        theirs, ours = state["algo_name"], self.config.algo_name
        if theirs != ours:
            raise ValueError(f"a checkpoint of {theirs!r}; this run trains {ours!r}")
        check_parts(state, "the checkpoint")
        self.algo.deserialize(state["model"])
        self.restored = progress = state["variable_state"]
        self.epoch, self.step = progress["epoch"], progress["step"]
        # Before offrl saved within an epoch, none of these was there.
        self._last_step = progress.get("last_step", self.step)
        self._due = list(progress.get("due", []))
        self.pending = progress.get("pending")
        self._seconds |= progress.get("seconds", {})
        if "averages" in state:
            self._averages.restore(state["averages"], self.device)
        self.loader.position = state["loader"]["position"]
        set_rng_state(state["rng"])
        self._is_torn = False
        changed = changed_keys(json.loads(state["config"]), self.config.to_dict())
        if changed:
            log.warning(
                f"the config is not the one that the checkpoint was trained with: {changed[0]}"
                + (f" and {len(changed) - 1} more keys" if changed[1:] else "")
            )
        now = self.config.meta.provenance
        for key in ("git_commit", "num_threads", "packages"):
            then = state["provenance"].get(key)
            if then != now[key]:
                log.warning(
                    f"resumed with another {key} ({now[key]}, was {then}): the "
                    "weights may differ from those of an uninterrupted run"
                )
