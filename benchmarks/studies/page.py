"""Fills the parts of docs/results.md that are reports of the studies in this folder.

    python benchmarks/studies/page.py

What a study has reached so far is taken from its output folder, if there is one, and kept in
``benchmarks/results/studies`` beside what it had reached elsewhere. A cell with two results is
refused: delete those that are not to count. Cells that have no result stand in the tables as such.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path

from offrl.outputs import writable_folder
from offrl.reports.report import as_markdown, blocks_of
from offrl.reports.results import CSV, WAITING, Outcome, write_results
from offrl.reports.scores import Scores
from offrl.studies.cells import Plan
from offrl.studies.config import read_study
from offrl.studies.results import results_of
from offrl.studies.table import TABLE

FOLDER, ROOT = Path(__file__).parent, Path(__file__).parents[2]
PAGE, KEPT = ROOT / "docs" / "results.md", ROOT / "benchmarks" / "results" / "studies"
PICTURES = ROOT / "docs" / "images" / "studies"
PART = re.compile(r"<!-- study (\w+) -->\n.*?<!-- end of the study -->\n", re.S)


def keep(name: str) -> None:
    """Write down what a study has reached so far, if it runs here."""
    output, kept = ROOT / read_study(FOLDER / f"{name}.yaml").output, KEPT / name
    if (output / TABLE).is_file():
        known = [kept] if (kept / CSV).is_file() else []
        write_results(writable_folder(kept) / CSV, results_of([output, *known]))


def results(name: str) -> list[Outcome]:
    """The results of a study that are kept, and what it lacks."""
    file = FOLDER / f"{name}.yaml"
    study, found = read_study(file), {}
    if (KEPT / name / CSV).is_file():
        found = {(r.algorithm, r.task, r.seed): r for r in results_of([KEPT / name])}
    command = f"offrl study benchmarks/studies/{name}.yaml"
    planned = Plan(study, file.parent).cells()
    cells = [Outcome(c.config, c.dataset, c.seed, WAITING) for c in planned]
    complete = [found.get((r.algorithm, r.task, r.seed), r) for r in cells]
    return [replace(result, repeat=command) for result in complete]


def part(name: str) -> str:
    """The text of a study on the page."""
    found = results(name)
    if not any(result.final for result in found):
        return f"This study was not run. The command is `{found[0].repeat}`.\n"
    pictures = writable_folder(PICTURES / name)
    text = as_markdown(blocks_of(Scores(found), pictures))
    text = re.sub("^#+ ", "#### ", text, flags=re.M)  # its headings are below one of the page
    return text.replace("](", f"](images/studies/{name}/")


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        keep(name)
        return f"<!-- study {name} -->\n{part(name)}<!-- end of the study -->\n"

    PAGE.write_text(PART.sub(fill, page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
