"""The numbers of a report, by task and algorithm, and as CSV."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan
from pathlib import Path
from statistics import median
from typing import Any

from offrl.intervals import wilson_interval
from offrl.reports.results import SUCCESS, Measurement, write_rows
from offrl.reports.scores import Interval, Scores


@dataclass(frozen=True)
class FinalRow:
    """The final results of an algorithm's trainings on a task."""

    task: str
    algorithm: str
    measure: str
    last: Interval | None  #: The last policies: the mean over seeds, with its interval.
    best: Interval | None  #: The best checkpoints.
    over_episodes: Interval | None  #: The success rate of the last policies over all episodes.
    num_seeds: int  #: The number of seeds with a result.
    of_seeds: int
    episodes: str  #: The number of episodes of each test.
    steps: str
    minutes: float | None  #: The median minutes of training.

    @property
    def row(self) -> dict[str, Any]:
        intervals = {"last": self.last, "best": self.best, "over_episodes": self.over_episodes}
        own = {k: "" if v is None else v for k, v in vars(self).items() if k not in intervals}
        return own | _columns(intervals)


def finals(scores: Scores) -> Iterator[FinalRow]:
    """Yield a row for each algorithm on each task."""
    for task in scores.tasks:
        for algorithm in scores.algorithms:
            own = [r for r in scores.results if (r.algorithm, r.task) == (algorithm, task)]
            done = [r for r in own if r.final or r.best]
            if not own:
                continue
            tests = [r.final for r in done if r.final]
            minutes = [r.minutes for r in done if r.minutes]
            yield FinalRow(
                task,
                algorithm,
                scores.measures[task],
                scores.means.get((algorithm, task)),
                scores.of_best.means.get((algorithm, task)),
                _rate_over_episodes(tests) if scores.measures[task] == SUCCESS else None,
                len(done),
                len(own),
                _different(m.n for r in done for m in (r.final, r.best) if m),
                _different(r.steps for r in done),
                median(minutes) if minutes else None,
            )


def _rate_over_episodes(tests: Sequence[Measurement]) -> Interval | None:
    successes, n = sum(round(m.n * (m.success or 0)) for m in tests), sum(m.n for m in tests)
    return (successes / n, *wilson_interval(successes, n)) if n else None


def _different(numbers: Iterable[int]) -> str:
    """List the distinct numbers as text."""
    return "/".join(map(str, sorted({*numbers}))) or "-"


def write_numbers(scores: Scores, folder: Path) -> None:
    """Write the tables of a report as CSV."""
    tables = {"scores.csv": [final.row for final in finals(scores)]}
    if scores.can_be_averaged:
        tables["aggregates.csv"] = [
            {"algorithm": algorithm, **_columns(scores.aggregates[algorithm])}
            for algorithm in scores.ranked
        ]
    if len(scores.ranked) > 1:
        tables["comparisons.csv"] = [
            {
                "algorithm": c.first,
                "compared_with": c.second,
                **_columns({"improvement": c.improvement}),
                "p": c.p,
                "verdict": c.verdict,
            }
            for c in scores.comparisons
        ]
    for name, rows in tables.items():
        write_rows(folder / name, rows, [*rows[0]])


def _columns(intervals: Mapping[str, Interval | None]) -> dict[str, float | str]:
    """Return values and ends of their intervals as columns; empty if there are none."""
    row: dict[str, float | str] = {}
    for name, interval in intervals.items():
        numbers = interval or (nan,) * 3
        for end, number in zip(("", "_low", "_high"), numbers, strict=True):
            row[name + end] = "" if isnan(number) else number
    return row
