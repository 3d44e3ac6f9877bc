"""The training loop, as a generator of log records."""

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from offrl.config import Config
from offrl.data.loader import BatchLoader
from offrl.seeding import preserved_rng, rng_state, set_rng_state
from offrl.training.experiment import Experiment
from offrl.training.run import RunFolder

log = logging.getLogger(__name__)

Record = dict[str, Any]


class Trainer:
    """``for record in Trainer(config)(): ...`` trains, and that is all it does.

    A record is ``{"type", "epoch", "step", "time", "logs"}``: ``progress`` every 100 steps,
    ``train`` and ``valid`` with an epoch's averages, ``epoch`` at its end. Checkpoints, evaluation,
    logs and the progress bar are wrappers around the generator.
    """

    PROGRESS_EVERY = 100  # steps between two looks at the loss, each of which waits for the device

    def __init__(self, config: Config, run: RunFolder | None = None):
        self.experiment = parts = Experiment(config, run)
        self.config, self.device, self.algo = parts.config, parts.device, parts.algo
        self.dataset, self.instructions = parts.dataset, parts.instructions
        self.loader, self.valid_loader = parts.loader, parts.valid_loader
        self.environments, self.env_args = parts.environments, parts.env_args
        self.epoch = 0
        self.step = 0

    @property
    def run(self) -> RunFolder:
        """The run folder; made when something is first written."""
        return self.experiment.run

    def __call__(self) -> Iterator[Record]:
        batches = iter(self.loader)
        while self.epoch < self.config.train.num_epochs:
            self.epoch += 1
            started = time.perf_counter()
            yield from self._train_epoch(batches)
            trained = time.perf_counter()
            if self.valid_loader is not None:
                yield self.record("valid", self._validate(self.valid_loader))
            self.algo.on_epoch_end(self.epoch)
            yield self.record(
                "epoch",
                {"Train_Time": trained - started, "Valid_Time": time.perf_counter() - trained},
            )

    def record(self, kind: str, logs: Mapping[str, float]) -> Record:
        return {
            "type": kind,
            "epoch": self.epoch,
            "step": self.step,
            "time": time.time(),
            "logs": dict(logs),
        }

    def _train_epoch(self, batches: Iterator[dict[str, Any]]) -> Iterator[Record]:
        self.algo.set_train()
        averages = Averages(self.PROGRESS_EVERY)
        steps = self.config.experiment.epoch_every_n_steps or 0
        for remaining in reversed(range(steps)):
            batch = self.algo.process_batch_for_training(next(batches))
            info = self.algo.train_on_batch(batch, self.epoch)
            self.step += 1
            self._add(averages, info)
            if remaining == 0 or self.step % self.PROGRESS_EVERY == 0:
                self._check_finite(averages.fold())
            if remaining and self.step % self.PROGRESS_EVERY == 0:
                yield self.record("progress", self.algo.log_info(averages.mean()))
        # A finite loss can leave weights that are not; no checkpoint may hold those.
        norm = torch.nn.utils.get_total_norm(list(self.algo.nets.parameters()))
        if not torch.isfinite(norm):
            self._diverged(self.step)
        yield self.record("train", self.algo.log_info(averages.mean()))

    def _validate(self, loader: BatchLoader) -> dict[str, float]:
        """The same batches every epoch, so that losses compare."""
        steps = self.config.experiment.validation_epoch_every_n_steps or loader.batches_per_pass
        loader.position = 0
        averages = Averages(steps)
        self.algo.set_eval()
        with preserved_rng():
            for _, batch in zip(range(steps), loader, strict=False):
                batch = self.algo.process_batch_for_training(batch)
                self._add(averages, self.algo.train_on_batch(batch, self.epoch, validate=True))
            averages.fold()
        return self.algo.log_info(averages.mean())

    def _add(self, averages: "Averages", info: dict[str, torch.Tensor]) -> None:
        try:
            averages.add(info)
        except ValueError as error:
            where = f"{self.config.algo_name}, step {self.step} (epoch {self.epoch})"
            raise ValueError(f"{where}: {error}") from None

    def _check_finite(self, losses: torch.Tensor) -> None:
        bad = (~torch.isfinite(losses)).nonzero()
        if len(bad):
            self._diverged(self.step - len(losses) + int(bad[0]) + 1)

    def _diverged(self, step: int) -> None:
        raise ValueError(
            f"{self.config.algo_name}: the loss became NaN or infinite at step {step} (epoch "
            f"{self.epoch}); lower the learning rate (algo.optim_params) or set "
            "train.max_grad_norm. Checkpoints, where there are any, hold earlier weights"
        )

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds; the checkpointer adds the best scores."""
        return self.experiment.state() | {
            "variable_state": {"epoch": self.epoch, "step": self.step},
            "rng": rng_state(),
            "loader": {"position": self.loader.position},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state`` as if never interrupted; warns of what would make a difference."""
        theirs, ours = state["algo_name"], self.config.algo_name
        if theirs != ours:
            raise ValueError(f"a checkpoint of {theirs!r}; this run trains {ours!r}")
        self.algo.deserialize(state["model"])
        self.epoch = state["variable_state"]["epoch"]
        self.step = state["variable_state"]["step"]
        self.loader.position = state["loader"]["position"]
        set_rng_state(state["rng"])
        now = self.config.meta.provenance
        for key in ("git_commit", "num_threads", "packages"):
            if state["provenance"][key] != now[key]:
                log.warning(
                    f"resumed with another {key} ({now[key]}, was {state['provenance'][key]}): the "
                    "weights may differ from those of an uninterrupted run"
                )


