"""Train many policies: a grid of configs, data, settings and seeds.

example: offrl study study.yaml --jobs 2; the same command goes on after an interruption
"""

import argparse
import os
import shlex
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from offrl.modules import allow_names
from offrl.tools import add_options, collect, count

if TYPE_CHECKING:
    from offrl.studies.config import DatasetEntry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="the study, in YAML or JSON")
    parser.add_argument(
        "--jobs",
        type=count,
        help="number of trainings at a time (default: as there are cores, or CPUs of the Ray)",
    )
    add_options(parser, "--address", "--follow-links", "--module")


def run(args: argparse.Namespace) -> int:
    from offrl.studies.cells import Plan
    from offrl.studies.config import read_study

    study, beside = read_study(args.file), args.file.parent
    # Errors in the study as a whole are raised before anything is made.
    plan = Plan(study, beside)
    planned = plan.cells()
    # A user's own algorithm may be there.
    allow_names([cell.content for cell in planned], os.getcwd(), str(beside))
    every_data = [*study.datasets, *([study.search.dataset] if study.search else [])]
    collecting = [(x, _collect_arguments(x, beside)) for x in every_data if x and x.collect]
    from offrl import cluster
    from offrl.config import config_from_content
    from offrl.config.files import read_config_file
    from offrl.reports.results import FINISHED
    from offrl.studies.run import CellRunner, LocalTraining, problem_of
    from offrl.studies.search import search
    from offrl.studies.table import CONFIG, TABLE
    from offrl.training.launch import RemoteTraining, on_ray

    if study.search:  # before hours of searching
        for why in dict.fromkeys(filter(None, map(problem_of, planned))):
            print(f"some cells cannot be trained: {why}", file=sys.stderr)
    output, threads = Path(study.output).expanduser(), study.num_threads
    with ExitStack() as until_done:
        if args.address:
            train_there = until_done.enter_context(on_ray(args.address, threads))
            cores = cluster.num_cpus()

            def start(folder: Path, run: Path | None) -> RemoteTraining:
                config = config_from_content(read_config_file(folder / CONFIG))
                return train_there(config.to_dict(), run)
        else:
            cores = len(os.sched_getaffinity(0))
            start = partial(LocalTraining, num_threads=threads, modules=beside)  # type: ignore[assignment]
        command = shlex.join(["offrl", "study", str(args.file)])
        runner = CellRunner(output, args.jobs or max(1, cores // threads), start, command)
        for cell in planned:
            if cell.config not in plan.searched:
                runner.problem(cell)  # raises if settings have changed
        lost = {}
        for data, words in collecting:
            if (why := _collect(words)) and data in study.datasets:
                lost[data.called] = why
            elif why:
                print(f"the search has no data: {why}", file=sys.stderr)
        cells = plan.cells(search(plan, runner) if study.search else {})
        rows = runner.run([replace(x, problem=x.problem or lost.get(x.dataset, "")) for x in cells])
    numbers = Counter(row["status"] for row in rows)
    print(f"{study.name}: {', '.join(f'{n} {status}' for status, n in numbers.items())}")
    print(f"table: {output / TABLE}")
    return 0 if numbers[FINISHED] == len(rows) else 1


class _Raising(argparse.ArgumentParser):
    """A parser of arguments that do not come from the command line."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _collect_arguments(data: "DatasetEntry", beside: Path) -> argparse.Namespace:
    """Parse the arguments of ``offrl collect`` that make a dataset."""
    from offrl.studies.cells import data_path

    parser = _Raising(prog="offrl collect")
    collect.add_arguments(parser)
    try:
        words = [*shlex.split(data.collect or ""), "--output", str(data_path(data, beside))]
        args = parser.parse_args(words)
    except ValueError as error:
        raise ValueError(f"datasets: collect of {data.path}: {error}") from None
    args.words = shlex.join(["offrl", "collect", *words])
    return args


def _collect(args: argparse.Namespace) -> str:
    """Collect missing data. Returns the reason if that fails."""
    if Path(args.output).exists():
        return ""
    print(args.words)
    try:
        collect.run(args)
    except (ValueError, OSError, ImportError) as error:
        return f"{args.output} could not be collected: {error}"
    return ""
