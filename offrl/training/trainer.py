"""Training from recorded data, as a generator of log records."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from offrl import parallel
from offrl.assembly.recorded import Experiment
from offrl.config import Config
from offrl.data.loader import BatchLoader
from offrl.seeding import preserved_rng
from offrl.training.averages import Averages, check_finite, checked_logs
from offrl.training.base import Record, Training
from offrl.training.resume import newest_checkpoint
from offrl.training.run import RunFolder, note_provenance


class Trainer(Training):
    """``for record in Trainer(config)(): ...`` trains, and that is all it does.

    A record is ``{"type", "epoch", "step", "time", "logs"}``: ``progress`` every 100 steps,
    ``train`` and ``valid`` with an epoch's averages, ``epoch`` at its end. Checkpoints, evaluation,
    logs and the progress bar are wrappers around the generator. A loop that was left at a record
    goes on behind it when it is entered again.

    run: an earlier run, to go on with from its newest whole checkpoint (``RunFolder.open``).
    """

    FIRST_RECORD = "train"
    AVERAGES = {"train", "valid"}
    PROGRESS_EVERY = 100  # steps between two looks at the loss, each of which waits for the device

    def __init__(self, config: Config, run: RunFolder | None = None):
        super().__init__(run)
        path, checkpoint = None, None
        if run is not None:
            path, checkpoint = parallel.by_first(newest_checkpoint, run)
        self.experiment = parts = Experiment(config, checkpoint)
        note_provenance(parts.config, parts.dataset, run)
        self.config, self.device, self.algo = parts.config, parts.device, parts.algo
        self.dataset, self.instructions = parts.dataset, parts.instructions
        self.loader, self.valid_loader = parts.loader, parts.valid_loader
        self.environments, self.env_args = parts.environments, parts.env_args
        self._averages = Averages(self.PROGRESS_EVERY)
        self._seconds = {"Train_Time": 0.0, "Valid_Time": 0.0}
        if checkpoint is not None:
            self._resume(path, checkpoint)

    def __call__(self) -> Iterator[Record]:
        """Train, and yield a record after each part of the work."""
        self._batches = iter(self.loader)
        yield from super().__call__()

    def _begin_epoch(self) -> list[str]:
        self._last_step = self.step + (self.config.experiment.epoch_every_n_steps or 0)
        self._averages = Averages(self.PROGRESS_EVERY)
        self._seconds = {"Train_Time": 0.0, "Valid_Time": 0.0}
        return ["train", *["valid"] * (self.valid_loader is not None), "epoch"]

    def _work(self) -> Iterator[Record]:
        self.algo.set_train()
        started = time.perf_counter() - self._seconds["Train_Time"]
        try:
            while self.step < self._last_step:
                self._is_torn = True
                parallel.draw_apart(self.config.train.seed, self.step)
                batch = self.algo.process_batch_for_training(next(self._batches))
                info = self.algo.train_on_batch(batch, self.epoch)
                self.step += 1
                self._averages.add(info)
                self._is_torn = False
                is_last = self.step == self._last_step
                is_round = self.step % self.PROGRESS_EVERY == 0
                saves, stops = self.interrupts.agree()
                if is_last or is_round or saves or stops:
                    self._averages.share()
                if is_last or is_round:
                    self._check_finite(self._averages.fold())
                if saves or stops:
                    self._check_weights()
                if not is_last and (is_round or saves):
                    yield self.record("progress", self._train_logs())
                self.interrupts.check(stops)
        finally:
            self._seconds["Train_Time"] = time.perf_counter() - started

    def _finish(self, kind: str) -> Mapping[str, float]:
        if kind == "train":
            self._check_weights()
            parallel.take_over(self.algo.nets.buffers())  # batch norms see but a part of batches
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
            parallel.draw_apart(self.config.train.seed, self.step)
            for _, batch in zip(range(steps), loader, strict=False):
                self.interrupts.check()
                batch = self.algo.process_batch_for_training(batch)
                averages.add(self.algo.train_on_batch(batch, self.epoch, validate=True))
        with self.interrupts.at_once():
            averages.share()
        # Of data that it was not made for, a density may well be infinite.
        return checked_logs(self.algo.log_info(averages.mean()))

    def _train_logs(self) -> dict[str, float]:
        logs = checked_logs(self.algo.log_info(self._averages.mean()))
        check_finite(logs)
        return logs

    def _check_finite(self, losses: torch.Tensor) -> None:
        bad = (~torch.isfinite(losses)).nonzero()
        if len(bad):
            self._diverged(self.step - len(losses) + int(bad[0]) + 1)

    def _describe(self) -> dict[str, Any]:
        return self.experiment.state()

    def _progress(self, resumes: bool) -> dict[str, Any]:
        return {
            "averages": self._averages.state(),
            "loader": {"position": self.loader.position},
        }

    def _go_on_from(self, state: Mapping[str, Any]) -> None:
        self._averages.restore(state["averages"], self.device)
        self.loader.position = state["loader"]["position"]
