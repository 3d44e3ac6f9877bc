"""Train a policy from a config file, and measure its success rate.

example: offrl train --config bc.json --set train.batch_size=256 --set train.num_epochs=100;
offrl train --config control-ddpg.yaml --set train.model_dest=models;
offrl train --config examples/registers/run.yaml --mode train_with_evaluate;
torchrun --nproc_per_node 2 train.py --config bc.json
"""

import argparse
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import reduce
from pathlib import Path
from typing import Any

from offrl.modules import allow_names
from offrl.tools import add_options, seed

# Settings of --debug, for runs of seconds: recorded, online, and with a user's own parts.
DEBUG = (
    "experiment.epoch_every_n_steps=3 experiment.validation_epoch_every_n_steps=3 "
    "experiment.save.every_n_epochs=1 experiment.rollout.n=2 experiment.rollout.horizon=10 "
    "experiment.rollout.rate=1 experiment.rollout.warmstart=0 experiment.rollout.num_workers=2 "
    "experiment.rollout.video_episodes=1 train.num_epochs=2"
).split()
DEBUG_ONLINE = (
    "experiment.epoch_every_n_steps=40 train.num_steps=80 train.online.collect_steps=10 "
    "train.online.random_steps=10"
).split()
DEBUG_PIPELINE = ["max_steps=200"]
RESUMED = ("resume", "set", "module", "follow_links", "command", "words")  # allowed with --resume
FLAGS = {  # keys of a config, by arguments
    "dataset": "train.data",
    "name": "experiment.name",
    "output": "train.output_dir",
    "mode": "mode",
    "seed": "train.seed",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_config_arguments(parser)
    add("--dataset", help="HDF5 file, instead of the config's train.data")
    add("--name", help="name of the run (experiment.name)")
    add("--output", help="folder for runs (train.output_dir; default: runs)")
    add(
        "--mode",
        help="of a file of parts (alg_para): train, evaluate, or train_with_evaluate, which has "
        "one more explorer that evaluates",
    )
    add(
        "--resume",
        metavar="RUN_FOLDER",
        help="go on with a run, for longer with --set train.num_epochs=N (or train.num_steps); no "
        "other option is allowed with it",
    )
    add("--debug", action="store_true", help="make a complete tiny run, in seconds")
    add(
        "--dry-run",
        action="store_true",
        help="do everything up to the first step, write nothing, and say what was found: data, the "
        "memory that it takes, the time to the first batch, networks, environments",
    )
    add("--print-config", action="store_true", help="print the config with its defaults, and stop")
    add_options(parser, "--follow-links", "--module")


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that describe a config."""
    add = parser.add_argument
    add(
        "--config",
        help="a JSON or YAML file. If there is no such file, the config of this name that ships "
        "with offrl (bc.json or configs/bc.json). If this is not plain, a message says which file "
        "is used",
    )
    add("--seed", type=seed, help="seed of everything random (train.seed)")
    add(
        "--ignore-unknown",
        action="store_true",
        help="leave out the config's keys that offrl does not know, such as those of a fork of "
        "robomimic; a line names them",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set any config key by its dotted path; the value is read as JSON, in which "
        "lists need no quotes ([a, b]), otherwise as text; can be given several times",
    )


def run(args: argparse.Namespace) -> int:
    if args.resume:
        given = (name for name, value in vars(args).items() if value and name not in RESUMED)
        if other := next(given, "seed" if args.seed is not None else None):
            raise ValueError(
                f"--resume goes on with a run as it was, without --{other.replace('_', '-')}; "
                "--set makes it longer, and for another config start a new run from its weights "
                "(experiment.ckpt_path)"
            )
    config: Any = None
    config_file = None
    if not args.resume:
        config, config_file = read_config(args)
    if args.print_config:
        print(config.dump())
        return 0
    if args.dry_run:
        return _show_dry_run(config)
    from offrl import parallel
    from offrl.config.build import check_longer
    from offrl.config.files import parse_override
    from offrl.config.pipeline import PipelineConfig, config_of
    from offrl.pipelines.run import evaluate_pipeline, return_line, train_pipeline
    from offrl.training import Interrupts, train
    from offrl.tree import merge

    if isinstance(config, PipelineConfig) and config.mode == "evaluate":
        logs = evaluate_pipeline(config)
        print(f"result: {return_line(logs)}")
        return 1 if logs["Crashed"] else 0
    with Interrupts() as interrupts, parallel.joined(), ExitStack() as stack:
        run = None
        if args.resume:
            sys.path.append(os.getcwd())  # for modules that it names
            run, content, is_finished = parallel.by_first(_open_run, args.resume)
            stack.callback(run.unlock)
            config = config_of(content)
            if args.set:
                overrides = reduce(merge, map(parse_override, args.set))
                earlier, config = config, config_of(merge(content, overrides))
                check_longer(earlier, config, overrides)
            elif is_finished:
                print(f"finished: {run.path}: nothing is left to do; --set makes it longer")
                return 0
        work = train_pipeline if isinstance(config, PipelineConfig) else train
        result = work(config, run, interrupts, config_file)
        lines = result.describe() if parallel.rank() == 0 else {}
    if lines and result.is_measured:
        lines["finished"] = "the training has come to its end"
    _print(lines)
    return 0 if result.is_measured and not result.problems else 1


def _print(lines: Mapping[str, object]) -> None:
    for name, value in lines.items():
        print(f"{name + ':':16}{value}")


def _show_dry_run(config: Any) -> int:
    from offrl import parallel
    from offrl.config.pipeline import PipelineConfig
    from offrl.training.dry_run import dry_run

    if isinstance(config, PipelineConfig):
        raise ValueError(
            "--dry-run: only trainings of offrl's algorithms can say beforehand what they do; this "
            "file is of parts of your own (alg_para)"
        )
    with parallel.joined():
        lines = dry_run(config)
        _print(lines if parallel.rank() == 0 else {})
    return 0


def _open_run(path: str) -> tuple[Any, dict[str, Any], bool]:
    """Open a run folder. Returns it, the content of its config, which can be sent between
    processes, and whether the run is marked as finished and has an undamaged last checkpoint."""
    from offrl.reports.run import Run
    from offrl.training import RunFolder
    from offrl.training.run import newest_checkpoint

    run, config = RunFolder.open(path)
    known = Run(run.path)
    is_finished = bool(known.provenance.get("finished")) and known.is_finished
    if is_finished and not known.is_of_own_parts:
        is_finished = newest_checkpoint(run)[0] == run.last_checkpoint
    return run, config.to_dict(), is_finished


def read_config(args: argparse.Namespace) -> tuple[Any, Path]:
    """Read the config that the arguments describe. Returns it and its file."""
    from offrl.config.files import find_config, nested_all, parse_override, read_config_file
    from offrl.config.pipeline import config_of, online_content
    from offrl.tree import merge

    if not args.config:
        raise ValueError("--config: name a config file, e.g. --config bc.json")
    path = find_config(args.config)
    content: Any = read_config_file(path)
    is_of_parts, overrides = "alg_para" in content, args.set
    if getattr(args, "debug", False):
        tiny = [*DEBUG, *(DEBUG_ONLINE if _sets(content, "train", "num_steps") else [])]
        overrides = [*(DEBUG_PIPELINE if is_of_parts else tiny), *overrides]
    flags = {key: getattr(args, name, None) for name, key in FLAGS.items()}
    if flags["mode"] and not is_of_parts:
        raise ValueError(f"--mode is for files of parts (alg_para), not for {path}; leave it out")
    content = reduce(merge, [nested_all(flags), *map(parse_override, overrides)], content)
    # A user's own algorithm may be there.
    allow_names(content, os.getcwd(), str(path.resolve().parent))
    content = online_content(content)
    if _sets(content, "experiment", "ckpt_path") and _sets(content, "train", "num_steps"):
        from offrl.assembly.start import with_checkpoint

        content = with_checkpoint(content)
    return config_of(content, args.ignore_unknown), path


def _sets(content: Mapping[str, Any], section: str, key: str) -> bool:
    """Say whether a config file, which may be invalid, sets a key."""
    part = content.get(section)
    return isinstance(part, Mapping) and part.get(key) is not None
