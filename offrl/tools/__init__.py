"""The commands of the ``offrl`` program, one per file.

Each has ``HELP`` (one line), ``EPILOG`` (an example), ``add_arguments(parser)`` and
``run(args) -> exit status``.
"""

import argparse


def count(text: str) -> int:
    """An argument that is a number from one on."""
    return _at_least(1, text)


def seed(text: str) -> int:
    """An argument that is a number from zero on."""
    return _at_least(0, text)


def _at_least(minimum: int, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = minimum - 1
    if number < minimum:
        raise argparse.ArgumentTypeError(f"a whole number from {minimum} on is needed, not {text}")
    return number
