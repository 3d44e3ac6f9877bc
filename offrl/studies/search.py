"""The search for the best settings of configs, with Optuna, by trainings that are cells."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from offrl.config.build import config_from_content
from offrl.lazy import needed
from offrl.outputs import locked, writable_folder
from offrl.registry import shown
from offrl.reports.run import Run
from offrl.studies.cells import Cell, Found, cells_of, named_configs, searched, trial_cell
from offrl.studies.config import Range, StudyConfig
from offrl.studies.run import Cells, Job, problem_of
from offrl.studies.table import result_line, run_of
from offrl.tree import differences, leaves

log = logging.getLogger(__name__)

STORAGE = "search.db"


def search(study: StudyConfig, beside: Path, cells: Cells) -> dict[str, Found]:
    """Search for the best settings of each config, and give them by its name.

    The first training has the config's own values, as far as the space has them. Other proposals
    come from a tree of Parzen estimators (Bergstra et al., 2011); a training that is worse than the
    median of the earlier ones after as many epochs is pruned. The best training is the one whose
    last evaluation has the highest success rate, of equal ones the highest return. All is kept in
    ``search.db``, by which an interrupted search goes on, until a cell has begun with what it
    found.
    """
    optuna = needed("optuna", "tune", "a search needs Optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    writable_folder(cells.output)
    with locked(cells.output, "another process is running a study there"):
        planned = cells_of(study, beside)
        begun = {cell.config for cell in planned if run_of(cells.output / cell.name)}
        searches = {
            config: _Search(optuna, study, beside, config, cells.output, config in begun)
            for config in searched(study, beside)
        }
        cells.run_each(
            _in_turn([*searches.values()]),
            sum(search.todo for search in searches.values()),
            lambda cell, why: searches[cell.config].ended(cell, why),
            lambda cell, job: searches[cell.config].watch(cell, job),
        )
    return {config: search.best() for config, search in searches.items()}


def _in_turn(searches: Sequence["_Search"]) -> Iterator[Cell]:
    """A trial of each, then the next one of each: no core waits for the last ones of a config, and
    proposals know the earlier trials."""
    while any(search.todo for search in searches):
        yield from (search.propose() for search in searches if search.todo)


class _Search:
    """The search for one config.

    is_over: whether a cell has begun with what it found.
    todo: how many trials are due.
    """

    def __init__(
        self,
        optuna: Any,
        study: StudyConfig,
        beside: Path,
        config: str,
        output: Path,
        is_over: bool,
    ):
        assert study.search is not None
        self.optuna, self.study, self.beside, self.config = optuna, study, beside, config
        self.output, self.options = output, study.search
        self.trials: dict[str, Any] = {}  # that run, by the names of their cells
        self.told: dict[str, set[int]] = {}  # the epochs whose evaluations are known of each
        self.pruned: set[str] = set()
        self.why = ""  # of the last training that failed
        self.optimization = self._load()
        state = optuna.trial.TrialState
        over = self.optimization.get_trials(states=(state.COMPLETE, state.PRUNED))
        self.todo = max(0, self.options.trials - len(over))
        if is_over and self.todo:
            log.info(f"{config}: no more trials: cells have begun with what its search found")
            self.todo = 0
        # Those that an earlier process left.
        self.left = self.optimization.get_trials(deepcopy=False, states=(state.RUNNING,))

    def _load(self) -> Any:
        """What is known of the trials. ``ValueError`` if it is of a search for something else, of
        which a training has begun; more trials are welcome."""
        entry = next(x for x in named_configs(self.study, self.beside) if x.name == self.config)
        no_matter = {"trials": True, "dataset": {"name", "collect", "returns"}}
        options = self.options.model_dump(mode="json", exclude=no_matter)
        options["space"] = options["space"][self.config]
        now = {"config": entry.content, "search": options, "set": {**self.study.set, **entry.set}}
        storage = f"sqlite:///{self.output / STORAGE}"
        known = {
            "storage": storage,
            "study_name": self.config,
            "directions": ["maximize"],
            "pruner": self.optuna.pruners.MedianPruner(),
            "load_if_exists": True,
        }
        try:
            found = self.optuna.create_study(**known)
        except needed("sqlalchemy.exc", "tune", "a search needs it").DatabaseError as error:
            raise ValueError(
                f"{self.output / STORAGE} is damaged, or cannot be opened ({error.orig}); move "
                f"{self.output} away to search anew"
            ) from None
        if changed := differences(found.user_attrs.get("asked", now), now):
            if any(run_of(self.output / self._cell(trial).name) for trial in found.trials):
                raise ValueError(
                    f"{self.output / STORAGE} holds a search for {self.config} with another "
                    f"{', '.join(changed)}; put it back, or name another output in the study"
                )
            self.optuna.delete_study(study_name=self.config, storage=storage)
            found = self.optuna.create_study(**known)
        if not found.trials:
            found.enqueue_trial(self._own_values())
        found.set_user_attr("asked", now)
        return found

    def _own_values(self) -> dict[str, Any]:
        """Give what the config itself says of what is searched, as far as the space has it."""
        cell = trial_cell(self.study, self.beside, self.config, 0, {})
        known = {} if problem_of(cell) else leaves(config_from_content(cell.content).to_dict())
        space = self.options.space[self.config]
        return {k: known[k] for k in space.keys() & known.keys() if _has(space[k], known[k])}

    def _cell(self, trial: Any) -> Cell:
        return trial_cell(self.study, self.beside, self.config, trial.number, trial.params)

    def best(self) -> Found:
        """The settings of the best trial, if one came to its end."""
        if not self._complete:
            where = self.output / "search"
            why = f": {self.why}" if self.why else f", see {where}"
            return Found(problem=f"no training of its search came to its end{why}")
        best = self.optimization.best_trial
        cell = self._cell(best)
        settings = ", ".join(f"{key} {shown(value)}" for key, value in best.params.items())
        came = result_line(cell, self.output)
        log.info(f"{self.config}: the search found {settings} in trial {best.number}: {came}")
        number = len(self.optimization.trials)
        words = f"{settings} (trials: {number}, on {cell.dataset})"
        return Found(best.params, words)

    @property
    def _complete(self) -> list[Any]:
        """The trials that came to their end."""
        states = (self.optuna.trial.TrialState.COMPLETE,)
        return self.optimization.get_trials(deepcopy=False, states=states)

    def propose(self) -> Cell:
        """The cell of the next trial."""
        self.todo -= 1
        if self.left:
            trial = self.optuna.trial.Trial(self.optimization, self.left.pop(0)._trial_id)
        else:
            trial = self.optimization.ask()
        # What is drawn depends on the number of the trial, and not on when it is asked for.
        seed = self.options.seed + 1000 * trial.number
        self.optimization.sampler = self.optuna.samplers.TPESampler(seed=seed)
        values = {
            key: _suggested(trial, key, space)
            for key, space in self.options.space[self.config].items()
        }
        cell = trial_cell(self.study, self.beside, self.config, trial.number, values)
        self.trials[cell.name] = trial
        known = self.optimization.trials[trial.number].intermediate_values
        self.told[cell.name] = set(known)
        return cell

    def watch(self, cell: Cell, job: Job) -> None:
        """Tell of each evaluation, and prune."""
        trial, told = self.trials[cell.name], self.told[cell.name]
        evaluations = self._evaluations(cell)
        for epoch in sorted(evaluations.keys() - told):  # pruning judges the latest epoch
            told.add(epoch)
            trial.report(evaluations[epoch], epoch)
            if cell.name not in self.pruned and trial.should_prune():
                self.pruned.add(cell.name)
                job.stop()

    def ended(self, cell: Cell, why: str) -> None:
        trial, states = self.trials[cell.name], self.optuna.trial.TrialState
        values = self._evaluations(cell, has_ended=True)
        if cell.name in self.pruned:
            log.info(f"{cell.name}: pruned")
            self.optimization.tell(trial, state=states.PRUNED)
        elif why or not values:
            self.why = why or "it was never evaluated"
            log.info(f"{cell.name}: failed: {self.why}")
            self.optimization.tell(trial, state=states.FAIL)
            could_train = why and run_of(self.output / cell.name)
            if not (could_train or self._complete):  # nor will the others
                self.todo = 0
        else:
            log.info(f"{cell.name}: {result_line(cell, self.output)}")
            self.optimization.tell(trial, values[max(values)])

    def _evaluations(self, cell: Cell, has_ended: bool = False) -> dict[int, float]:
        """By the epoch, what the search maximises: the score of evaluations; of trainings without
        any the validation loss, the smaller the better, or the return of the episodes of an epoch.
        """
        if (path := run_of(self.output / cell.name)) is None:
            return {}
        run = Run(path)
        if run.evaluations or (run.config["experiment"]["rollout"]["enabled"] and not has_ended):
            return {record["epoch"]: _score(record["logs"]) for record in run.evaluations}
        collected = [r for r in run.of_type("collect") if "Return" in r["logs"]]
        losses = {r["epoch"]: -r["logs"]["Loss"] for r in run.of_type("valid")}
        return losses or {r["epoch"]: r["logs"]["Return"] for r in collected}


def _score(logs: Mapping[str, float]) -> float:
    """The success rate, if any is reported, and of equal ones the return: it adds less than one
    episode's success."""
    share = 0.5 + math.atan(logs["Return"]) / math.pi
    return logs.get("Success_Rate", 0.0) + share / (2 * logs["n"])


def _has(space: list[Any] | Range, value: Any) -> bool:
    if isinstance(space, list):
        return value in space
    return isinstance(value, (int, float)) and space.low <= value <= space.high


def _suggested(trial: Any, key: str, space: list[Any] | Range) -> Any:
    if isinstance(space, Range):
        if isinstance(space.low, int) and isinstance(space.high, int):
            return trial.suggest_int(key, space.low, space.high, log=space.log)
        return trial.suggest_float(key, space.low, space.high, log=space.log)
    return trial.suggest_categorical(key, space)
