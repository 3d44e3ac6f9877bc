"""Searches for the best settings of configs with Optuna; each trial is a cell."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from offrl.config.build import config_from_content
from offrl.lazy import needed
from offrl.outputs import locked, writable_folder
from offrl.registry import shown
from offrl.studies.cells import Cell, Plan, SearchResult, StudiedConfig
from offrl.studies.config import Range
from offrl.studies.run import CellRunner, Job, problem_of
from offrl.studies.table import read_run, result_line, run_of
from offrl.tree import differences, leaves

log = logging.getLogger(__name__)

STORAGE = "search.db"


def search(plan: Plan, runner: CellRunner) -> dict[str, SearchResult]:
    """Search for the best settings of each config, and return them by its name.

    The first trial has the config's own values, if the space contains them. Others come from a
    tree-structured Parzen estimator (Bergstra et al., 2011); a trial that is worse than the median
    of earlier ones at the same epoch is pruned. The best trial has the highest success rate in its
    last evaluation, and of equal ones the highest return. ``search.db`` holds the trials, from
    which an interrupted search resumes, until a cell begins with the result.
    """
    optuna = needed("optuna", "tune", "a search needs Optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    writable_folder(runner.output)
    with locked(runner.output, "another process is running a study there"):
        begun = {cell.config for cell in plan.cells() if run_of(runner.output / cell.name)}
        searches = {
            name: _Search(optuna, plan, config, runner, is_over=name in begun)
            for name, config in plan.searched.items()
        }
        runner.run_each(
            _in_turn([*searches.values()]),
            sum(search.todo for search in searches.values()),
            lambda cell, why: searches[cell.config].ended(cell, why),
            lambda cell, job: searches[cell.config].watch(cell, job),
        )
    return {name: search.best() for name, search in searches.items()}


def _in_turn(searches: Sequence["_Search"]) -> Iterator[Cell]:
    """Propose a trial of each search in turn, so that no core idles at the end of one, and
    proposals know earlier trials."""
    while any(search.todo for search in searches):
        yield from (search.propose() for search in searches if search.todo)


class _Search:
    """The search for one config.

    is_over: true if a cell has begun with its result.
    todo: the number of trials left.
    """

    def __init__(
        self, optuna: Any, plan: Plan, config: StudiedConfig, runner: CellRunner, is_over: bool
    ):
        assert plan.study.search is not None
        self.optuna, self.states = optuna, optuna.trial.TrialState
        self.plan, self.config, self.output = plan, config, runner.output
        self.options = plan.study.search
        self.space = self.options.space[config.name]
        self.trials: dict[str, Any] = {}  # running ones, by names of cells
        self.told: dict[str, set[int]] = {}  # epochs reported to Optuna, by cells
        self.pruned: set[str] = set()
        self.why = ""  # reason of the last failed trial
        self.optimization = self._load()
        over = self.optimization.get_trials(states=(self.states.COMPLETE, self.states.PRUNED))
        self.todo = max(0, self.options.trials - len(over))
        if is_over and self.todo:
            log.info(f"{config.name}: no more trials: cells have begun with what its search found")
            self.todo = 0
        # Trials that an earlier process left.
        self.left = self.optimization.get_trials(deepcopy=False, states=(self.states.RUNNING,))

    def _load(self) -> Any:
        """Load the stored trials, of which there may be fewer than asked for. Raises ``ValueError``
        if a search with other settings has begun."""
        name, config = self.config.name, self.config
        no_matter: Any = {"trials": True, "dataset": {"name", "collect", "returns"}}
        options = self.options.model_dump(mode="json", exclude=no_matter)
        options["space"] = options["space"][name]
        settings = {**self.plan.study.set, **config.set}
        now = {"config": config.content, "search": options, "set": settings}
        storage = f"sqlite:///{self.output / STORAGE}"
        known = {
            "storage": storage,
            "study_name": name,
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
                    f"{self.output / STORAGE} holds a search for {name} with another "
                    f"{', '.join(changed)}; put it back, or name another output in the study"
                )
            self.optuna.delete_study(study_name=name, storage=storage)
            found = self.optuna.create_study(**known)
        if not found.trials:
            # The config's own values of the searched keys, if the space contains them.
            cell = self.plan.trial(config, 0, {})
            own = {} if problem_of(cell) else leaves(config_from_content(cell.content).to_dict())
            keys = self.space.keys() & own.keys()
            found.enqueue_trial({k: own[k] for k in keys if _holds(self.space[k], own[k])})
        found.set_user_attr("asked", now)
        return found

    def _cell(self, trial: Any) -> Cell:
        return self.plan.trial(self.config, trial.number, trial.params)

    def best(self) -> SearchResult:
        """Return the settings of the best trial, if one was completed."""
        if not self._complete:
            why = f": {self.why}" if self.why else f", see {self.output / 'search'}"
            return SearchResult(problem=f"no training of its search came to its end{why}")
        best = self.optimization.best_trial
        cell = self._cell(best)
        settings = ", ".join(f"{key} {shown(value)}" for key, value in best.params.items())
        came = result_line(cell, self.output)
        log.info(f"{self.config.name}: the search found {settings} in trial {best.number}: {came}")
        words = f"{settings} (trials: {len(self.optimization.trials)}, on {cell.dataset})"
        return SearchResult(best.params, words)

    @property
    def _complete(self) -> list[Any]:
        """The completed trials."""
        return self.optimization.get_trials(deepcopy=False, states=(self.states.COMPLETE,))

    def propose(self) -> Cell:
        """Return the cell of the next trial."""
        self.todo -= 1
        if self.left:
            trial = self.optuna.trial.Trial(self.optimization, self.left.pop(0)._trial_id)
        else:
            trial = self.optimization.ask()
        # Draws depend on the number of the trial, not on the time of the request.
        seed = self.options.seed + 1000 * trial.number
        self.optimization.sampler = self.optuna.samplers.TPESampler(seed=seed)
        values = {key: _suggested(trial, key, space) for key, space in self.space.items()}
        cell = self.plan.trial(self.config, trial.number, values)
        self.trials[cell.name] = trial
        self.told[cell.name] = {*self.optimization.trials[trial.number].intermediate_values}
        return cell

    def watch(self, cell: Cell, job: Job) -> None:
        """Report a running cell's evaluations to Optuna, and stop it if Optuna prunes it."""
        trial, told = self.trials[cell.name], self.told[cell.name]
        evaluations = self._evaluations(cell)
        for epoch in sorted(evaluations.keys() - told):  # pruning judges the latest epoch
            told.add(epoch)
            trial.report(evaluations[epoch], epoch)
            if cell.name not in self.pruned and trial.should_prune():
                self.pruned.add(cell.name)
                job.stop()

    def ended(self, cell: Cell, why: str) -> None:
        """Report the result of a cell, or its failure, to Optuna."""
        values = self._evaluations(cell, has_ended=True)
        if cell.name in self.pruned:
            says, outcome = "pruned", {"state": self.states.PRUNED}
        elif why or not values:
            self.why = why or "it was never evaluated"
            says, outcome = f"failed: {self.why}", {"state": self.states.FAIL}
        else:
            says, outcome = result_line(cell, self.output), {"values": values[max(values)]}
        log.info(f"{cell.name}: {says}")
        self.optimization.tell(self.trials[cell.name], **outcome)
        has_failed = outcome.get("state") == self.states.FAIL
        could_train = why and run_of(self.output / cell.name)
        if has_failed and not (could_train or self._complete):  # others will fail, too
            self.todo = 0

    def _evaluations(self, cell: Cell, has_ended: bool = False) -> dict[int, float]:
        """Return the objective by epochs: the score of evaluations or, without any, the negative
        validation loss or the return of episodes."""
        run = read_run(self.output / cell.name)
        if run is None:
            return {}
        if run.evaluations or (run.config["experiment"]["rollout"]["enabled"] and not has_ended):
            return {record["epoch"]: _score(record["logs"]) for record in run.evaluations}
        collected = [r for r in run.of_type("collect") if "Return" in r["logs"]]
        losses = {r["epoch"]: -r["logs"]["Loss"] for r in run.of_type("valid")}
        return losses or {r["epoch"]: r["logs"]["Return"] for r in collected}


def _score(logs: Mapping[str, float]) -> float:
    """Return the success rate, if any, plus the return, scaled below one episode's success."""
    share = 0.5 + math.atan(logs["Return"]) / math.pi
    return logs.get("Success_Rate", 0.0) + share / (2 * logs["n"])


def _holds(space: list[Any] | Range, value: Any) -> bool:
    if isinstance(space, list):
        return value in space
    return isinstance(value, (int, float)) and space.low <= value <= space.high


def _suggested(trial: Any, key: str, space: list[Any] | Range) -> Any:
    if isinstance(space, list):
        return trial.suggest_categorical(key, space)
    is_whole = isinstance(space.low, int) and isinstance(space.high, int)
    suggest = trial.suggest_int if is_whole else trial.suggest_float
    return suggest(key, space.low, space.high, log=space.log)
