"""Write a folder with a page to look at demonstrations and runs, in any browser.

example: offrl view datasets/lift/low_dim.hdf5 runs/bc/... --render 3 --output lift_view;
then open lift_view/index.html
"""

import argparse

from offrl.tools import add_options, count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "paths",
        nargs="+",
        metavar="DATA|RUN",
        help="files of demonstrations (or minari:NAME), folders of runs",
    )
    add("--output", required=True, metavar="FOLDER", help="the folder to write")
    add(
        "--render",
        type=count,
        default=0,
        metavar="N",
        help="film N episodes of each dataset, spread evenly, from their simulator states (stored "
        "images are filmed anyway)",
    )
    add(
        "--cameras",
        nargs="+",
        default=[],
        help="cameras to show side by side: of the simulator with --render (default: the "
        "environment's own), otherwise of stored images (default: all)",
    )
    add("--size", type=count, default=256, help="height and width of --render (default: 256)")
    add_options(parser, "--workers", "--follow-links", "--module")


def run(args: argparse.Namespace) -> int:
    from offrl.reports.view import FilmOptions, write_view

    films = FilmOptions(args.render, tuple(args.cameras), args.size)
    write_view(args.paths, args.output, films, args.workers, args.words)
    print(f"{args.output}/index.html")
    return 0
