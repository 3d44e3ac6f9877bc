"""Measure a checkpoint on data, where there is no environment to evaluate it in.

example: offrl proxies --checkpoint runs/iql --dataset held_out.hdf5 --fqe-steps 5000
"""

import argparse

from offrl.outputs import new_file
from offrl.tools import add_options, count, write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_options(parser, "--checkpoint", "--filter-key")
    add("--dataset", help="HDF5 file (default: the data that it was trained on)")
    add("--fqe-steps", type=count, help="also run fitted Q evaluation for so many steps")
    add_options(parser, "--json", "--follow-links", "--module")


def run(args: argparse.Namespace) -> int:
    from offrl.checkpoint import config_from_checkpoint, policy_from_checkpoint
    from offrl.data.datasets import make_dataset, place
    from offrl.data.formats.files import find_data
    from offrl.evaluation.proxies import proxies
    from offrl.tree import map_leaves

    json_file = new_file(args.json) if args.json else None
    policy, content = policy_from_checkpoint(args.checkpoint)
    algo = policy.policy
    config, _ = config_from_checkpoint(ckpt_dict=content)
    if args.dataset:  # without selections of the training's demonstrations
        config.train.data, config.train.hdf5_filter_key = args.dataset, None
    for entry in config.train.data or []:
        entry.path = str(find_data(entry.path))
        entry.filter_key = args.filter_key or entry.filter_key
    instructions = {k: x.numpy() for k, x in (content.get("instructions") or {}).items()}
    data = make_dataset(
        config,
        instructions,
        action_stats=map_leaves(lambda x: x.cpu().numpy(), algo.action_normalizer.stats),
        reward_stats=content.get("reward_normalization_stats"),
    )
    steps = place(data, algo.device).single_steps()
    logs = proxies(algo, steps, steps, args.fqe_steps or 0, config.train.seed)
    print("proxies for success, measured on data (not a success rate):")
    for name, value in logs.items():
        print(f"{name + ':':20}{value:10.4g}")
    if json_file:
        write_json(json_file, logs)
        print(json_file)
    return 0
