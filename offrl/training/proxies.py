"""Evaluates policies without an environment during training."""

from collections.abc import Iterable, Iterator

from offrl.algos import PlannerAlgo
from offrl.evaluation.proxies import proxies
from offrl.seeding import preserved_rng
from offrl.training.recorded import Record, Trainer


class Proxies:
    """Measures the policy without an environment every ``experiment.proxies.rate`` epochs and in
    the last one. It inserts a ``proxy`` record before the ``epoch`` record.

    The data are the held-out demonstrations if there are any (``experiment.validate``), else those
    of the training, which goes on as if nothing had been measured.
    """

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self.config = trainer.config.experiment.proxies
        if self.config.enabled:
            if isinstance(trainer.algo, PlannerAlgo):
                raise ValueError(
                    f"experiment.proxies.enabled: {trainer.config.algo_name} takes no actions that "
                    "could be measured; set it to false"
                )
            if self.config.fqe_steps and trainer.config.train.goal_rewards:
                raise ValueError(
                    "experiment.proxies.fqe_steps: fitted Q evaluation is of the data's rewards, "
                    "and this policy learns from train.goal_rewards; set it to 0"
                )
            data = held_out = trainer.dataset.single_steps()
            if trainer.valid_loader is not None:
                held_out = trainer.valid_loader.dataset.single_steps()
            self._data = data, held_out

    def __call__(self, records: Iterable[Record]) -> Iterator[Record]:
        config = self.trainer.config
        for record in records:
            epoch = record["epoch"]
            is_due = epoch % self.config.rate == 0 or epoch == config.train.num_epochs
            if self.config.enabled and record["type"] == "epoch" and is_due:
                steps, seed = self.config.fqe_steps, config.train.seed
                with self.trainer.holding(record):
                    with preserved_rng(), self.trainer.interrupts.at_once():
                        logs = proxies(self.trainer.algo, *self._data, steps, seed)
                    yield self.trainer.record("proxy", logs)
            yield record
