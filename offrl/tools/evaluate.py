"""Evaluate the parts that a file combines (alg_para), with the weights of a checkpoint.

example: offrl evaluate --config run.yaml --checkpoint runs/NewAlgorithm --n 50. Other
checkpoints: offrl rollout
"""

import argparse
import logging

from offrl.outputs import new_file
from offrl.tools import add_options, count, write_json
from offrl.tools.train import add_config_arguments, read_config

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_config_arguments(parser)
    add(
        "--checkpoint",
        help="file of weights, or the folder of a run (of runs/NAME: the newest run), whose newest "
        "weights are taken",
    )
    add("--n", type=count, help="number of episodes (default: 20)")
    add_options(parser, "--json")


def run(args: argparse.Namespace) -> int:
    from offrl.config.pipeline import PipelineConfig
    from offrl.pipelines.run import evaluate_pipeline, return_line

    config, path = read_config(args)
    if not isinstance(config, PipelineConfig):
        raise ValueError(
            f"{path}: its policy is one of offrl's own; evaluate it with offrl rollout --checkpoint"
        )
    said = {"checkpoint": args.checkpoint, "episodes": args.n}
    said = {name: value for name, value in said.items() if value is not None}
    config = config.model_copy(update=said)
    if config.checkpoint is None:
        log.warning("no --checkpoint is given: the weights are those that the models begin with")
    output = new_file(args.json) if args.json else None
    logs = evaluate_pipeline(config)
    print(f"result: {return_line(logs)}")
    if output is not None:
        write_json(output, logs)
    return 1 if logs["Crashed"] else 0
