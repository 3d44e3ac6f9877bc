"""Summarises results of several seeds and tasks (Agarwal et al., 2021, arXiv:2108.13264)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import comb

import numpy as np

from offrl.reports.results import NORMALISED, RETURN, SUCCESS, Outcome

REPS = 2000  # bootstrap samples
LEVEL = 0.05

#: A value and the ends of its 95 % interval, which are NaN for a single seed.
Interval = tuple[float, float, float]


@dataclass(frozen=True)
class Comparison:
    """The comparison of two algorithms on the same tasks."""

    first: str
    second: str
    #: The probability that a training of the first one is better; 0.5 if they are equal.
    improvement: Interval
    #: The p-value: the chance of a difference as large among any of the report's pairs.
    p: float
    least_p: float  #: The least p-value that so few seeds can have.

    @property
    def verdict(self) -> str:
        """Write which algorithm is better, if that is significant."""
        if self.least_p > LEVEL:
            return "too few seeds to order them"
        if self.p > LEVEL:
            return "not told apart"
        return f"{self.first if self.improvement[0] > 0.5 else self.second} is better"


class Scores:
    """The scores of trainings, by algorithm, task and seed.

    of: the policy of a training that counts: ``"final"`` or ``"best"``.
    """

    def __init__(self, results: Sequence[Outcome], of: str = "final"):
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

    def number(self, result: Outcome, success: float | None, total: float) -> float:
        """Return the score on a result's task for a success rate and a mean return."""
        measure = self.measures[result.task]
        if measure == SUCCESS:
            return success or 0.0  # some report success only when it occurs
        if measure == NORMALISED:
            low, high = result.returns
            return 100 * (total - low) / (high - low)
        return total

    @cached_property
    def of_best(self) -> "Scores":
        """The scores of the best checkpoints."""
        return Scores(self.results, "best")

    def of(self, algorithm: str, task: str) -> list[float]:
        """List the score of each seed."""
        found = self._scores.get((algorithm, task), {})
        return [found[seed] for seed in sorted(found)]

    @cached_property
    def means(self) -> dict[tuple[str, str], Interval]:
        """The mean over seeds, by algorithm and task with results."""

        def mean(scores: list[float]) -> Interval:
            numbers = _estimates(np.array(scores)[:, None], lambda x: x.mean(axis=0))
            return _interval(numbers[:, 0])

        return {of: mean(self.of(*of)) for of in self._scores}

    @cached_property
    def common(self) -> list[str]:
        """The tasks on which all compared algorithms have results. If some lack tasks, the choice
        of tasks and algorithms with most trainings."""
        done = {a: [t for t in self.tasks if self.of(a, t)] for a in self.algorithms}
        ordered = sorted(filter(done.get, done), key=lambda a: -len(done[a]))
        tasks: list[str] = []
        most = 0
        # A single algorithm only if there is no other, as it cannot be compared.
        for number in range(len(ordered), min(len(ordered), 2) - 1, -1):
            shared = [t for t in self.tasks if all(t in done[a] for a in ordered[:number])]
            seeds = [min((len(self.of(a, t)) for t in shared), default=0) for a in ordered[:number]]
            if sum(seeds) * len(shared) > most:
                tasks, most = shared, sum(seeds) * len(shared)
        return tasks

    @property
    def can_be_averaged(self) -> bool:
        """Say whether the common tasks are on the same scale."""
        scales = {self.measures[task] for task in self.common}
        return len(scales) == 1 and (RETURN not in scales or len(self.common) == 1)

    @cached_property
    def compared(self) -> list[str]:
        """The algorithms that have results on all common tasks."""
        return [
            a for a in self.algorithms if self.common and all(self.of(a, t) for t in self.common)
        ]

    def matrix(self, algorithm: str) -> np.ndarray:
        """Return scores ``[seeds, tasks]`` on the common tasks, for as many seeds as all have."""
        columns = [self.of(algorithm, task) for task in self.common]
        num_seeds = min(map(len, columns))
        return np.array([column[:num_seeds] for column in columns]).T

    @cached_property
    def aggregates(self) -> dict[str, dict[str, Interval]]:
        """The interquartile mean, the mean and, for several tasks, their median, by algorithm."""
        from rliable import metrics

        measures = {"interquartile mean": metrics.aggregate_iqm, "mean": metrics.aggregate_mean}
        if len(self.common) > 1:
            measures["median of tasks"] = metrics.aggregate_median
        table = {}
        for algorithm in self.compared:
            scores = self.matrix(algorithm)
            numbers = _estimates(scores, lambda x: np.array([f(x) for f in measures.values()]))
            table[algorithm] = dict(zip(measures, map(_interval, numbers.T), strict=True))
        return table

    def profile(self, algorithm: str, thresholds: np.ndarray) -> np.ndarray:
        """Compute the share of trainings above ``thresholds``, and its interval: ``[3, ...]``."""
        return _estimates(
            self.matrix(algorithm), lambda x: (x[..., None] > thresholds).mean(axis=(0, 1))
        )

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """All pairs of algorithms, in the order of their ranks."""
        return [self._compare(*pair) for pair in combinations(self.ranked, 2)]

    @cached_property
    def ranked(self) -> list[str]:
        """The algorithms on the common tasks, those whose trainings are better most often first."""
        matrices = {a: self.matrix(a) for a in self.compared}
        better = {
            a: sum(improvement(own, other) for other in matrices.values())
            for a, own in matrices.items()
        }
        return sorted(better, key=lambda a: -better[a])

    def _compare(self, first: str, second: str) -> Comparison:
        from rliable.library import StratifiedIndependentBootstrap

        x, y = self.matrix(first), self.matrix(second)
        value, low, high = improvement(x, y), np.nan, np.nan
        if len(x) > 1 and len(y) > 1:
            with _seeded():
                bootstrap = StratifiedIndependentBootstrap(x, y)
                low, high = bootstrap.conf_int(improvement, REPS, method="percentile")[:, 0]
        p = self.chances[frozenset((first, second))]
        # With ties, the other tail may be nearer to the mean, and not count.
        least = min(p, len(self.chances) * _least_chance(len(x), len(y), x.shape[1]))
        return Comparison(first, second, (value, float(low), float(high)), p, least)

    @cached_property
    def chances(self) -> dict[frozenset[str], float]:
        """The p-value of each pair, corrected for their number (Holm, 1979)."""
        pairs = [*combinations(self.compared, 2)]
        found = np.array([chance(self.matrix(a), self.matrix(b)) for a, b in pairs])
        order = np.argsort(found, kind="stable")
        corrected = np.maximum.accumulate(found[order] * np.arange(len(pairs), 0, -1))
        return {
            frozenset(pairs[i]): min(1.0, float(p)) for i, p in zip(order, corrected, strict=True)
        }

    def pairs(self) -> np.ndarray:
        """Return the probability that each algorithm (row) is better than each other (column)."""
        table = np.full((len(self.ranked), len(self.ranked)), 0.5)
        for (i, j), found in zip(combinations(range(len(table)), 2), self.comparisons, strict=True):
            table[i, j], table[j, i] = found.improvement[0], 1 - found.improvement[0]
        return table


