"""Evaluate a checkpoint, film it, and record what it does as a dataset.

example: offrl rollout --checkpoint runs/bc --n 50 --seed 0 --video out.mp4 --record
out.hdf5
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from offrl.outputs import explained_errors, new_file
from offrl.tools import add_options, count, size, write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_options(parser, "--checkpoint", "--seed", "--horizon")
    add("--n", type=count, default=50, help="number of episodes (default: 50)")
    add("--env", help="another environment than that of the dataset, or of the first dataset")
    add("--lang", help="another instruction than that of the dataset")
    add(
        "--latency-ms",
        type=size,
        metavar="MS",
        help="how late a chunk of actions comes (default: as in the config)",
    )
    add(
        "--asynchronous",
        action=argparse.BooleanOptionalAction,
        help="infer a chunk while the one before is played, where it comes late "
        "(default: as in the config)",
    )
    add("--video", metavar="MP4", help="film the first episodes")
    add("--video-episodes", type=count, default=3, help="how many episodes to film (default: 3)")
    add("--record", metavar="HDF5", help="write the episodes as a dataset")
    add_options(parser, "--workers", "--address", "--json", "--module")


def run(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from offrl.checkpoint import env_args_of, instruction, policy_from_checkpoint
    from offrl.envs.rendering import needed_backend, renders_observations
    from offrl.envs.workers import pools
    from offrl.evaluation import TEST_SEEDS, evaluate, requests_of, summarize, with_latency
    from offrl.training.progress import subgoal_line, success_line
    from offrl.video import encoder

    outputs = [new_file(path) for path in (args.video, args.record, args.json) if path]
    if len({path.absolute() for path in outputs}) < len(outputs):
        raise ValueError("--video, --record and --json name one file; give each a name of its own")
    if args.video:
        encoder()
    policy, content = policy_from_checkpoint(args.checkpoint)
    env_args = env_args_of(content, args.env)
    if args.env is None and (several := [*content.get("environments", {})]):
        print(f"environment: {several[0]}; for another give --env {' or --env '.join(several[1:])}")
    if args.lang:
        policy.instruction = instruction(policy.policy, content, args.lang)
        env_args = {**env_args, "lang": args.lang}
    backend = None
    if args.video or renders_observations(env_args):
        backend = needed_backend("--video" if args.video else "the policy sees images")

    rollout = policy.policy.global_config.experiment.rollout
    for name in ("n", "horizon", "latency_ms", "asynchronous"):
        if getattr(args, name) is not None:
            setattr(rollout, name, getattr(args, name))
    policy = with_latency(policy, rollout, env_args)
    if policy.executor and policy.executor.latency:
        late = policy.executor.latency
        print(f"steps of the environment by which a chunk comes late: {late}")
    num_filmed = args.video_episodes if args.video else 0
    requests = [
        replace(request, record=bool(args.record))
        for request in requests_of(rollout, TEST_SEEDS + args.seed, num_filmed)
    ]
    with (
        pools(args.address) as make,
        make(env_args, args.workers, rollout.timeout, backend) as pool,
    ):
        pool.check(policy, args.n)
        episodes = evaluate(policy, pool, requests)
        bar = tqdm(episodes, total=args.n, unit="episode", disable=None)
        results = sorted(bar, key=lambda r: r.request.seed)
    logs = summarize(results)
    print(success_line(logs))
    if "Subgoals" in logs:
        print(subgoal_line(logs))
    problems = _say_what_was_lost(results)
    problems += _write_each(
        (args.json, lambda path: write_json(path, logs)),
        (args.record, lambda path: _record(path, env_args, results)),
        (args.video, lambda path: _film(path, results)),
    )
    if problems:
        raise ValueError("; ".join(problems))
    return 0


def _write_each(*outputs: tuple[str | None, Callable[[Path], None]]) -> list[str]:
    """Write each requested output, even if others fail. Returns the problems."""
    problems = []
    for name, write in outputs:
        if name:
            path = Path(name).expanduser()
            try:
                with explained_errors(path):
                    write(path)
                print(path)
            except (OSError, ValueError) as error:
                problems.append(str(error))
    return problems


def _say_what_was_lost(results: Sequence[Any]) -> list[str]:
    """Print which episodes could not be run, and why. Returns a summary of that."""
    seeds = defaultdict(list)
    for result in results:
        if result.error:
            seeds[result.error].append(str(result.request.seed))
    for error, lost in seeds.items():
        print(f"not run: seed {', '.join(lost)}: {error}")
    num_lost = sum(map(len, seeds.values()))
    if not num_lost:
        return []
    return [
        f"{num_lost} of {len(results)} episodes could not be run, so that this is no result of "
        "all of them; mend the simulator, or where memory is short use fewer --workers"
    ]


def _record(path: Path, env_args: dict[str, Any], results: Sequence[Any]) -> None:
    from offrl.data.writer import DemoWriter
    from offrl.robomimic.configs import env_args_for_robomimic

    recorded = [result for result in results if result.trajectory]
    if not recorded:
        raise ValueError("--record: no episode was run")
    with DemoWriter(path, env_args_for_robomimic(env_args)) as writer, writer.repeatable():
        for result in recorded:
            success = {} if result.success is None else {"success": result.success}
            writer.write(result.trajectory, seed=result.request.seed, **success)
        writer.write_split()


def _film(path: Path, results: Sequence[Any]) -> None:
    from offrl.evaluation import video_frames
    from offrl.video import write_video

    frames = video_frames(results)
    if not frames:
        reason = next((r.no_video for r in results if r.no_video), "no episode was filmed")
        raise ValueError(f"--video: {reason}")
    write_video(path, frames, fps=20)
