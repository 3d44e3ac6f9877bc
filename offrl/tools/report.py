"""Write tables and pictures of what trainings and studies reached.

example: offrl report studies/can --output can_report;
then open can_report/report.html
"""

import argparse
from pathlib import Path

from offrl.lazy import needed
from offrl.outputs import whole_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--title", default="Report", help="the heading (default: Report)")
    add("--output", type=Path, required=True, help="the folder to write")
    places = "run folders, folders of studies or of reports, or folders that hold runs or studies"
    add("results", nargs="+", metavar="RUN_OR_STUDY", help=places)


def run(args: argparse.Namespace) -> int:
    for package in ("matplotlib", "rliable"):
        needed(package, "report", "a report is not possible")
    from offrl.reports.report import write_report
    from offrl.studies.results import results_of

    results = results_of(args.results)
    with whole_folder(args.output) as folder:
        write_report(results, folder, args.title)
    print(f"report: {args.output / 'report.html'}")
    return 0