def improvement(x: np.ndarray, y: np.ndarray) -> float:
    """Compute the probability that a training of one algorithm, ``[seeds, tasks]``, is better than
    one of another, averaged over tasks. Equal ones count half (Mann and Whitney)."""
    better = (x[:, None] > y[None]) + 0.5 * (x[:, None] == y[None])
    return float(better.mean())


def chance(x: np.ndarray, y: np.ndarray) -> float:
    """Compute the p-value of a difference of two algorithms, ``[seeds, tasks]`` each: the exact
    permutation test of the rank sum of trainings in each task (Wilcoxon; van Elteren for several
    tasks)."""
    found, ways = 0, np.ones(1)  # number of ways for each sum of ranks
    for own, others in zip(x.T, y.T, strict=True):
        scores = np.concatenate([own, others])
        # Twice the rank, so that ranks of ties are integers.
        ranks = 2 * (scores[:, None] > scores).sum(1) + (scores[:, None] == scores).sum(1)
        found += ranks[: len(own)].sum()
        of_size = np.zeros((len(own) + 1, ranks.sum() + 1))
        of_size[0, 0] = 1  # number of sets by size and sum
        for rank in ranks:
            of_size[1:, rank:] += of_size[:-1, :-rank]
        ways = np.convolve(ways, of_size[-1])
    sums, shares = np.arange(len(ways)), ways / ways.sum()
    distance = np.abs(sums - sums @ shares)
    return min(1.0, float(shares[distance >= distance[found] - 1e-6].sum()))


def needed_seeds(num_tasks: int = 1, num_pairs: int = 1) -> int:
    """Return the least number of seeds with which a pair of algorithms can differ significantly."""
    return next(n for n in range(2, 100) if num_pairs * _least_chance(n, n, num_tasks) <= LEVEL)


def _least_chance(num_seeds: int, num_others: int, num_tasks: int) -> float:
    return min(1.0, 2 / comb(num_seeds + num_others, num_seeds) ** num_tasks)


def _measure(results: Sequence[Outcome]) -> str:
    """Choose the measure of a task: success rates, if any is positive or there is no other."""
    found = [(m.success, m.total) for r in results for m in (r.final, r.best) if m]
    found += [(rate, total) for result in results for _, rate, total in result.curve]
    rates = [rate for rate, _ in found if rate is not None]
    if not found or any(rates) or (rates and not any(total for _, total in found)):
        return SUCCESS
    return NORMALISED if all(r.returns for r in results) else RETURN


def _estimates(scores: np.ndarray, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Estimate some numbers ``[K]`` of scores ``[seeds, tasks]``, with their intervals by a
    stratified bootstrap: ``[3, K]``."""
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
    """Seed a bootstrap, which uses NumPy's global generator."""
    before = np.random.get_state()
    np.random.seed(0)
    try:
        yield
    finally:
        np.random.set_state(before)
