"""The memory that steps of a U-Net take, by the number of parts of their batches.

    python benchmarks/accumulate.py [--repeats 3]

Each measurement is a process of its own, in turns: by how much the most memory that it had grows in
three steps (``ru_maxrss``), with one thread, on a CPU.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

from measure import alternate, machine, markdown, spread

from offrl import config_factory
from offrl.training import Trainer

LIFT = Path(__file__).parents[1] / "datasets/lift/low_dim.hdf5"
BATCHES = {"1 of 512": (1, 512), "8 of 64": (8, 64), "1 of 64": (1, 64)}


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def growth(accumulate: int, batch_size: int) -> float:
    """MiB that three steps add, in this process."""
    train = {"data": str(LIFT), "cuda": False, "num_epochs": 1}
    overrides = {
        "algo": {"unet": {"down_dims": [64, 128, 256]}},
        "experiment": {"rollout": {"enabled": False}, "epoch_every_n_steps": 3},
        "train": train | {"batch_size": batch_size, "accumulate": accumulate},
    }
    trainer = Trainer(config_factory("diffusion_policy", overrides))
    trainer.algo.set_train()
    before = peak()
    for _, batch in zip(range(3), trainer.loader, strict=False):
        trainer.engine.step(batch, epoch=1)
    return peak() - before


def measured(batches: tuple[int, int]) -> float:
    command = [sys.executable, __file__, "--one", *map(str, batches)]
    run = partial(subprocess.run, capture_output=True, text=True, check=True)
    return float(run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}).stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(growth(*args.one))
        return
    contestants = {name: partial(measured, batches) for name, batches in BATCHES.items()}
    results = alternate(contestants, args.repeats, warm_up=False)
    print(markdown(["batches", "MiB"], [[name, spread(x, 0)] for name, x in results.items()]))
    print(machine())


if __name__ == "__main__":
    main()
