"""``offrl edit``: new files made of demonstrations of others."""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

from offrl import tools
from offrl.tools import add_options, count, finite, seed, sentence

HELP = "make a new file of demonstrations out of others: split, filter, merge, relabel or repack"
EPILOG = (
    "example: offrl edit split in.hdf5 --output out.hdf5 --valid 0.1 --seed 0; more with "
    "offrl edit WHAT --help"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    subparsers = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    for name, command in COMMANDS.items():
        example = f"example: offrl edit {name} {command.example}"
        text, says = command.help, sentence(command.help)
        sub = subparsers.add_parser(name, help=text, description=says, epilog=example)
        number = "+" if name == "merge" else 1
        sub.add_argument("inputs", metavar="IN", nargs=number, help="a file in robomimic's layout")
        sub.add_argument("--output", required=True, help="the HDF5 file to write")
        command.add_arguments(sub)
        add_options(sub, "--follow-links", "--module")


def run(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from offrl.data.formats.files import find_data_file
    from offrl.data.provenance import provenance
    from offrl.edits.edit import open_file
    from offrl.outputs import new_file

    with ExitStack() as stack:
        files = [stack.enter_context(open_file(find_data_file(path))) for path in args.inputs]
        new_file(args.output)
        edit = COMMANDS[args.what].edit(args, files, stack)
        history = provenance(args.words, [file.path for file in files])
        bar = stack.enter_context(tqdm(total=len(edit.demos), unit="demo", disable=None))
        num_steps = edit.write(args.output, history, bar.update)
    print(f"{args.output}: {len(edit.demos)} demonstrations, {num_steps} steps")
    return 0


# -- choosing and joining -------------------------------------------------------------------------


def _split_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--valid",
        type=tools.share,
        help="share of demonstrations that the second part gets at random (default: 0.1)",
    )
    parser.add_argument("--seed", type=seed, default=0, help="of the random choice (default: 0)")
    parser.add_argument(
        "--by",
        choices=["success"],
        help="split into successes and failures; with --valid, take that share of both",
    )
    parser.add_argument(
        "--names",
        nargs=2,
        metavar=("FIRST", "SECOND"),
        help="names of the two filter keys (default: train valid, or success failure)",
    )
    parser.add_argument("--filter-key", help="split only the demonstrations of mask/FILTER_KEY")


def _split(args: argparse.Namespace, files: Sequence[Any], stack: ExitStack) -> Any:
    from offrl.edits.rearrange import split

    share = 0.1 if args.valid is None and args.by is None else args.valid
    names = args.names or (("success", "failure") if share is None else ("train", "valid"))
    return split(files[0], share, args.seed, names, args.filter_key, args.by == "success")


def _filter_arguments(parser: argparse.ArgumentParser) -> None:
    for what, kind in (("length", count), ("return", finite)):
        parser.add_argument(
            f"--min-{what}", type=kind, metavar="X", help=f"keep those whose {what} is at least X"
        )
        parser.add_argument(
            f"--max-{what}", type=kind, metavar="X", help=f"keep those whose {what} is at most X"
        )
    parser.add_argument("--success", action="store_true", help="keep only those that succeeded")
    parser.add_argument(
        "--where",
        metavar="CONDITION",
        help="keep those for which this is true: 'length < 100 and seed != 7'; it may use length, "
        "return, success and attributes",
    )


def _filter(args: argparse.Namespace, files: Sequence[Any], stack: ExitStack) -> Any:
    from offrl.edits.edit import of_files
    from offrl.edits.expressions import Condition
    from offrl.edits.selection import that_fulfil

    limits = {
        "length >= {}": args.min_length,
        "length <= {}": args.max_length,
        "return >= {!r}": args.min_return,
        "return <= {!r}": args.max_return,
        "success": args.success or None,
        "{}": args.where,
    }
    texts = [text.format(value) for text, value in limits.items() if value is not None]
    if not texts:
        raise ValueError("offrl edit filter: no condition is given; see offrl edit filter --help")
    demos = that_fulfil(files[0], [Condition(text) for text in texts])
    return of_files(files, [(files[0], demo) for demo in demos])


def _merge_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--masks",
        action="store_true",
        help="also write a filter key for each file, with the name of the file",
    )


def _merge(args: argparse.Namespace, files: Sequence[Any], stack: ExitStack) -> Any:
    from offrl.edits.rearrange import merge

    return merge(files, args.masks)


