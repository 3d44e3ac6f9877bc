"""Training from recorded data, as a generator of log records."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from offrl import parallel
from offrl.algos.shared.engine import Engine
from offrl.assembly.recorded import Experiment
from offrl.config import Config
from offrl.data.loader import BatchLoader
from offrl.data.sequence import SequenceDataset
from offrl.seeding import preserved_rng
from offrl.training.averages import Averages
from offrl.training.loop import Record, Training


class Trainer(Training):
    """Trains on recorded data: ``for record in Trainer(config)(): ...``.

    A record is ``{"type", "epoch", "step", "time", "logs"}``: ``progress`` every 100 steps,
    ``train`` and ``valid`` with an epoch's averages, ``epoch`` at its end. Wrappers around the
    generator save, evaluate, log and show. A loop that was left at a record continues after it.

    run: An earlier run to resume from its newest undamaged checkpoint (``RunFolder.open``).
    """

    WORK_RECORDS = ("train", "valid")
    PROGRESS_EVERY = 100  # steps between progress records, which wait for the device

    def _assemble(self, config: Config, checkpoint: Mapping[str, Any] | None) -> SequenceDataset:
        self.experiment = parts = Experiment(config, checkpoint)
        self.config, self.device, self.algo = parts.config, parts.device, parts.algo
        self.dataset, self.instructions = parts.dataset, parts.instructions
        self.loader, self.valid_loader = parts.loader, parts.valid_loader
        self.environments, self.env_args = parts.environments, parts.env_args
        self.engine = Engine(self.algo)
        self._batches: Iterator[dict[str, Any]] | None = None
        return parts.dataset

    def _begin_epoch(self) -> list[str]:
        self._last_step = self.step + (self.config.experiment.epoch_every_n_steps or 0)
        self._averages = Averages(self.PROGRESS_EVERY)
        self._seconds = {"Train_Time": 0.0, "Valid_Time": 0.0}
        return ["train", *["valid"] * (self.valid_loader is not None), "epoch"]

    def _work(self) -> Iterator[Record]:
        self.algo.set_train()
        self._batches = batches = self._batches or iter(self.loader)
        started = time.perf_counter() - self._seconds["Train_Time"]
        try:
            while self.step < self._last_step:
                self._is_torn = True
                parallel.draw_apart(self.config.train.seed, self.step)
                info = self.engine.step(next(batches), self.epoch)
                self.step += 1
                self._averages.add_step(info)
                self._is_torn = False
                is_last = self.step == self._last_step
                is_round = self.step % self.PROGRESS_EVERY == 0
                saves, stops = self.interrupts.agree()
                if is_last or is_round or saves or stops:
                    self._averages.share()
                if is_last or is_round:
                    losses = self._averages.fold()
                    for i in (~losses.isfinite()).nonzero()[:1]:
                        self._diverged(self.step - len(losses) + int(i) + 1)
                if saves or stops:
                    self._check_weights()
                if not is_last and (is_round or saves):
                    yield self.record("progress", self._logs(self._averages))
                self.interrupts.check(stops)
        finally:
            self._seconds["Train_Time"] = time.perf_counter() - started

    def _finish(self, kind: str) -> Mapping[str, float]:
        if kind == "train":
            self._check_weights()
            parallel.take_over(self.algo.nets.buffers())  # batch norms see parts of batches
            return self._logs(self._averages)
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
        """Compute the losses of the same batches in every epoch."""
        steps = self.config.experiment.validation_epoch_every_n_steps or loader.batches_per_pass
        loader.position = 0
        averages = Averages(steps)
        self.algo.set_eval()
        with preserved_rng():
            parallel.draw_apart(self.config.train.seed, self.step)
            for _, batch in zip(range(steps), loader, strict=False):
                self.interrupts.check()
                batch = self.algo.process_batch_for_training(batch)
                averages.add_step(self.algo.train_on_batch(batch, self.epoch, validate=True))
        with self.interrupts.at_once():
            averages.share()
        # A density may be infinite on held-out data.
        return self._logs(averages, may_be_infinite=True)

    def state(self, resumes: bool = True) -> dict[str, Any]:
        position = {"position": self.loader.position}
        source = {"averages": self._averages.state(), "loader": position}
        return self.experiment.state() | super().state(resumes) | source

    def _go_on_from(self, state: Mapping[str, Any]) -> None:
        self._averages.restore(state["averages"], self.device)
        self.loader.position = state["loader"]["position"]
        every = self.config.experiment.epoch_every_n_steps or 0
        has_begun = self.step > max(0, self._last_step - every)  # with a step of this epoch
        self.engine.go_on(self.epoch if has_begun else None)
        self._batches = None
