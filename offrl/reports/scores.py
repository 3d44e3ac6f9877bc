"""How results of several seeds and tasks are summed up: the measures of Agarwal et al., 2021
(arXiv:2108.13264)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import comb

import numpy as np

from offrl.reports.results import NORMALISED, RETURN, SUCCESS, Result

REPS = 2000  # samples of a bootstrap
LEVEL = 0.05

#: A value, and the ends of its 95 % interval, which are NaN where a single seed gives none.
Interval = tuple[float, float, float]


@dataclass(frozen=True)
class Comparison:
    """Two algorithms on the same tasks."""

    first: str
    second: str
    #: The probability that a training of the first one is better, 0.5 where they are alike.
    improvement: Interval
    #: The least p that so few seeds could give a difference, however large it is.
    least_p: float

    @property
    def verdict(self) -> str:
        """Which is better, in words, if that can be said."""
        value, low, high = self.improvement
        if self.least_p > LEVEL:
            return "too few seeds to order them"
        if low > 0.5 or high < 0.5:
            return f"{self.first if value > 0.5 else self.second} is better"
        return "not told apart"


class Scores:
    """The scores of trainings, by algorithm, task and seed.

    of: which policy of a training counts: ``"final"`` or ``"best"``.
    """

    def __init__(self, results: Sequence[Result], of: str = "final"):
        self.results = results
        self.tasks = [*dict.fromkeys(result.task for result in results)]
        self.algorithms = [*dict.fromkeys(result.algorithm for result in results)]
        self.measures = {
            task: _measure([r for r in results if r.task == task]) for task in self.tasks
        }
        self._scores: dict[tuple[str, str], dict[int, float]] = {}
        for result in results:
            if measured := getattr(result, of):
                score = self.number(result, measured.success, measured.total)
                self._scores.setdefault((result.algorithm, result.task), {})[result.seed] = score

    def number(self, result: Result, success: float, total: float) -> float:
        """What counts on a result's task of a success rate and a mean return."""
        measure = self.measures[result.task]
        if measure == SUCCESS:
            return success
        if measure == NORMALISED:
            low, high = result.returns
            return 100 * (total - low) / (high - low)
        return total

    def of(self, algorithm: str, task: str) -> list[float]:
        """The score of each seed."""
        found = self._scores.get((algorithm, task), {})
        return [found[seed] for seed in sorted(found)]

    def mean(self, algorithm: str, task: str) -> Interval | None:
        """The mean over seeds on a task."""
        scores = self.of(algorithm, task)
        if not scores:
            return None
        numbers = _estimates(np.array(scores)[:, None], lambda x: x.mean(axis=0))
        return _interval(numbers[:, 0])

    @cached_property
    def common(self) -> list[str]:
        """The tasks that can be averaged: on the same scale, and with results of all algorithms."""
        algorithms = self.measured
        tasks = [t for t in self.tasks if algorithms and all(self.of(a, t) for a in algorithms)]
        scales = {self.measures[task] for task in tasks}
        is_one = len(scales) == 1 and (RETURN not in scales or len(tasks) == 1)
        return tasks if is_one else []

    @property
    def measured(self) -> list[str]:
        """The algorithms that have results."""
        return [a for a in self.algorithms if any(self.of(a, task) for task in self.tasks)]

    def matrix(self, algorithm: str) -> np.ndarray:
        """The scores ``[seeds, tasks]`` on the common tasks, of as many seeds as each has."""
        columns = [self.of(algorithm, task) for task in self.common]
        num_seeds = min(map(len, columns))
        return np.array([column[:num_seeds] for column in columns]).T

    @cached_property
    def aggregates(self) -> dict[str, dict[str, Interval]]:
        """By algorithm the interquartile mean, the mean, and the median of the tasks' means."""
        from rliable import metrics

        names = ["interquartile mean", "mean", "median of tasks"]
        functions = [metrics.aggregate_iqm, metrics.aggregate_mean, metrics.aggregate_median]
        table = {}
        for algorithm in self.measured if self.common else []:
            scores = self.matrix(algorithm)
            numbers = _estimates(scores, lambda x: np.array([f(x) for f in functions]))
            table[algorithm] = dict(zip(names, map(_interval, numbers.T), strict=True))
        return table

    def profile(self, algorithm: str, thresholds: np.ndarray) -> np.ndarray:
        """The share of trainings above each threshold, and its interval: ``[3, thresholds]``."""
        return _estimates(
            self.matrix(algorithm), lambda x: (x[..., None] > thresholds).mean(axis=(0, 1))
        )

    def comparisons(self) -> Iterator[Comparison]:
        """The algorithm of the highest interquartile mean with each other one."""
        ranked = self.ranked()
        for other in ranked[1:]:
            yield self.compare(ranked[0], other)

    def ranked(self) -> list[str]:
        """The algorithms on the common tasks, the best first."""
        from rliable.metrics import aggregate_iqm

        if not self.common:
            return []
        return sorted(self.measured, key=lambda a: -aggregate_iqm(self.matrix(a)))

    def compare(self, first: str, second: str) -> Comparison:
        """Compare two algorithms on the common tasks."""
        from rliable.library import StratifiedIndependentBootstrap

        x, y = self.matrix(first), self.matrix(second)
        value, low, high = improvement(x, y), np.nan, np.nan
        if len(x) > 1 and len(y) > 1:
            with _seeded():
                bootstrap = StratifiedIndependentBootstrap(x, y)
                low, high = bootstrap.conf_int(improvement, REPS, method="percentile")[:, 0]
        ways = comb(len(x) + len(y), len(x)) ** x.shape[1]
        return Comparison(first, second, (value, float(low), float(high)), min(1.0, 2 / ways))

    def pairs(self) -> np.ndarray:
        """The probability that each algorithm (row) is better than each other (column)."""
        matrices = [self.matrix(algorithm) for algorithm in self.ranked()]
        table = np.full((len(matrices), len(matrices)), 0.5)
        for i, j in combinations(range(len(matrices)), 2):
            table[i, j] = improvement(matrices[i], matrices[j])
            table[j, i] = 1 - table[i, j]
        return table


