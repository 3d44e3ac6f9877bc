"""``offrl export-replay``: the steps that an online training has kept, as a dataset."""

import argparse
from collections.abc import Mapping
from typing import Any

from offrl.outputs import new_file
from offrl.tools import count

HELP = "write the steps that an online training has kept in its replay as a dataset"
EPILOG = "example: offrl export-replay runs/hopper_sac/.../last.pth medium_replay.hdf5"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="last.pth of a training with train.num_steps")
    parser.add_argument("output", help="the HDF5 file to write")
    parser.add_argument(
        "--steps",
        type=count,
        help="write only so many steps, the first of those that were kept (default: all)",
    )


def run(args: argparse.Namespace) -> int:
    from offrl.checkpoint import env_args_of, policy_from_checkpoint
    from offrl.data.provenance import provenance
    from offrl.data.replayed import episodes_of
    from offrl.data.writer import DemoWriter
    from offrl.robomimic.configs import env_args_for_robomimic

    new_file(args.output)
    policy, content = policy_from_checkpoint(args.checkpoint, device="cpu")
    replay = _replay_in(args.checkpoint, content)
    num_envs = len(replay["envs"]["filled"])
    limit = args.steps and -(-args.steps // num_envs)
    env_args = env_args_for_robomimic(env_args_of(content))
    history = provenance(args.words, [args.checkpoint])
    num_steps = 0
    with DemoWriter(args.output, env_args, provenance=history, durable=False) as writer:
        for episode in episodes_of(replay, limit):
            writer.write(episode | {"actions": _raw(policy.policy, episode["actions"])})
            num_steps += len(episode["actions"])
        writer.write_split()
        total = writer.num_demos
    print(f"{args.output}: {total} episodes, {num_steps} steps")
    return 0


def _replay_in(path: str, content: Mapping[str, Any]) -> Mapping[str, Any]:
    replay = content.get("online", {}).get("buffer")
    if replay is None or not replay["rows"]["is_step"].any():
        raise ValueError(
            f"{path}: holds no replay: only last.pth of an algorithm that learns from earlier "
            "steps does (sac, td3, dqn, ...), with train.online.replay.saved; record episodes of "
            "its policy with: offrl rollout --record"
        )
    return replay


def _raw(algo: Any, actions: Any) -> Any:
    """Actions as the environment took them."""
    import torch

    return algo.raw_action(torch.from_numpy(actions)).numpy()
