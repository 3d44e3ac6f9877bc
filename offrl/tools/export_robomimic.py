"""Write a checkpoint that robomimic's own scripts can load.

example: offrl export-robomimic runs/bc lift_bc.pth
"""

import argparse

from offrl.outputs import new_file
from offrl.tools import OPTIONS, add_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("checkpoint", help=OPTIONS["--checkpoint"]["help"])
    add("output", help="the .pth file to write")
    add_options(parser, "--module")


def run(args: argparse.Namespace) -> int:
    from offrl.checkpoint import policy_from_checkpoint, write_checkpoint
    from offrl.robomimic.checkpoints import export_checkpoint

    output = new_file(args.output)
    policy, content = policy_from_checkpoint(args.checkpoint, device="cpu")
    write_checkpoint(output, export_checkpoint(content, policy.policy.nets))
    print(output)
    return 0
