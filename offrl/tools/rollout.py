"""``offrl rollout``: evaluate a checkpoint."""

import argparse
import json
from pathlib import Path
from typing import Any

from offrl.tools import count, seed

HELP = "evaluate a checkpoint, film it, record what it does as a dataset"
EPILOG = (
    "example: offrl rollout --checkpoint runs/bc/.../last.pth --n 50 --seed 0 "
    "--video out.mp4 --record out.hdf5"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", required=True, help="a .pth file of a training run")
    parser.add_argument("--n", type=count, default=50, help="episodes (default: 50)")
    parser.add_argument(
        "--seed",
        type=seed,
        default=0,
        help="seed of the first episode; the others count on from it (default: 0)",
    )
    parser.add_argument("--horizon", type=count, help="longest episode (default: the config's)")
    parser.add_argument("--env", help="another environment than that of the dataset")
    parser.add_argument("--lang", help="another instruction than that of the dataset")
    parser.add_argument("--video", metavar="MP4", help="film the first episodes")
    parser.add_argument("--video-episodes", type=count, default=3, help="how many (default: 3)")
    parser.add_argument("--record", metavar="HDF5", help="write the episodes as a dataset")
    parser.add_argument("--workers", type=count, help="simulator processes (default: one per core)")
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON")


def run(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from offrl.checkpoint import env_args_of, instruction, policy_from_checkpoint
    from offrl.envs.rendering import INSTALL_HINT, renders_observations, working_backend
    from offrl.envs.workers import EnvPool, EpisodeRequest
    from offrl.evaluation import TEST_SEEDS, evaluate, summarize
    from offrl.training.progress import success_line

    for path in (args.video, args.record, args.json):
        if path and Path(path).exists():
            raise FileExistsError(f"{path} exists; choose another name or move it away")
    policy, content = policy_from_checkpoint(args.checkpoint)
    env_args = env_args_of(content, args.env)
    if args.lang:
        policy.instruction = instruction(policy.policy, content, args.lang)
        env_args = {**env_args, "lang": args.lang}
    renders = args.video or renders_observations(env_args)
    backend = working_backend() if renders else None
    if renders and backend is None:
        why = "--video" if args.video else "the policy sees images"
        raise ValueError(f"{why}: no rendering back end works here; {INSTALL_HINT}")

    rollout = policy.policy.global_config.experiment.rollout
    requests = [
        EpisodeRequest(
            seed=TEST_SEEDS + args.seed + i,
            horizon=args.horizon or rollout.horizon,
            terminate_on_success=rollout.terminate_on_success,
            frame_every=1 if args.video and i < args.video_episodes else None,
            record=args.record is not None,
        )
        for i in range(args.n)
    ]
    with EnvPool(env_args, args.workers, rollout.timeout, backend) as pool:
        pool.check(policy)
        episodes = evaluate(policy, pool, requests)
        bar = tqdm(episodes, total=args.n, unit="episode", disable=None)
        results = sorted(bar, key=lambda r: r.request.seed)
    logs = summarize(results)
    print(success_line(logs))
    for result in results:
        if result.error:
            print(f"seed {result.request.seed} was not run: {result.error}")
    if not logs["n"]:
        raise ValueError("no episode could be run")
    _write(args, env_args, results, logs)
    return 0


def _write(
    args: argparse.Namespace, env_args: dict[str, Any], results: list[Any], logs: dict[str, float]
) -> None:
    from offrl.data.writer import DemoWriter
    from offrl.evaluation import video_frames, write_video

    if args.record:
        with DemoWriter(args.record, env_args) as writer:
            for result in results:
                if result.trajectory:
                    writer.write(
                        result.trajectory, seed=result.request.seed, success=result.success
                    )
            writer.write_split()
    if args.json:
        Path(args.json).write_text(json.dumps(logs, indent=4) + "\n", encoding="utf-8")
    if args.video:
        frames = video_frames(results)
        if not frames:
            reason = next((r.no_video for r in results if r.no_video), "no episode was filmed")
            raise ValueError(f"--video: {reason}")
        write_video(args.video, frames, fps=20)
    for path in filter(None, (args.record, args.json, args.video)):
        print(path)
