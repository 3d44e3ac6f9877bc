"""A report of trainings: an HTML page, the same as Markdown, CSV tables, and pictures."""

import base64
import html
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from offrl.outputs import write_text
from offrl.reports.figures import write_figures
from offrl.reports.results import CSV, FINISHED, Outcome, write_results
from offrl.reports.scores import LEVEL, Interval, Scores, needed_seeds
from offrl.reports.tables import finals, write_numbers

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em;
  color: #222; background: #fff; }
h1, h2, h3 { line-height: 1.2; } h2 { margin-top: 2em; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; margin: 1em 0; display: block; overflow-x: auto; }
th, td { padding: 0.25em 0.8em; border-bottom: 1px solid #ddd; text-align: left; }
th { background: #f4f4f4; } td { font-variant-numeric: tabular-nums; }
figure { margin: 1.5em 0; } img { max-width: 100%; } figcaption { color: #555; }
code { background: #f4f4f4; padding: 0 0.2em; }
"""


class ReportBlock(NamedTuple):
    """A part of a report, in its two forms."""

    markdown: str
    html: str


def heading(text: str, level: int = 2) -> ReportBlock:
    """Make a heading; the title of the page has level 1."""
    return ReportBlock(f"{'#' * level} {text}", f"<h{level}>{_inline(text)}</h{level}>")


def paragraph(text: str) -> ReportBlock:
    """Make a paragraph of sentences, with Markdown's bold and code."""
    return ReportBlock(text, f"<p>{_inline(text)}</p>")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> ReportBlock:
    """Make a table of texts."""
    lines = [header, ["---"] * len(header), *rows]
    plain = ([" ".join(x.replace("|", "\\|").split()) for x in line] for line in lines)
    head = "".join(f"<th>{_inline(cell)}</th>" for cell in header)
    tagged = ("".join(f"<td>{_inline(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>\n" for row in tagged)
    return ReportBlock(
        "\n".join(f"| {' | '.join(line)} |" for line in plain),
        f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>",
    )


def picture(path: Path, caption: str) -> ReportBlock:
    """Make a picture of a file in the folder of the report. The page has the file in it."""
    image, says = base64.b64encode(path.read_bytes()).decode(), html.escape(caption)
    image = f'<img src="data:image/png;base64,{image}" alt="{says}">'
    return ReportBlock(
        f"![{path.stem}]({path.name})\n\n{caption}",
        f"<figure>{image}<figcaption>{says}</figcaption></figure>",
    )


def write_report(results: Sequence[Outcome], folder: Path, title: str = "Report") -> None:
    """Write ``report.html``, the same as ``report.md``, its numbers as CSV, the pictures, and
    ``report.csv`` with all data of each training."""
    scores = Scores(results)
    blocks = [heading(title, 1), *blocks_of(scores, folder)]
    write_results(folder / CSV, results)
    write_numbers(scores, folder)
    write_text(folder / "report.md", as_markdown(blocks))
    write_text(folder / "report.html", _page(title, blocks))


def blocks_of(scores: Scores, folder: Path) -> Iterator[ReportBlock]:
    """Yield the blocks of a report in order, and write its pictures into a folder."""
    captions = write_figures(scores, folder)

    def pictures(*names: str) -> Iterator[ReportBlock]:
        return (picture(folder / name, captions[name]) for name in names if name in captions)

    results = scores.results
    missing = [r for r in results if not r.final or r.status != FINISHED]
    yield paragraph(
        f"{_number(len(results), 'training')} of {_number(len(scores.algorithms), 'algorithm')} on "
        f"{_number(len(scores.tasks), 'task')}; {len(results) - len(missing)} have a result."
    )
    if missing:
        yield heading("What is missing")
        yield _missing(missing)
    yield heading("Final scores")
    yield paragraph(
        "The mean over seeds, with a 95 % interval by a stratified bootstrap over seeds. It is "
        "narrow where a few seeds happen to be alike, so the interval over all episodes of the "
        "last policies stands beside that of a success rate (Wilson). That counts them as "
        "independent, though the seeds share their initial states. The last policy was chosen by "
        "nothing; the best checkpoint by other episodes than those that it is tested in. n is the "
        "number of seeds and of test episodes of each."
    )
    yield from final_tables(scores)
    yield from pictures("scores.png", "curves.png")
    if scores.can_be_averaged:
        yield heading("All trainings together")
        yield paragraph(
            f"The last policies on {', '.join(scores.common)}, with 95 % intervals. The "
            "interquartile mean is that of the middle half of all trainings. Of each algorithm as "
            f"many seeds count as it has on every task. Those stand above whose trainings are more "
            f"often better than the others'.{_left_out(scores)}"
        )
        aggregates = scores.aggregates
        names = list(next(iter(aggregates.values())))
        rows = [[a, *(_shown(aggregates[a][name]) for name in names)] for a in scores.ranked]
        yield table(["algorithm", *names], rows)
        yield from pictures("aggregates.png", "profiles.png")
    if len(scores.ranked) > 1:
        yield heading("Comparisons")
        yield from _comparisons(scores)
        yield from pictures("improvement.png")
    elif len(scores.algorithms) > 1:
        yield paragraph("No two algorithms have results on the same task, so none are compared.")
    if "time.png" in captions:
        yield heading("Time")
        yield from pictures("time.png")
    yield heading("Where the numbers come from")
    yield from _provenance(results)


def _missing(results: Sequence[Outcome]) -> ReportBlock:
    """Make a table of missing results, with a row for trainings of a task with the same reason."""
    alike: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for r in results:
        seeds = alike.setdefault((r.task, r.status, r.why, r.repeat), {})
        seeds.setdefault(r.algorithm, []).append(str(r.seed))
    rows = [
        [
            task,
            ", ".join(f"{algorithm} ({', '.join(own)})" for algorithm, own in seeds.items()),
            *(status, why, f"`{command}`" if command else ""),
        ]
        for (task, status, why, command), seeds in alike.items()
    ]
    return table(["task", "algorithms (seeds)", "status", "why", "command"], rows)


def final_tables(scores: Scores) -> Iterator[ReportBlock]:
    """Yield a table for each task, with a row for each algorithm."""
    header = ["algorithm", "last policy", "over episodes", "best checkpoint"]
    header += ["n", "steps", "minutes"]
    for task, own in groupby(finals(scores), lambda final: final.task):
        rows = [
            [
                final.algorithm,
                _shown(final.last),
                "{1:.2f} to {2:.2f}".format(*final.over_episodes) if final.over_episodes else "-",
                _shown(final.best),
                f"{final.num_seeds} of {final.of_seeds} x {final.episodes}",
                final.steps,
                "-" if final.minutes is None else f"{final.minutes:.1f}",
            ]
            for final in own
        ]
        if not any(scores.of(algorithm, task) for algorithm in scores.algorithms):
            yield paragraph(f"**{task}**: no training has been evaluated to its end.")
            continue
        yield paragraph(f"**{task}** ({scores.measures[task]})")
        yield table(header, rows)
        of_data: dict[str, dict[str, None]] = {}
        for r in scores.results:
            if r.task == task and r.data and r.final:
                of_data.setdefault(r.data, {})[r.algorithm] = None
        if len(of_data) > 1:
            unlike = "; ".join(f"{data}: {', '.join(of)}" for data, of in of_data.items())
            yield paragraph(f"**Not all algorithms on {task} have the same data**: {unlike}.")


def _shown(interval: Interval | None) -> str:
    if interval is None:
        return "not measured"
    digits = 2 if np.nanmax(np.abs(interval)) <= 2 else 1
    value, low, high = (f"{x:.{digits}f}" for x in interval)
    return f"{value} ({low} to {high})" if low != "nan" else f"{value} (one seed)"


def _left_out(scores: Scores) -> str:
    others = [a for a in scores.algorithms if a not in scores.compared]
    return f" Without a result on all of them: {', '.join(others)}." if others else ""


def _comparisons(scores: Scores) -> Iterator[ReportBlock]:
    seeds = sorted({len(scores.matrix(a)) for a in scores.compared})
    num_seeds = " to ".join(str(n) for n in seeds[:: max(1, len(seeds) - 1)])
    num_tasks, num_pairs = len(scores.common), len(scores.chances)
    needed = needed_seeds(num_tasks, num_pairs)
    yield paragraph(
        f"Each pair of algorithms on {', '.join(scores.common)}: the probability that a training "
        "of the first one ends with a better policy, averaged over tasks, with a 95 % interval "
        "(bootstrap). p is how probable a difference as large is by chance, somewhere among all "
        f"pairs ({num_pairs}; exact permutations of the seeds of each task, corrected by "
        f"Holm's method). Above 0.05 two algorithms are not told apart.{_left_out(scores)}"
    )
    comparisons = scores.comparisons
    if all(comparison.least_p > LEVEL for comparison in comparisons):
        yield paragraph(
            f"**n is too small to order two algorithms** (seeds: {num_seeds}; tasks: {num_tasks}): "
            "even a difference between all trainings could be chance among "
            f"{_number(num_pairs, 'pair')} (p above 0.05); it takes {needed} seeds of each."
        )
    rows = [
        [c.first, c.second, _shown(c.improvement), f"{c.p:.3f}", c.verdict] for c in comparisons
    ]
    yield table(["algorithm", "compared with", "probability of improvement", "p", "verdict"], rows)


def _provenance(results: Sequence[Outcome]) -> Iterator[ReportBlock]:
    def listed(values: Iterable[str]) -> str:
        return "; ".join(dict.fromkeys(filter(None, values))) or "unknown"

    found = {
        r.algorithm: [q.search for q in results if q.algorithm == r.algorithm] for r in results
    }
    tasks = {r.task: [q.data for q in results if q.task == r.task] for r in results}
    rows = [
        ["commit of offrl", listed(r.commit for r in results)],
        ["versions", listed(r.versions for r in results)],
        *([f"data of {task}", listed(data)] for task, data in tasks.items()),
        *([f"search for {name}", listed(words)] for name, words in found.items() if any(words)),
    ]
    yield table(["what", "which"], rows)


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def as_markdown(blocks: Iterable[ReportBlock]) -> str:
    """Write blocks as Markdown."""
    return "\n\n".join(block.markdown for block in blocks) + "\n"


def _page(title: str, blocks: Iterable[ReportBlock]) -> str:
    """Write blocks as an HTML page with embedded pictures."""
    body = "\n".join(block.html for block in blocks)
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}{view}</head>\n'
        f"<body>{body}\n</body></html>\n"
    )


def _inline(text: str) -> str:
    """Convert Markdown's bold and code to HTML."""
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)
