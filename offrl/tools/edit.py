"""Make a new file of demonstrations out of others: split, filter, merge, relabel or repack.

example: offrl edit split in.hdf5 --output out.hdf5 --valid 0.1 --seed 0; more with offrl edit WHAT
--help
"""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import Any, NamedTuple

from offrl import tools
from offrl.tools import OPTIONS, add_options, count, finite, seed, sentence


def add_arguments(parser: argparse.ArgumentParser) -> None:
    subparsers = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    for name, command in COMMANDS.items():
        example, says = f"example: offrl edit {name} {command.example}", sentence(command.help)
        sub = subparsers.add_parser(name, help=command.help, description=says, epilog=example)
        number = "+" if name == "merge" else 1
        data = "a file or folder of demonstrations"
        sub.add_argument("inputs", metavar="IN", nargs=number, help=data)
        sub.add_argument("--output", required=True, help="the HDF5 file to write")
        group = sub.add_mutually_exclusive_group() if command.exclusive else sub
        for flag, settings in command.options:
            (group if flag in command.exclusive else sub).add_argument(flag, **settings)
        add_options(sub, "--follow-links", "--module")


def run(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from offrl.data.formats.files import find_data
    from offrl.data.provenance import provenance
    from offrl.edits.edit import open_file
    from offrl.outputs import new_file

    command = COMMANDS[args.what]
    names = [x.get("dest", flag[2:].replace("-", "_")) for flag, x in command.options]
    module, function = command.function.split(".")
    with ExitStack() as stack:
        files = [stack.enter_context(open_file(find_data(path))) for path in args.inputs]
        new_file(args.output)
        make = getattr(import_module(f"offrl.edits.{module}"), function)
        edit = make(*files, **{name: getattr(args, name) for name in names})
        history = provenance(args.words, [file.path for file in files])
        bar = stack.enter_context(tqdm(total=len(edit.demos), unit="demo", disable=None))
        num_steps = edit.write(args.output, history, bar.update)
    print(f"{args.output}: {len(edit.demos)} demonstrations, {num_steps} steps")
    return 0


class Command(NamedTuple):
    """An edit.

    function: the module and name of its function in ``offrl.edits``.
    options: its arguments, for the parser. exclusive: arguments of which one may be given.
    """

    function: str
    help: str
    example: str
    options: Sequence[tuple[str, Mapping[str, Any]]]
    exclusive: Sequence[str] = ()


def option(flag: str, text: str, **settings: Any) -> tuple[str, dict[str, Any]]:
    return flag, {"help": text, **settings}


LENGTH = {"type": count, "metavar": "X"}
RETURN = {"type": finite, "metavar": "X"}
RANGE = {"nargs": 2, "type": finite, "metavar": ("LOW", "HIGH"), "dest": "limits"}
SWITCH = {"action": "store_true"}
KIND, WORKERS = (("--kind", OPTIONS["--kind"]), ("--workers", OPTIONS["--workers"]))

COMMANDS = {
    "split": Command(
        "rearrange.split",
        "write filter keys: what to train on and what to validate on, or successes and failures",
        "in.hdf5 --output out.hdf5 --valid 0.1 --seed 0",
        [
            option(
                "--valid",
                "share of demonstrations that the second part gets at random (default: 0.1)",
                type=tools.share,
            ),
            option("--seed", "of the random choice (default: 0)", type=seed, default=0),
            option(
                "--by",
                "split into successes and failures; with --valid, take that share of both",
                choices=["success"],
            ),
            option(
                "--names",
                "names of the two filter keys (default: train valid, or success failure)",
                nargs=2,
                metavar=("FIRST", "SECOND"),
            ),
            option("--filter-key", "split only the demonstrations of mask/FILTER_KEY"),
        ],
    ),
    "filter": Command(
        "selection.keep",
        "keep the demonstrations that fulfil all conditions",
        "in.hdf5 --output out.hdf5 --max-length 100 --where 'return > 0.5'",
        [
            option("--min-length", "keep those whose length is at least X", **LENGTH),
            option("--max-length", "keep those whose length is at most X", **LENGTH),
            option("--min-return", "keep those whose return is at least X", **RETURN),
            option("--max-return", "keep those whose return is at most X", **RETURN),
            option("--success", "keep only those that succeeded", **SWITCH),
            option(
                "--where",
                "keep those for which this is true: 'length < 100 and seed != 7'; it may use "
                "length, return, success and attributes",
                metavar="CONDITION",
            ),
        ],
    ),
    "merge": Command(
        "rearrange.merge",
        "join files that were recorded in one environment",
        "a.hdf5 b.hdf5 --output both.hdf5 --masks",
        [
            option(
                "--masks",
                "also write a filter key for each file, with the name of the file",
                **SWITCH,
            )
        ],
    ),
    "subset": Command(
        "selection.subset",
        "keep some demonstrations: by number, by filter key, by name",
        "in.hdf5 --output out.hdf5 --filter-key train --n 20 --seed 0",
        [
            option("--filter-key", "choose from the demonstrations of mask/FILTER_KEY"),
            option(
                "--demos", "names of demonstrations, e.g. demo_3 demo_7", nargs="+", metavar="DEMO"
            ),
            option("--n", "how many: the first, or random ones with --seed", type=count),
            option("--seed", "seed of the random choice", type=seed),
        ],
    ),
    "rename": Command(
        "rearrange.rename",
        "rename arrays and filter keys, or leave them out",
        "in.hdf5 --output out.hdf5 --keys obs/agentview_image=obs/front --drop obs/object",
        [
            option(
                "--keys",
                "rename arrays (obs/x=obs/y, next_obs/x too), groups, filter keys (mask/x=mask/y)",
                nargs="+",
                type=tools.pair,
                default=[],
                metavar="OLD=NEW",
            ),
            option(
                "--drop", "leave arrays or filter keys out", nargs="+", default=[], metavar="KEY"
            ),
        ],
    ),
    "rewards": Command(
        "relabel.rewards",
        "write other rewards: the simulator's dense ones, 1 at success, scaled or shifted ones",
        "in.hdf5 --output out.hdf5 --success-only --shift -1",
        [
            option("--dense", "use the simulator's shaped rewards", **SWITCH),
            option("--success-only", "1 at success, 0 otherwise", **SWITCH),
            option("--scale", "multiply by this (default: 1)", type=finite, default=1.0),
            option("--shift", "then add this (default: 0)", type=finite, default=0.0),
            WORKERS,
        ],
        exclusive=("--dense", "--success-only"),
    ),
    "actions": Command(
        "relabel.actions",
        "write actions in another form: absolute, in parts, or in another range",
        "in.hdf5 --output out.hdf5 --absolute --action-dict",
        [
            option(
                "--absolute", "replace relative actions by the poses that they aim at", **SWITCH
            ),
            option(
                "--action-dict",
                "also store position, rotation (in six numbers, too) and gripper as separate "
                "arrays",
                **SWITCH,
            ),
            option("--range", "scale each dimension of the actions to this range", **RANGE),
            option("--undo-range", "undo what --range did", **SWITCH),
            KIND,
            WORKERS,
        ],
        exclusive=("--range", "--undo-range"),
    ),
    "downsample": Command(
        "relabel.downsample",
        "make one step out of several, and lower control_freq accordingly",
        "in.hdf5 --output out.hdf5 --factor 2",
        [
            option("--factor", "number of steps that become one", type=tools.factor, required=True),
            option(
                "--commands",
                "numbers at the end of an action (the gripper) that are not summed (default: 1)",
                type=seed,
                default=1,
            ),
            KIND,
            WORKERS,
        ],
    ),
    "pixels": Command(
        "rearrange.pixels",
        "turn images of other forms into [H, W, C] of bytes, or depth maps",
        "in.hdf5 --output out.hdf5 --images front_image=channels_first,unit_floats",
        [
            option(
                "--images",
                "keys of observations, and the forms that they are turned from (default: all that "
                "training refuses, by their shapes, types and ranges)",
                nargs="+",
                type=tools.pair,
                default=[],
                metavar="KEY=FORM,FORM",
            ),
            option("--range", "what becomes 0 and 255", **RANGE),
        ],
        exclusive=("--images", "--range"),
    ),
    "repack": Command(
        "rearrange.repack",
        "store arrays in another way: images as PNG or JPEG, other chunks, float32, with checksums",
        "in.hdf5 --output out.hdf5 --compression png",
        [
            option(
                "--compression",
                "how arrays are compressed; png and jpeg compress images only (default: none)",
                choices=("png", "jpeg", "gzip", "lzf", "none"),
                default="none",
            ),
            option(
                "--chunk-bytes",
                "bytes that are read at once, at least one step (default: 65536)",
                type=count,
                default=2**16,
            ),
        ],
    ),
}