def _subset_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--filter-key", help="choose from the demonstrations of mask/FILTER_KEY")
    parser.add_argument(
        "--demos", nargs="+", metavar="DEMO", help="names of demonstrations, e.g. demo_3 demo_7"
    )
    parser.add_argument("--n", type=count, help="how many: the first, or random ones with --seed")
    parser.add_argument("--seed", type=seed, help="seed of the random choice")


def _subset(args: argparse.Namespace, files: Sequence[Any], stack: ExitStack) -> Any:
    from offrl.edits.edit import of_files
    from offrl.edits.selection import choose

    if not (args.filter_key or args.demos or args.n):
        raise ValueError("offrl edit subset: give --n, --filter-key, or --demos")
    demos = choose(files[0], args.filter_key, args.demos, args.n, args.seed)
    return of_files(files, [(files[0], demo) for demo in demos])


# -- names and storage ----------------------------------------------------------------------------


def _rename_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keys",
        nargs="+",
        type=tools.pair,
        default=[],
        metavar="OLD=NEW",
        help="rename arrays (obs/x=obs/y, next_obs/x too), groups, filter keys (mask/x=mask/y)",
    )
    parser.add_argument(
        "--drop", nargs="+", default=[], metavar="KEY", help="leave arrays or filter keys out"
    )


def _rename(args: argparse.Namespace, files: Sequence[Any], stack: ExitStack) -> Any:
    from offrl.edits.rearrange import rename

    if not (args.keys or args.drop):
        raise ValueError("offrl edit rename: give --keys OLD=NEW, or --drop KEY")
    return rename(files[0], dict(args.keys), args.drop)


def _repack_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--compression",
        choices=("png", "jpeg", "gzip", "lzf", "none"),
        default="none",
        help="how arrays are compressed; png and jpeg compress images only (default: none)",
    )
    parser.add_argument(
        "--chunk-bytes",
        type=count,
        default=2**16,
        help="bytes that are read at once, at least one step (default: 65536)",
    )


def _repack(args: argparse.Namespace, files: Sequence[Any], stack: ExitStack) -> Any:
    from offrl.edits.rearrange import repack

    return repack(
        files[0], None if args.compression == "none" else args.compression, args.chunk_bytes
    )


def _pixels_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--range", nargs=2, type=finite, metavar=("LOW", "HIGH"), help="what becomes 0 and 255"
    )


def _pixels(args: argparse.Namespace, files: Sequence[Any], stack: ExitStack) -> Any:
    from offrl.edits.pixels import pixels

    return pixels(files[0], args.range)


# -- other rewards, actions and rates -------------------------------------------------------------


def _rewards_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--dense", action="store_true", help="use the simulator's shaped rewards")
    kinds.add_argument("--success-only", action="store_true", help="1 at success, 0 otherwise")
    parser.add_argument("--scale", type=finite, default=1.0, help="multiply by this (default: 1)")
    parser.add_argument("--shift", type=finite, default=0.0, help="then add this (default: 0)")
    add_options(parser, "--workers")


def _rewards(args: argparse.Namespace, files: Sequence[Any], stack: ExitStack) -> Any:
    from offrl.edits.relabel import rewards
    from offrl.edits.simulated import dense_rewards, rewarding

    (file,), dense = files, None
    if not (args.dense or args.success_only or args.scale != 1 or args.shift):
        raise ValueError("offrl edit rewards: give --dense, --success-only, --scale or --shift")
    env_args = file.env_args
    if args.dense or args.success_only:
        env_args = rewarding(env_args, args.dense)
    if args.dense:
        dense = _simulated(args, stack, file, dense_rewards, env_args)
    return rewards(file, env_args, dense, args.success_only, args.scale, args.shift)


def _actions_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--absolute",
        action="store_true",
        help="replace relative actions by the poses that they aim at",
    )
    parser.add_argument(
        "--action-dict",
        action="store_true",
        help="also store position, rotation (in six numbers, too) and gripper as separate arrays",
    )
    ranges = parser.add_mutually_exclusive_group()
    ranges.add_argument(
        "--range",
        nargs=2,
        type=finite,
        metavar=("LOW", "HIGH"),
        help="scale each dimension of the actions to this range",
    )
    ranges.add_argument("--undo-range", action="store_true", help="undo what --range did")
    add_options(parser, "--kind", "--workers")


