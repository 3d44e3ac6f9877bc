"""The search for the best settings of configs, with Optuna, by trainings that are cells."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from offrl.config.study import Cell, Range, StudyConfig, searched, trial_cell
from offrl.outputs import locked, writable_folder
from offrl.reports.records import read_records
from offrl.reports.study import run_of
from offrl.training.study import Cells, Job

STORAGE = "search.db"


def search(study: StudyConfig, beside: Path, cells: Cells) -> dict[str, dict[str, Any]]:
    """Search for the best settings of each config, and give them by its name; those of which no
    training came to its end are left out.

    Proposals come from a tree of Parzen estimators (Bergstra et al., 2011); a training that is
    worse than the median of the earlier ones after as many epochs is pruned. The best training is
    the one whose last evaluation has the highest success rate, of equal ones the highest return.
    All is kept in ``search.db``, by which an interrupted search goes on.
    """
    optuna = _import_optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    writable_folder(cells.output)
    assert study.search is not None
    found = {}
    with locked(cells.output, "another process is running a study there"):
        for config in searched(study, beside):
            if best := _Search(optuna, study, beside, config, cells).best():
                found[config] = best
    return found


class _Search:
    """The search for one config."""

    def __init__(self, optuna: Any, study: StudyConfig, beside: Path, config: str, cells: Cells):
        assert study.search is not None
        self.optuna, self.study, self.beside, self.config = optuna, study, beside, config
        self.cells, self.options = cells, study.search
        self.trials: dict[str, Any] = {}  # that run, by the names of their cells
        self.told: dict[str, set[int]] = {}  # the epochs whose evaluations are known of each
        self.pruned: set[str] = set()
        self.optimization = optuna.create_study(
            storage=f"sqlite:///{cells.output / STORAGE}",
            study_name=config,
            directions=["maximize"],
            pruner=optuna.pruners.MedianPruner(),
            load_if_exists=True,
        )

    def best(self) -> dict[str, Any]:
        """Run the trials that are due; the settings of the best one."""
        states = self.optuna.trial.TrialState
        over = len(self.optimization.get_trials(states=(states.COMPLETE, states.PRUNED)))
        todo = self.options.trials - over
        self.cells.run_each(self._proposed(todo), todo, self._ended, self._watch)
        if not self.optimization.get_trials(states=(states.COMPLETE,)):
            return {}
        return dict(self.optimization.best_params)

    def _proposed(self, number: int) -> Iterator[Cell]:
        """The cells of the next trials; first those that an earlier process left."""
        running = self.optuna.trial.TrialState.RUNNING
        left = self.optimization.get_trials(deepcopy=False, states=(running,))
        for count in range(number):
            if count < len(left):
                trial = self.optuna.trial.Trial(self.optimization, left[count]._trial_id)
            else:
                # What is drawn depends on the number of the trial, and not on when it is asked for.
                seed = self.options.seed + 1000 * len(self.optimization.trials)
                self.optimization.sampler = self.optuna.samplers.TPESampler(seed=seed)
                trial = self.optimization.ask()
            values = {
                key: _suggested(trial, key, space)
                for key, space in self.options.space[self.config].items()
            }
            cell = trial_cell(self.study, self.beside, self.config, trial.number, values)
            self.trials[cell.name] = trial
            known = self.optimization.trials[trial.number].intermediate_values
            self.told[cell.name] = set(known)
            yield cell

    def _watch(self, cell: Cell, job: Job) -> None:
        """Tell of each evaluation, and prune."""
        trial, told = self.trials[cell.name], self.told[cell.name]
        evaluations = self._evaluations(cell)
        for epoch in evaluations.keys() - told:
            told.add(epoch)
            trial.report(evaluations[epoch], epoch)
            if cell.name not in self.pruned and trial.should_prune():
                self.pruned.add(cell.name)
                job.stop()

    def _ended(self, cell: Cell, why: str) -> None:
        trial, states = self.trials[cell.name], self.optuna.trial.TrialState
        values = self._evaluations(cell)
        if cell.name in self.pruned:
            self.optimization.tell(trial, state=states.PRUNED)
        elif why or not values:
            why = why or "it was never evaluated"
            tqdm.write(f"{cell.name}: failed: {why}", file=sys.stderr)
            self.optimization.tell(trial, state=states.FAIL)
        else:
            self.optimization.tell(trial, values[max(values)])

    def _evaluations(self, cell: Cell) -> dict[int, float]:
        """By the epoch, what the search maximises."""
        run = run_of(self.cells.output / cell.name)
        records = read_records(run / "metrics.jsonl")[0] if run else []
        return {r["epoch"]: _score(r["logs"]) for r in records if r["type"] == "rollout"}


def _score(logs: Mapping[str, float]) -> float:
    """The success rate; a hundredth of the least difference is left to the return, which alone
    counts where nothing succeeds."""
    rate, total = logs.get("Success_Rate", 0.0), logs.get("Return", 0.0)
    return rate + 1e-6 * total if rate else 1e-6 * total


def _suggested(trial: Any, key: str, space: list[Any] | Range) -> Any:
    if isinstance(space, Range):
        return trial.suggest_float(key, space.low, space.high, log=space.log)
    return trial.suggest_categorical(key, space)


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ImportError(f"a search needs Optuna ({error}); pip install 'offrl[tune]'") from None
    return optuna
