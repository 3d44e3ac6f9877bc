"""The commands of the ``offrl`` program, one per file.

Each has ``add_arguments(parser)`` and ``run(args) -> exit status``. ``--help`` shows the docstring
of its module: a sentence, and below it an example.
"""

import argparse
import json
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from offrl.outputs import write_text


def described(command: ModuleType) -> list[str]:
    """Return the parts of a command's docstring: a description and an example."""
    return [" ".join(part.split()) for part in (command.__doc__ or "").split("\n\n")]


def sentence(text: str) -> str:
    """Write a help text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _number(kind: type, needed: str, is_allowed: Callable[[Any], bool]) -> Callable[[str], Any]:
    """Make the type of an argument: a number that ``is_allowed``; errors say what is ``needed``."""

    def read(text: str) -> Any:
        try:
            number = kind(text)
        except ValueError:
            number = math.nan
        if not is_allowed(number):
            raise argparse.ArgumentTypeError(f"{needed} is needed, not {text}")
        return number

    return read


count = _number(int, "a whole number from 1 on", lambda x: x >= 1)
ten_or_more = _number(int, "a whole number from 10 on", lambda x: x >= 10)
seed = _number(int, "a whole number from 0 on", lambda x: x >= 0)
factor = _number(int, "a whole number from 2 on", lambda x: x >= 2)
finite = _number(float, "a finite number", math.isfinite)
size = _number(float, "a finite number from 0 on", lambda x: 0 <= x < math.inf)
share = _number(float, "a number between 0 and 1", lambda x: 0 < x < 1)


def json_object(text: str) -> dict[str, Any]:
    """Read an argument that is an object in JSON."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not JSON ({error}): {text}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"a JSON object is needed, not {text}")
    return value


def pair(text: str) -> list[str]:
    """Read an argument of the form OLD=NEW, or KEY=WORDS."""
    if text.count("=") != 1 or not all(text.split("=")):
        raise argparse.ArgumentTypeError(f"A=B is needed, as the usage shows, not {text}")
    return text.split("=")


@contextmanager
def with_bar(results: Generator[Any, None, None], total: int, done: int = 0) -> Iterator[Any]:
    """Yield an iterator of results that shows a bar. Their generator is closed at the end."""
    from tqdm import tqdm

    with closing(results):
        yield tqdm(results, total=total, initial=done, unit="demo", disable=None)


def write_json(path: Path, figures: Mapping[str, float]) -> None:
    """Write numbers as JSON."""
    write_text(path, json.dumps(figures, indent=4) + "\n")


# The arguments that several commands have.
OPTIONS: dict[str, dict[str, Any]] = {
    "--address": {
        "metavar": "RAY",
        "help": "work on Ray: local, auto (the one of this machine) or HOST:PORT of its head "
        "(default: in processes of this machine)",
    },
    "--checkpoint": {
        "required": True,
        "help": "a .pth file, or the folder of a run (of runs/NAME: the newest run), whose best "
        "checkpoint is taken, else the last",
    },
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
