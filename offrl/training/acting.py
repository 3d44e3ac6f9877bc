"""Training while acting, as a generator of log records."""

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

from offrl.config import Config
from offrl.online.learner import Learner
from offrl.online.trainer import ActingTrainer
from offrl.training.averages import Averages
from offrl.training.loop import Record, Training
from offrl.training.run import RunFolder

log = logging.getLogger(__name__)


class OnlineTraining(Training):
    """An ``offrl.online.ActingTrainer`` in a run folder, with epochs of
    ``experiment.epoch_every_n_steps`` steps in the environment.

    An epoch has a ``collect`` record of the episodes that ended in it, a ``train`` record of its
    updates, and an ``epoch`` record. The training can be stopped and saved between two rounds.

    run: An earlier run to resume from its newest undamaged checkpoint (``RunFolder.open``).
    trainer: An existing trainer; ``None``: make it by the config.
    """

    WORK_RECORDS = ("collect", "train")
    PROGRESS_S = 0.5  # seconds between progress records

    def __init__(
        self, config: Config, run: RunFolder | None = None, trainer: ActingTrainer | None = None
    ):
        self._given = trainer
        super().__init__(config, run)

    def _assemble(self, config: Config, checkpoint: Mapping[str, Any] | None) -> Any:
        make = Learner if config.distributed.explorers else ActingTrainer
        self.trainer = trainer = self._given or make(config, earlier=checkpoint)
        if isinstance(trainer, Learner):
            trainer.broker.waiting = self._stop_if_asked
        self.config, self.device, self.algo = trainer.config, trainer.device, trainer.alg
        self.env_args = trainer.env_args
        self.environments = {self.env_args["env_name"]: self.env_args}
        return trainer.buffer.demos

    def close(self) -> None:
        self.trainer.close()
        super().close()

    @property
    def problems(self) -> list[str]:
        return self.trainer.problems

    def has_given(self, record: Record) -> bool:
        is_restart = record["type"] == "restart"
        return record["step"] <= self.step if is_restart else super().has_given(record)

    @property
    def is_last(self) -> bool:
        return self.trainer.is_solved or super().is_last

    def _begin_epoch(self) -> list[str]:
        self._last_step = self._end_of_epoch()
        self._averages = {kind: Averages() for kind in self.WORK_RECORDS}
        self._num_episodes = 0
        self._seconds = {"Collect_Time": 0.0, "Train_Time": 0.0}
        return [*self.WORK_RECORDS, "epoch"]

    def _end_of_epoch(self) -> int:
        every, num_steps = self.config.experiment.epoch_every_n_steps, self.config.train.num_steps
        assert every is not None and num_steps is not None  # set by the assembly
        return min(self.epoch * every, num_steps)

    def _work(self) -> Iterator[Record]:
        shown = time.monotonic()
        self.algo.epoch = self.epoch
        while self.step < self._last_step and not self.trainer.is_solved:
            self._is_torn = True
            self._round()
            self._is_torn = False
            if hung := self.trainer.num_hung:
                yield self.record("restart", {"Restarts": hung})
            if self.interrupts.is_asked:
                self._check_weights()
            now = time.monotonic()
            if self.interrupts.saves or now - shown > self.PROGRESS_S:
                shown = now
                logs = [averages.mean() for averages in self._averages.values()]
                yield self.record("progress", logs[0] | logs[1])
            self.interrupts.check()
        if self.trainer.is_solved:
            log.info(
                f"solved at step {self.step}: the last episodes have a mean return of at least "
                f"{self.config.train.online.solved_return:g} (train.online.solved_return)"
            )
        if not self._averages["train"].mean():  # no update was made yet
            self._due.remove("train")

    def _round(self) -> None:
        before = time.perf_counter()
        for record in self.trainer.round():
            kind, logs = record["type"], dict(record["logs"])
            if kind == "restart":
                continue
            num_episodes = logs.pop("Episodes", 0)
            self._averages[kind].add(logs, weight=num_episodes if kind == "collect" else 1)
            self._num_episodes += num_episodes
            now = time.perf_counter()
            self._seconds[f"{kind.capitalize()}_Time"] += now - before
            before = now
        self.step = self.trainer.step

    def _stop_if_asked(self) -> None:
        """Allow a stop while waiting for a trajectory, when no update is half done."""
        self.step, self._is_torn = self.trainer.step, False
        self.interrupts.check()
        self._is_torn = True

    def _finish(self, kind: str) -> Mapping[str, float]:
        if kind == "collect":
            logs = self._averages["collect"].mean() | {"Episodes": self._num_episodes}
            return logs | self.trainer.traffic()
        if kind == "train":
            self._check_weights()
            return self._logs(self._averages["train"])
        return self._seconds | self.trainer.waits()

    def state(self, resumes: bool = True) -> dict[str, Any]:
        averages = {kind: averages.state() for kind, averages in self._averages.items()}
        return {
            **self.trainer.describe(),
            **super().state(resumes),
            "averages": {**averages, "num_episodes": self._num_episodes},
            "online": self.trainer.state(resumes),
        }

    def _go_on_from(self, state: Mapping[str, Any]) -> None:
        for kind, averages in self._averages.items():
            averages.restore(state["averages"][kind])
        self._num_episodes = state["averages"]["num_episodes"]
        self.trainer.restore(state["online"])
        self._last_step = self._end_of_epoch()
        is_cut = self.step < self._last_step and not self.trainer.is_solved
        if is_cut and "collect" not in self._due:
            # This epoch was cut off by the end of a shorter training.
            self._due, self.pending = [*self.WORK_RECORDS, "epoch"], None
