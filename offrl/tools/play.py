"""Show what a checkpoint does, in a window or as a film.

example: offrl play --checkpoint models/agent-final-1a2b3c4d.pth --episodes 5
"""

import argparse
import logging
import os
from contextlib import closing
from pathlib import Path

from offrl.outputs import new_file
from offrl.tools import add_options, count

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_options(parser, "--checkpoint", "--seed", "--horizon")
    add("--episodes", type=count, default=5, help="number of episodes to show (default: 5)")
    add("--env", help="another environment than that of the training")
    add(
        "--video",
        metavar="MP4",
        help="film the episodes, whether or not there is a display (default: a window, or where "
        "none can be opened a film beside you, named as the checkpoint)",
    )
    add_options(parser, "--module")


def run(args: argparse.Namespace) -> int:
    from offrl.checkpoint import env_args_of, policy_from_checkpoint
    from offrl.envs import make_env
    from offrl.envs.rendering import can_show, free_name, working_backend
    from offrl.evaluation import TEST_SEEDS, requests_of, summarize, watch
    from offrl.training.progress import success_line
    from offrl.video import encoder

    film = new_file(args.video).absolute() if args.video else None  # environments may chdir
    policy, content = policy_from_checkpoint(args.checkpoint)
    if film is None and (problem := can_show()):
        film = new_file(free_name(Path(f"{Path(args.checkpoint).stem}.mp4")))
        log.info(f"{problem}: filming instead")
    if film is not None:
        encoder()
    rollout = policy.policy.global_config.experiment.rollout
    rollout.n, rollout.horizon = args.episodes, args.horizon or rollout.horizon
    requests = requests_of(rollout, TEST_SEEDS + args.seed)
    os.environ.setdefault("MUJOCO_GL", working_backend() or "disabled")  # before it is imported
    with closing(make_env(env_args_of(content, args.env), policy.obs_keys)) as env:
        results = watch(policy, env, requests, film)
    for result in results:
        print(
            f"seed {result.request.seed}: return {result.total_reward:.2f}, length {result.length}"
            + (", solved" if result.success else "")
        )
    if results:
        print(success_line(summarize(results)))
    if film is not None:
        print(film)
    return 0
