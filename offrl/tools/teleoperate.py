"""Record demonstrations of a robosuite task from the keyboard.

example: offrl teleoperate --env Lift --n 10 --output by_hand.hdf5
"""

import argparse
import logging
from contextlib import closing, suppress

from offrl.tools import add_options, count, seed

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--env", default="Lift", help="the task (default: Lift)")
    add_options(parser, "--env-kwargs")
    add(
        "--n", type=count, help="number of demonstrations to keep (default: until you press Escape)"
    )
    add(
        "--output",
        required=True,
        help="the HDF5 file to write; a recording that was cut off is continued",
    )
    add("--seed", type=seed, default=0, help="number of the first episode (default: 0)")
    add("--horizon", type=count, default=1000, help="steps of the longest episode (default: 1000)")


def run(args: argparse.Namespace) -> int:
    from offrl.acting.episode import EpisodeRequest, run_episode
    from offrl.data.writer import DemoWriter
    from offrl.envs import ROBOSUITE_KWARGS, make_env
    from offrl.envs.rendering import Discarded, Finished, Operator, check_window, needed_backend
    from offrl.evaluation import COLLECTION_SEEDS

    env_kwargs = ROBOSUITE_KWARGS | args.env_kwargs
    env_args = {"env_name": args.env, "type": 1, "env_kwargs": env_kwargs}
    check_window()
    needed_backend()
    with DemoWriter(args.output, env_args, resume=True) as writer:
        if writer.num_demos:
            log.info(f"{args.output}: goes on after {writer.num_demos} demonstrations")
        with (
            closing(make_env(env_args)) as env,
            closing(Operator(env, env_kwargs["control_freq"])) as operator,
            suppress(Finished),
        ):
            while args.n is None or writer.num_demos < args.n:
                # A discarded episode begins again in the same state.
                seed = COLLECTION_SEEDS + args.seed + writer.num_demos
                operator.start_episode(f"{args.env}: demonstration {writer.num_demos + 1}")
                with suppress(Discarded):
                    request = EpisodeRequest(seed, args.horizon, record=True)
                    result = run_episode(env, request, operator)
                    if result.success:
                        writer.write(result.trajectory, seed=seed)
                    else:
                        log.info(f"not done in {result.length} steps, so not kept; once more")
        if writer.num_demos:
            writer.write_split()
    print(f"{args.output}: {writer.num_demos} demonstrations of {args.env}")
    return 0