def improvement(x: np.ndarray, y: np.ndarray) -> float:
    """The probability that a training of one algorithm, ``[seeds, tasks]``, is better than one of
    another, averaged over tasks; of equal ones half (the statistic of Mann and Whitney)."""
    better = (x[:, None] > y[None]) + 0.5 * (x[:, None] == y[None])
    return float(better.mean())


def needed_seeds(num_tasks: int = 1) -> int:
    """How many seeds of each of two algorithms can order them at all."""
    return next(n for n in range(2, 100) if 2 / comb(2 * n, n) ** num_tasks <= LEVEL)


def _measure(results: Sequence[Result]) -> str:
    """What counts on a task: successes, where there are any."""
    curves = [point[1] for result in results for point in result.curve]
    tests = [m.success for r in results for m in (r.final, r.best) if m]
    if any(curves) or any(tests) or not (curves or tests):
        return SUCCESS
    totals = [m.total for r in results for m in (r.final, r.best) if m]
    totals += [point[2] for result in results for point in result.curve]
    if not any(totals):
        return SUCCESS
    return NORMALISED if all(r.returns for r in results) else RETURN


def _estimates(scores: np.ndarray, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Some numbers ``[K]`` of scores ``[seeds, tasks]``, with their intervals by a stratified
    bootstrap: ``[3, K]``."""
    from rliable.library import get_interval_estimates

    if len(scores) == 1:
        value = function(scores)
        return np.stack([value, *np.full((2, *value.shape), np.nan)])
    with _seeded():
        points, intervals = get_interval_estimates({"x": scores}, function, reps=REPS)
    return np.stack([points["x"], *intervals["x"]])


def _interval(numbers: np.ndarray) -> Interval:
    value, low, high = map(float, numbers)
    return value, low, high


@contextmanager
def _seeded() -> Iterator[None]:
    """A bootstrap that draws the same every time: it draws from NumPy's own generator."""
    before = np.random.get_state()
    np.random.seed(0)
    try:
        yield
    finally:
        np.random.set_state(before)
