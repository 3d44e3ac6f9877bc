"""``offrl export-robomimic``: a checkpoint that robomimic loads."""

import argparse
from pathlib import Path

HELP = "write a checkpoint as robomimic would have, for its own scripts"
EPILOG = "example: offrl export-robomimic runs/bc/.../last.pth lift_bc.pth"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="a .pth file of a training run")
    parser.add_argument("output", help="the .pth file to write")


def run(args: argparse.Namespace) -> int:
    from offrl.checkpoint import policy_from_checkpoint, write_checkpoint
    from offrl.robomimic.checkpoints import export_checkpoint

    if Path(args.output).exists():
        raise FileExistsError(f"{args.output} exists; choose another name or move it away")
    policy, content = policy_from_checkpoint(args.checkpoint, device="cpu")
    write_checkpoint(args.output, export_checkpoint(content, policy.policy.nets))
    print(args.output)
    return 0
