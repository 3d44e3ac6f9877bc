"""``offrl study``: many trainings, for a grid of configs, data, settings and seeds."""

import argparse
import os
import shlex
import sys
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from offrl.config.study import DatasetEntry, cells_of, data_path, read_study
from offrl.tools import collect, count

HELP = "train many policies: a grid of configs, data, settings and seeds"
EPILOG = "example: offrl study study.yaml --jobs 2; the same command goes on after an interruption"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="the study, in YAML or JSON")
    parser.add_argument(
        "--jobs",
        type=count,
        help="number of trainings at a time (default: as there are cores, or CPUs of the Ray)",
    )
    parser.add_argument(
        "--address",
        metavar="RAY",
        help="train on Ray: local, auto (the one of this machine) or HOST:PORT of its head "
        "(default: in processes of this machine)",
    )


def run(args: argparse.Namespace) -> int:
    study, beside = read_study(args.file), args.file.parent
    sys.path.append(str(beside.resolve()))  # where an algorithm of the user's own may lie
    for data in [*study.datasets, *([study.search.dataset] if study.search else [])]:
        _make(data, beside)
    from offrl import cluster
    from offrl.config import config_from_content
    from offrl.config.files import read_config_file
    from offrl.reports.study import CONFIG, FINISHED, TABLE
    from offrl.training.launch import on_ray
    from offrl.training.search import search
    from offrl.training.study import Cells, OnRay, Process

    output, threads = Path(study.output).expanduser(), study.num_threads
    with ExitStack() as until_done:
        if args.address:
            train_there = until_done.enter_context(on_ray(args.address, threads))
            cores = cluster.num_cpus()

            def start(folder: Path, run: Path | None) -> OnRay:
                config = config_from_content(read_config_file(folder / CONFIG))
                return OnRay(train_there(config.to_dict(), run))
        else:
            cores = len(os.sched_getaffinity(0))
            start = partial(Process, num_threads=threads, modules=beside)
        cells = Cells(output, args.jobs or max(1, cores // threads), start)
        found = search(study, beside, cells) if study.search else {}
        rows = cells.run(cells_of(study, beside, found))
    numbers = Counter(row["status"] for row in rows)
    print(f"{study.name}: {', '.join(f'{n} {status}' for status, n in numbers.items())}")
    print(f"table: {output / TABLE}")
    return 0 if numbers[FINISHED] == len(rows) else 1


def _make(data: DatasetEntry, beside: Path) -> None:
    """Collect data that is missing. Where that fails, its cells say so."""
    if data.collect is None or (path := data_path(data, beside)).exists():
        return
    parser = argparse.ArgumentParser(prog="offrl collect")
    collect.add_arguments(parser)
    words = [*shlex.split(data.collect), "--output", str(path)]
    print(f"offrl collect {shlex.join(words)}")
    args = parser.parse_args(words)
    args.words = shlex.join(["offrl", "collect", *words])
    try:
        collect.run(args)
    except (ValueError, OSError) as error:
        print(f"{path}: could not be collected: {error}", file=sys.stderr)
