"""Record demonstrations by a scripted expert.

example: offrl collect --env Lift --n 200 --noise 0.1 --output lift.hdf5;
offrl collect --env push-v3 --n 100 --noise 0.3 1 --keep-failures --output mixed.hdf5
"""

import argparse
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from offrl.tools import add_options, count, seed, size

PATIENCE = 50  # successive failures after which collecting is given up


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--env",
        default="Lift",
        help="the task, one of robosuite's or of Meta-World's (default: Lift)",
    )
    add(
        "--type",
        choices=("robosuite", "metaworld"),
        help="the simulator of the task (default: the one that has a task of this name)",
    )
    add("--n", type=count, default=200, help="number of demonstrations to keep (default: 200)")
    add("--output", required=True, help="the HDF5 file to write")
    add("--seed", type=seed, default=0, help="number of the first episode (default: 0)")
    add(
        "--noise",
        type=size,
        nargs="+",
        default=[0.0],
        help="standard deviation of the noise on the arm's actions; with several, episodes take "
        "them in turn (default: 0)",
    )
    add(
        "--styles",
        nargs="+",
        default=[],
        metavar="STYLE",
        help="ways in which the expert solves the task, which episodes take in turn, e.g. left "
        "right of PickPlaceCan (default: the shortest way)",
    )
    add(
        "--horizon",
        type=count,
        help="steps of the longest episode (default: as many as suffice for the expert)",
    )
    add("--keep-failures", action="store_true", help="keep the episodes that fail as well")
    add_options(parser, "--env-kwargs", "--workers", "--address")


def run(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from offrl.data.writer import DemoWriter
    from offrl.envs import env_args_named
    from offrl.envs.experts import ExpertPolicy, scripted_expert
    from offrl.envs.workers import EpisodeRequest, pools
    from offrl.evaluation import COLLECTION_SEEDS
    from offrl.robomimic.configs import env_args_for_robomimic

    env_args = env_args_named(args.env, args.type)
    env_args["env_kwargs"] |= args.env_kwargs
    policy = ExpertPolicy(scripted_expert(env_args), args.noise, args.styles)
    horizon = args.horizon or policy.horizon
    episode, in_vain, styles = args.seed, 0, Counter[str]()
    with (
        DemoWriter(args.output, env_args_for_robomimic(env_args)) as writer,
        writer.repeatable(),
        pools(args.address) as make,
        make(env_args, args.workers) as pool,
    ):
        pool.check(policy, args.n)
        with tqdm(total=args.n, unit="demo", disable=None) as bar:
            while writer.num_demos < args.n:
                # The same episodes in the same order, however many workers there are.
                batch = range(episode, episode + args.n - writer.num_demos)
                episode = batch.stop
                requests = [
                    EpisodeRequest(COLLECTION_SEEDS + i, horizon, record=True) for i in batch
                ]
                for result in _in_order(pool.run(requests, policy), requests):
                    if result.success or args.keep_failures:
                        attributes = policy.attributes(result.request.seed)
                        writer.write(result.trajectory, **attributes)
                        if args.styles:
                            styles[attributes["style"]] += 1
                        bar.update()
                        in_vain = 0
                    else:
                        in_vain += 1
                if in_vain >= max(args.n, PATIENCE):
                    raise ValueError(
                        f"none of {in_vain} episodes succeeded; lower --noise, raise --horizon or "
                        "use --keep-failures"
                    )
        writer.write_split()
    tried, total = episode - args.seed, writer.num_demos
    of_each = f" ({', '.join(f'{n} {style}' for style, n in styles.items())})" if styles else ""
    print(f"{args.output}: {total} demonstrations of {args.env}{of_each}, {tried} episodes tried")
    return 0


def _in_order(results: Iterable[Any], requests: Sequence[Any]) -> Iterator[Any]:
    """Yield results in the order of their requests, each as soon as those before it are there."""
    waiting, todo = {}, deque(requests)
    for result in results:
        if result.error:
            raise ValueError(f"episode {result.request.seed} failed: {result.error}")
        waiting[result.request] = result
        while todo and todo[0] in waiting:
            yield waiting.pop(todo.popleft())
