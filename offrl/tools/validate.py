"""Look for damage and mistakes in files and folders of demonstrations; reads every byte.

example: offrl validate datasets/lift/low_dim.hdf5
"""

import argparse

from offrl.tools import add_options

SHOWN = 20  # of each kind


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", metavar="DATA", help="a file or folder of demonstrations, in any layout"
    )
    add_options(parser, "--follow-links")


def run(args: argparse.Namespace) -> int:
    from contextlib import suppress
    from pathlib import Path

    from tqdm import tqdm

    from offrl.data.formats.files import find_data
    from offrl.data.validation import Validation

    num_wrong = 0
    for name in args.files:
        path = Path(name)
        with suppress(FileNotFoundError):  # reported with other errors
            path = find_data(name)
        size = path.stat().st_size if path.is_file() else None
        with tqdm(total=size, unit="B", unit_scale=True, leave=False, disable=None) as bar:
            found = Validation(path, bar.update)
        num_wrong += len(found.wrong)
        for kind, sentences in (("wrong", found.wrong), ("remark", found.remarks)):
            for sentence in sentences[:SHOWN]:
                print(f"{kind}: {sentence}")
            if len(sentences) > SHOWN:
                print(f"{kind}: ... and {len(sentences) - SHOWN} more")
        counts = found.counts
        print(
            f"{path}: {len(found.wrong)} wrong, {len(found.remarks)} remarks; "
            f"{counts['demonstrations']} demonstrations, {counts['steps']} steps, "
            f"{counts['arrays']} arrays ({counts['checksums']} with checksums), "
            f"{counts['bytes'] / 1e6:.3g} MB read"
        )
    return int(num_wrong > 0)
