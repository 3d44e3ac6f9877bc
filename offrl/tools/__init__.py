"""The commands of the ``offrl`` program, one per file.

Each has ``HELP`` (one line), ``EPILOG`` (an example), ``add_arguments(parser)`` and
``run(args) -> exit status``.
"""

import argparse
import json
from pathlib import Path

from offrl.outputs import whole_file


def count(text: str, minimum: int = 1) -> int:
    """An argument that is a whole number from ``minimum`` on."""
    try:
        number = int(text)
    except ValueError:
        number = minimum - 1
    if number < minimum:
        raise argparse.ArgumentTypeError(f"a whole number from {minimum} on is needed, not {text}")
    return number


def seed(text: str) -> int:
    return count(text, minimum=0)


def write_figures(path: Path, figures: dict[str, float]) -> None:
    with whole_file(path) as file:
        file.write_text(json.dumps(figures, indent=4) + "\n", encoding="utf-8")
