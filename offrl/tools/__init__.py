"""The commands of the ``offrl`` program, one per file.

Each has ``HELP`` (one line), ``EPILOG`` (an example), ``add_arguments(parser)`` and
``run(args) -> exit status``.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

from offrl.outputs import whole_file


def sentence(text: str) -> str:
    """A help text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


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


def finite(text: str) -> float:
    """An argument that is a number, neither NaN nor infinite."""
    number = float(text)
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"a finite number is needed, not {text}")
    return number


def size(text: str) -> float:
    """An argument that is a finite number from 0 on."""
    number = finite(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"a number from 0 on is needed, not {text}")
    return number


def json_object(text: str) -> dict[str, Any]:
    """An argument that is an object in JSON."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not JSON ({error}): {text}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"a JSON object is needed, not {text}")
    return value


def share(text: str) -> float:
    """An argument that is a number between 0 and 1."""
    number = float(text)
    if not 0 < number < 1:
        raise argparse.ArgumentTypeError(f"a number between 0 and 1 is needed, not {text}")
    return number


def factor(text: str) -> int:
    return count(text, minimum=2)


def pair(text: str) -> list[str]:
    """An argument of the form OLD=NEW."""
    if text.count("=") != 1 or not all(text.split("=")):
        raise argparse.ArgumentTypeError(f"OLD=NEW is needed, e.g. obs/x=obs/y, not {text}")
    return text.split("=")


def write_figures(path: Path, figures: dict[str, float]) -> None:
    with whole_file(path) as file:
        file.write_text(json.dumps(figures, indent=4) + "\n", encoding="utf-8")


# What several commands have.
OPTIONS: dict[str, dict[str, Any]] = {
    "--address": {
        "metavar": "RAY",
        "help": "work on Ray: local, auto (the one of this machine) or HOST:PORT of its head "
        "(default: in processes of this machine)",
    },
    "--checkpoint": {"required": True, "help": "a .pth file of a training run"},
    "--env-kwargs": {
        "type": json_object,
        "default": {},
        "metavar": "JSON",
        "help": "arguments of the task, e.g. '{\"reward_shaping\": true}'",
    },
    "--filter-key": {"help": "only the demonstrations of mask/FILTER_KEY"},
    "--follow-links": {
        "action": "store_true",
        "help": "read also what links in the data lead to outside of its folder: only of data that "
        "you trust",
    },
    "--horizon": {
        "type": count,
        "help": "steps of the longest episode (default: as in the config)",
    },
    "--kind": {
        "choices": ("delta", "absolute"),
        "help": "what kind of actions these are, if the simulator shall not be asked",
    },
    "--json": {"metavar": "FILE", "help": "write the figures as JSON"},
    "--module": {
        "action": "append",
        "default": [],
        "metavar": "NAME",
        "help": "a module of your own that the file may name, for its algorithm, its networks or "
        "its environment; can be given several times. Others are not imported",
    },
    "--seed": {
        "type": seed,
        "default": 0,
        "help": "seed of the first episode; the others count on from it (default: 0)",
    },
    "--workers": {
        "type": count,
        "help": "number of processes or simulators, side by side (default: one per core)",
    },
}


def add_options(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add some of ``OPTIONS``."""
    for name in names:
        parser.add_argument(name, **OPTIONS[name])
