"""What code gains that is there for speed alone: a training in turns with it and with its plain form.

    GOMP_SPINCOUNT=1000 python benchmarks/kernels.py [KERNEL ...] [--turns 60] [--seconds 0.3]

Both train the same networks in one process, so that neither has the better place in memory. The
ratio is of the time with the kernel to that with the plain form within a turn, by the clock and by
the processors' time, which says more where others use the machine as well: the median, and
the middle half of the turns.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from statistics import quantiles
from typing import Any
from unittest import mock

import torch
from measure import machine, markdown
from throughput import POLICIES, make_config
from torch import nn
from tqdm import tqdm

from offrl.kernels import allocator
from offrl.training import Trainer

DATA = "datasets/lift/low_dim.hdf5"


@dataclass(frozen=True)
class Kernel:
    """The policies that gain most, and what puts the plain form in its place."""

    policies: tuple[str, ...]
    plain: Callable[[], AbstractContextManager[object]]


def replaced(name: str, plain: Any) -> Callable[[], AbstractContextManager[object]]:
    return lambda: mock.patch(name, plain)


# -- plain forms ----------------------------------------------------------------------------------


@contextmanager
def memory_as_usual() -> Iterator[None]:
    """glibc's thresholds as it raises them itself, at the most."""
    set_thresholds(2**25, 2**26)
    yield
    set_thresholds(allocator.LARGEST_KEPT, allocator.MOST_KEPT)


def set_thresholds(largest_kept: int, most_kept: int) -> None:
    libc = ctypes.CDLL(None)
    libc.mallopt(allocator.M_MMAP_THRESHOLD, largest_kept)
    libc.mallopt(allocator.M_TRIM_THRESHOLD, most_kept)


KERNELS = {
    "linear": Kernel(
        ("mlp", "transformer_gmm"),
        replaced("offrl.kernels.linear.Linear.forward", nn.Linear.forward),
    ),
    "dropout": Kernel(
        ("transformer_gmm",), replaced("offrl.kernels.dropout.Dropout.forward", nn.Dropout.forward)
    ),
    "adam": Kernel(
        ("iql", "td3_bc", "vae"), replaced("offrl.kernels.adam.Adam.step", torch.optim.Adam.step)
    ),
    "memory": Kernel(("cql", "transformer_gmm", "mlp"), memory_as_usual),
    "batches": Kernel(("vae", "td3_bc", "iql"), replaced("offrl.data.loader.GATHERED_BYTES", 0)),
}


# -- turns ----------------------------------------------------------------------------------------


class Training:
    """One policy, trained by either form; each has batches of its own."""

    def __init__(self, policy: str):
        self._trainer = Trainer(make_config(1, POLICIES[policy], DATA))
        self._records = {is_plain: self._trainer() for is_plain in (False, True)}

    def seconds(self, kernel: Kernel, is_plain: bool, steps: int) -> tuple[float, float]:
        """By the clock, and those of all processors."""
        self._trainer.config.experiment.epoch_every_n_steps = steps
        with kernel.plain() if is_plain else nullcontext():
            wall, cpu = time.perf_counter(), time.process_time()
            next(record for record in self._records[is_plain] if record["type"] == "epoch")
            return time.perf_counter() - wall, time.process_time() - cpu


def take_turns(kernel: Kernel, policy: str, turns: int, seconds: float) -> list[list[float]]:
    """The milliseconds of a step with the kernel and both ratios, of each turn."""
    training, results = Training(policy), []
    for is_plain in (False, True):  # to warm up
        training.seconds(kernel, is_plain, 3)
    steps = max(1, round(3 * seconds / training.seconds(kernel, False, 3)[0]))
    for turn in tqdm(range(turns), desc=policy, leave=False, disable=None):
        times = {
            is_plain: training.seconds(kernel, is_plain, steps)
            for is_plain in (bool(turn % 2), not turn % 2)
        }
        ratios = [ours / plain for ours, plain in zip(times[False], times[True], strict=True)]
        results.append([1000 * times[False][0] / steps, *ratios])
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help=", ".join(KERNELS))
    parser.add_argument("--turns", type=int, default=60, help="turns of each form")
    parser.add_argument("--seconds", type=float, default=0.3, help="length of a turn, about")
    args = parser.parse_args()
    rows = []
    for name in args.kernels or KERNELS:
        for policy in KERNELS[name].policies:
            columns = zip(*take_turns(KERNELS[name], policy, args.turns, args.seconds), strict=True)
            steps, *ratios = (quantiles(column) for column in columns)
            cells = [f"{mid:.3f} ({low:.3f} to {high:.3f})" for low, mid, high in ratios]
            rows.append([name, policy, f"{steps[1]:.2f}", *cells])
    print(machine() + "\n")
    header = ["kernel", "policy", "ms per step", "time / plain", "processors' time / plain"]
    print(markdown(header, rows))


if __name__ == "__main__":
    main()