class Averages:
    """Averages of the numbers that an epoch's steps return, taken on the device: of each over the
    steps that have it.

    A step's numbers are copied into one row: to hold on to hundreds of small tensors scatters the
    large ones over the heap, which costs more than the copy.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity  # steps between two folds
        self._counts: dict[str, int] = {}
        self._rows = self._total = self._zero = torch.empty(0)
        self._recent = 0

    def add(self, info: dict[str, torch.Tensor]) -> None:
        """``ValueError`` for numbers without ``loss``, or on several devices."""
        if "loss" not in info:
            raise ValueError(f"update returned no 'loss', but {', '.join(info) or 'nothing'}")
        if info["loss"].ndim:
            raise ValueError(f"the loss has shape {[*info['loss'].shape]}; one number is needed")
        if not info.keys() <= self._counts.keys():
            self._widen(info)
        for name in info:
            self._counts[name] += 1
        values = [info.get(name, self._zero) for name in self._counts]
        try:
            torch.stack(values, out=self._rows[self._recent])
        except RuntimeError:
            raise ValueError(_why_not_numbers(info, self._zero)) from None
        self._recent += 1

    def _widen(self, info: dict[str, torch.Tensor]) -> None:
        """Columns of zeros for new names."""
        known = len(self._counts)
        self._counts |= {name: 0 for name in info if name not in self._counts}
        zeros = info["loss"].new_zeros(self._capacity + 1, len(self._counts))
        zeros[:-1, :known], zeros[-1, :known] = self._rows, self._total
        self._rows, self._total, self._zero = zeros[:-1], zeros[-1], zeros.new_zeros(())

    def fold(self) -> torch.Tensor:
        """Take in what was added since the last time; returns its losses, ``[num_steps]``."""
        rows = self._rows[: self._recent]
        self._total += rows.sum(0)
        self._recent = 0
        return rows[:, list(self._counts).index("loss")]

    def mean(self) -> dict[str, torch.Tensor]:
        totals = zip(self._counts.items(), self._total, strict=True)
        return {name: total / count for (name, count), total in totals}


def _why_not_numbers(info: dict[str, torch.Tensor], one: torch.Tensor) -> str:
    for name, value in info.items():
        if value.device != one.device:
            return f"update returned {name!r} on {value.device}, but the loss is on {one.device}"
        if value.shape != one.shape:
            return f"update returned {name!r} of shape {list(value.shape)}; one number is needed"
    return "update returned numbers that do not go together"
