"""Write the steps that an online training has kept in its replay as a dataset.

example: offrl export-replay runs/hopper_sac/.../last.pth medium_replay.hdf5 --medium medium.hdf5
"""

import argparse
import logging
from math import ceil
from pathlib import Path

from offrl.outputs import new_file
from offrl.tools import add_options, count, rollout

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("checkpoint", help="last.pth of a training with train.num_steps")
    add("output", help="the HDF5 file to write")
    add(
        "--steps",
        type=count,
        help="write only so many steps, the first of those that were kept (default: all)",
    )
    add(
        "--medium",
        metavar="HDF5",
        help="write only the steps up to the first checkpoint whose return has come a third of the "
        "way from the first evaluation's to the best one's, and into this file as many steps of "
        "its policy: D4RL's medium-replay and medium",
    )
    add_options(parser, "--module")


def run(args: argparse.Namespace) -> int:
    if not args.medium:
        return _export(args)
    if args.steps:
        raise ValueError("--steps and --medium: both say how many steps are written; leave out one")
    from offrl.evaluation import COLLECTION_SEEDS

    if Path(args.medium).resolve() == Path(args.output).resolve():
        raise ValueError(f"--medium: {args.medium} is the file of the replay, too; name another")
    new_file(args.medium)
    checkpoint, args.steps, horizon = _medium(Path(args.checkpoint).parent)
    _export(args)
    print(f"{checkpoint} is the medium policy")
    parser = argparse.ArgumentParser()
    rollout.add_arguments(parser)
    episodes = ["--n", ceil(args.steps / horizon), "--seed", COLLECTION_SEEDS]
    words = ["--checkpoint", checkpoint, *episodes, "--record", args.medium]
    return rollout.run(parser.parse_args([*map(str, words)]))


def _medium(folder: Path) -> tuple[Path, int, float]:
    """Find the medium checkpoint of a run. Returns it, its step, and the length of its episodes."""
    from offrl.reports.run import Run

    run = Run(folder)
    returns = [record["logs"]["Return"] for record in run.evaluations]
    if returns:
        medium = returns[0] + (max(returns) - returns[0]) / 3
        for checkpoint, record in run.kept_checkpoints():
            if record["logs"]["Return"] >= medium:
                return checkpoint, record["step"], max(1.0, record["logs"]["Horizon"])
    raise ValueError(
        f"{run.path}: no checkpoint is kept whose return has come a third of the way from the "
        "first evaluation's to the best one's; train with experiment.rollout.enabled and "
        "experiment.save.every_n_epochs"
    )


def _export(args: argparse.Namespace) -> int:
    import torch

    from offrl.checkpoint import config_from_checkpoint, env_args_of, policy_from_checkpoint
    from offrl.data.computed import received
    from offrl.data.provenance import provenance
    from offrl.data.rollout import episodes_of
    from offrl.data.writer import DemoWriter
    from offrl.robomimic.configs import env_args_for_robomimic

    new_file(args.output)
    policy, content = policy_from_checkpoint(args.checkpoint, device="cpu")
    if policy.policy.ASKS_EXPERT:
        raise ValueError(
            f"{args.checkpoint}: {content['algo_name']} keeps what its expert would have done, not "
            "what was done; record episodes of its policy with: offrl rollout --record"
        )
    replay = content.get("online", {}).get("buffer")
    if replay is None or not replay["rows"]["is_step"].any():
        raise ValueError(
            f"{args.checkpoint}: holds no replay: only last.pth of an algorithm that learns from "
            "earlier steps does (sac, td3, dqn, ...), with train.online.replay.saved; record "
            "episodes of its policy with: offrl rollout --record"
        )
    config, _ = config_from_checkpoint(ckpt_dict=content)
    options = config.train.rewards.to_dict()
    # Running statistics normalise batches, not the content of the replay.
    stats = content["reward_normalization_stats"] if options["normalization"] else None
    if options["clip"]:
        log.warning(f"{args.output}: rewards are between {options['clip']} (train.rewards.clip)")
    env_args = env_args_for_robomimic(env_args_of(content))
    history = provenance(args.words, [args.checkpoint])
    num_steps = 0
    with DemoWriter(args.output, env_args, provenance=history, durable=False) as writer:
        for episode in episodes_of(replay, args.steps):
            raw = policy.policy.raw_action(torch.from_numpy(episode["actions"]))
            episode["actions"] = raw.numpy()  # as the environment took them
            episode["rewards"] = received(episode["rewards"], options, stats)
            writer.write(episode)
            num_steps += len(episode["actions"])
        writer.write_split()
    print(f"{args.output}: {writer.num_demos} episodes, {num_steps} steps")
    return 0
