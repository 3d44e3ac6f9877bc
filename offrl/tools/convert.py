"""Convert demonstrations to the format of robomimic, D4RL, Minari or LeRobot.

example: offrl convert datasets/lift/low_dim.hdf5 lift_lerobot --to lerobot --task 'lift the cube'
"""

import argparse
from collections import deque

from offrl.tools import add_options, count, with_bar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "input",
        metavar="IN",
        help="a file of robomimic, offrl, D4RL, ManiSkill or robosuite's own script (demo.hdf5), a "
        "folder of Minari, LeRobot, ALOHA or Diffusion Policy (zarr), or minari:NAME; which it is "
        "shows in itself",
    )
    add("output", metavar="OUT", help="a new file or folder, or minari:NAME")
    add(
        "--to",
        required=True,
        choices=("robomimic", "d4rl", "minari", "lerobot", "lerobot-v2.1"),
        help="the format to convert to (lerobot: its layout 3.0)",
    )
    add(
        "--obs",
        nargs="+",
        metavar="KEY",
        help="convert only these observations (default: all that the format can hold)",
    )
    add("--task", help="the task in words, for LeRobot (default: the env_name)")
    add("--fps", type=count, help="steps in a second, for LeRobot (default: control_freq)")
    add(
        "--workers",
        type=count,
        help="number of processes (default: one per core to make films, otherwise one)",
    )
    add_options(parser, "--follow-links")


def run(args: argparse.Namespace) -> int:
    from offrl.data.formats.convert import convert, make_plan
    from offrl.data.formats.files import find_data, open_episodes
    from offrl.data.formats.minari import MINARI
    from offrl.data.provenance import provenance
    from offrl.outputs import new_file

    if not args.output.startswith(MINARI):
        new_file(args.output)
    elif args.to != "minari":
        raise ValueError(
            f"{args.output}: is for Minari's data; name a new file, or use --to minari"
        )
    path = find_data(args.input)
    with open_episodes(path) as source:
        history = provenance(args.words, [path])
        planned = make_plan(source, args.to, args.obs, args.task, args.fps, history)
        demos = convert(source, args.output, args.to, planned, args.workers)
        with with_bar(demos, planned.num_demos) as bar:
            deque(bar, maxlen=0)
    print(f"{args.output}: {planned.num_demos} demonstrations")
    return 0
