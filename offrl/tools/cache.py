"""Show the images that trainings keep in a folder (train.cache_dir), and remove them.

example: offrl cache /scratch/offrl --clear
"""

import argparse
from pathlib import Path

from offrl.memory import in_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", help="the folder")
    add(
        "--clear",
        action="store_true",
        help="remove them, and nothing else in the folder; trainings that use them go on",
    )


def run(args: argparse.Namespace) -> int:
    from offrl.data.mapped import clear, mapped_files

    folder = Path(args.folder).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; name that of train.cache_dir")
    sizes = {p: p.stat().st_size for files in mapped_files(folder).values() for p in files}
    shown = clear(folder) if args.clear else list(sizes)
    for path in shown:
        print(f"{in_bytes(sizes[path]):>8}  {path.name}")
    words = "removed" if args.clear else "in all"
    print(f"{in_bytes(sum(sizes[path] for path in shown)):>8}  {words}")
    if args.clear and len(shown) < len(sizes):
        print(f"{len(sizes) - len(shown)} of them stay, as a training is writing them")
    return 0
