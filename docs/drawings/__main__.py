"""Draws the pictures of the pages, each from what it shows: ``make drawings``."""

import sys
from pathlib import Path

import architecture
import batch
import explorers
import finetuning
import returns
import success_rates
import windows

DRAWINGS = {
    "architecture.svg": architecture.draw,
    "batch.svg": batch.draw,
    "windows.svg": windows.draw,
    "offline_rl.svg": success_rates.draw,
    "online_rl.svg": returns.draw,
    "finetuning.svg": finetuning.draw,
    "explorers.svg": explorers.draw,
}


def main(folder: Path) -> None:
    for name, draw in DRAWINGS.items():
        draw().write(folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "images")