def _actions(args: argparse.Namespace, files: Sequence[Any], stack: ExitStack) -> Any:
    from offrl.edits.relabel import actions, from_range, to_range
    from offrl.edits.simulated import absolute, absolute_actions, input_type

    (file,), goals = files, None
    is_about_terms = args.absolute or args.action_dict
    if bool(args.range or args.undo_range) == is_about_terms:
        raise ValueError(
            "offrl edit actions: give --absolute, --action-dict or both, or else --range or "
            "--undo-range"
        )
    if args.range:
        return to_range(file, *args.range)
    if args.undo_range:
        return from_range(file)
    if args.absolute and args.kind == "absolute":
        raise ValueError("--absolute makes relative actions absolute; leave --kind absolute out")
    kind, env_args = args.kind, file.env_args
    if args.absolute:
        kind, new_args = "delta", absolute(env_args)
        goals = _simulated(args, stack, file, absolute_actions, env_args)
        return actions(file, new_args, kind, goals, args.action_dict)
    return actions(file, env_args, kind or input_type(env_args), None, True)


def _downsample_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--factor", type=tools.factor, required=True, help="number of steps that become one"
    )
    parser.add_argument(
        "--commands",
        type=seed,
        default=1,
        help="numbers at the end of an action (the gripper) that are not summed (default: 1)",
    )
    add_options(parser, "--kind", "--workers")


def _downsample(args: argparse.Namespace, files: Sequence[Any], stack: ExitStack) -> Any:
    from offrl.edits.downsample import downsample
    from offrl.edits.simulated import input_type, interval_actions

    (file,), relative = files, None
    kind = args.kind or input_type(file.env_args)
    if kind == "delta" and not args.kind and file.has(file.demos()[0], "states"):
        relative = _simulated(args, stack, file, interval_actions, file.env_args, args.factor)
    return downsample(file, args.factor, kind, args.commands, relative)


# -- what several of them share -------------------------------------------------------------------


def _simulated(
    args: argparse.Namespace,
    stack: ExitStack,
    file: Any,
    make: Callable[..., Any],
    env_args: Any,
    *arguments: Any,
) -> Iterator[Any]:
    """Give what the simulator says of each demonstration of a file, in their order."""
    from offrl.processes import in_order

    demos = (file.recording(demo, ("states", "actions")) for demo in file.demos())
    results = in_order(make, (json.dumps(env_args), *arguments), demos, args.workers)
    return stack.enter_context(closing(results))


class Command(NamedTuple):
    help: str
    example: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    edit: Callable[[argparse.Namespace, Sequence[Any], ExitStack], Any]


COMMANDS = {
    "split": Command(
        "write filter keys: what to train on and what to validate on, or successes and failures",
        "in.hdf5 --output out.hdf5 --valid 0.1 --seed 0",
        _split_arguments,
        _split,
    ),
    "filter": Command(
        "keep the demonstrations that fulfil all conditions",
        "in.hdf5 --output out.hdf5 --max-length 100 --where 'return > 0.5'",
        _filter_arguments,
        _filter,
    ),
    "merge": Command(
        "join files that were recorded in one environment",
        "a.hdf5 b.hdf5 --output both.hdf5 --masks",
        _merge_arguments,
        _merge,
    ),
    "subset": Command(
        "keep some demonstrations: by number, by filter key, by name",
        "in.hdf5 --output out.hdf5 --filter-key train --n 20 --seed 0",
        _subset_arguments,
        _subset,
    ),
    "rename": Command(
        "rename arrays and filter keys, or leave them out",
        "in.hdf5 --output out.hdf5 --keys obs/agentview_image=obs/front --drop obs/object",
        _rename_arguments,
        _rename,
    ),
    "rewards": Command(
        "write other rewards: the simulator's dense ones, 1 at success, scaled or shifted ones",
        "in.hdf5 --output out.hdf5 --success-only --shift -1",
        _rewards_arguments,
        _rewards,
    ),
    "actions": Command(
        "write actions in another form: absolute, in parts, or in another range",
        "in.hdf5 --output out.hdf5 --absolute --action-dict",
        _actions_arguments,
        _actions,
    ),
    "downsample": Command(
        "make one step out of several, and lower control_freq accordingly",
        "in.hdf5 --output out.hdf5 --factor 2",
        _downsample_arguments,
        _downsample,
    ),
    "pixels": Command(
        "turn images into [H, W, C] of bytes: channels first, floats, or no channel",
        "in.hdf5 --output out.hdf5",
        _pixels_arguments,
        _pixels,
    ),
    "repack": Command(
        "store arrays in another way: images as PNG or JPEG, other chunks, float32, with checksums",
        "in.hdf5 --output out.hdf5 --compression png",
        _repack_arguments,
        _repack,
    ),
}
