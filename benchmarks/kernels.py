"""What a step gains from each kernel: trainings with it and without take turns.

    GOMP_SPINCOUNT=1000 python benchmarks/kernels.py [KERNEL ...] [--turns 60] [--seconds 0.3]

Both train the same networks in the same place, with batches of their own; only what cannot be
undone takes two processes. A step of online learning is a round, with networks of its own. A ratio
is of the time with the kernel to that without within a turn, by the clock and by the processors,
which says more where others use the machine as well: the median, and the middle half of the turns.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from statistics import quantiles
from typing import Any
from unittest import mock

import torch
from chunks import POLICIES as CHUNKS
from chunks import make_trainer
from measure import machine, markdown
from online import SETTINGS, offrl_training
from throughput import POLICIES, make_config
from torch import nn

from offrl.algos import Algo
from offrl.kernels import allocator
from offrl.training import Trainer

Train = Callable[[int], tuple[float, float]]  # steps to seconds, and those of all processors


@dataclass(frozen=True)
class Kernel:
    """The policies that gain most from it, and its plain form by the name of what it replaces.

    ours: what has it used, where it is not on this processor.
    """

    policies: tuple[str, ...]
    plain: Mapping[str, Any]
    ours: Mapping[str, Any] = field(default_factory=dict)
    can_be_undone: bool = True


def on_amd(name: str, plain: Any, *policies: str) -> Kernel:
    """On other processors as well, beside all that is used on AMD."""
    has_all = {"offrl.kernels.layers.MKL_IS_SLOW": True}
    return Kernel(policies, has_all | {name: plain}, has_all)


def clip_norm_by_pytorch(gradients: list[torch.Tensor], limit: float) -> torch.Tensor:
    norm = torch.nn.utils.get_total_norm(gradients)
    parameters = [torch.nn.Parameter(torch.empty_like(g)) for g in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
    return norm


KERNELS = {
    "linear": on_amd(
        "offrl.kernels.layers.onednn_pays", lambda x, weight: False, "mlp", "transformer_gmm"
    ),
    "ensemble": on_amd("offrl.kernels.layers.NARROW", 0, "cql", "iql", "sac_n"),
    "first_members": Kernel(
        ("sac_n", "iql"),
        {
            "offrl.models.critics.first_members": lambda num, *parameters: [
                p[:num] for p in parameters
            ]
        },
    ),
    "dropout": Kernel(
        ("transformer_gmm",), {"offrl.kernels.layers.Dropout.forward": nn.Dropout.forward}
    ),
    "conv": Kernel(
        ("unet", "small_unet"), {"offrl.kernels.layers.Conv1d.forward": nn.Conv1d.forward}
    ),
    "adam": Kernel(
        ("iql", "td3_bc", "vae"),
        {
            "offrl.kernels.optim.Adam.step": torch.optim.Adam.step,
            "offrl.kernels.optim.Adam.zero_grad": torch.optim.Adam.zero_grad,
        },
    ),
    "perceptron": on_amd("offrl.models.trunks.tanh_layers_pay", lambda x: False, "ppo"),
    "few_rows": Kernel(
        ("a2c", "ppo"), {"offrl.kernels.layers.SmallBatchLayers.pays": lambda rows, num: False}
    ),
    "end_to_end": Kernel(
        ("a2c", "ppo"),
        {"offrl.algos.shared.policy_gradient.PolicyGradient._optimized": Algo._optimized},
    ),
    "norm": Kernel(("ppo",), {"offrl.kernels.optim.clip_norm": clip_norm_by_pytorch}),
    "tiny_is_zero": Kernel(("dqn", "td3"), {"offrl.kernels.optim.tiny_is_zero": nullcontext}),
    "batches": Kernel(("vae", "td3_bc"), {"offrl.data.windows.GATHERED_BYTES": 0}),
    "memory": Kernel(
        ("mlp", "cql"), {"offrl.kernels.allocator.FreedMemory": mock.MagicMock}, can_be_undone=False
    ),
}


def trainings(policy: str, *forms: Mapping[str, Any]) -> list[Train]:
    """By each of the forms, of one network."""
    if policy in SETTINGS:
        return [online_training(policy, form) for form in forms]
    if policy in CHUNKS:
        trainer = make_trainer(CHUNKS[policy], 1)
    else:
        trainer = Trainer(make_config(1, POLICIES[policy], "datasets/lift/low_dim.hdf5"))
    memory = allocator.FreedMemory()

    def training(replaced: Mapping[str, Any]) -> Train:
        records = trainer()

        def train(steps: int) -> tuple[float, float]:
            trainer.config.experiment.epoch_every_n_steps = steps
            with ExitStack() as patches:
                for name, form in replaced.items():
                    patches.enter_context(mock.patch(name, form))
                wall, cpu = time.perf_counter(), time.process_time()
                next(record for record in records if record["type"] == "epoch")
                memory.limit()
                return time.perf_counter() - wall, time.process_time() - cpu

        return train

    return [training(form) for form in forms]


def online_training(case: str, replaced: Mapping[str, Any]) -> Train:
    """Of rounds, with networks of its own."""
    settings = SETTINGS[case]
    a_round = settings["collect_steps"] * settings.get("num_envs", 1)

    @contextmanager
    def patched() -> Iterator[None]:
        with ExitStack() as patches:
            for name, form in replaced.items():
                patches.enter_context(mock.patch(name, form))
            yield

    with patched():
        train_online = offrl_training(case)
        train_online(a_round + settings.get("random_steps", 0))

    def train(rounds: int) -> tuple[float, float]:
        with patched():
            wall, cpu = time.perf_counter(), time.process_time()
            train_online(rounds * a_round)
            return time.perf_counter() - wall, time.process_time() - cpu

    return train


def elsewhere(kernel: str, policy: str, is_plain: bool) -> Train:
    """In a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    context.Process(target=_serve, args=(theirs, kernel, policy, is_plain), daemon=True).start()

    def train(steps: int) -> tuple[float, float]:
        ours.send(steps)
        return ours.recv()

    return train


def _serve(connection: Connection, kernel: str, policy: str, is_plain: bool) -> None:
    with ExitStack() as patches:
        for name, form in KERNELS[kernel].plain.items() if is_plain else ():
            patches.enter_context(mock.patch(name, form))
        (train,) = trainings(policy, {})
    with suppress(EOFError):  # the turns are over
        while True:
            connection.send(train(connection.recv()))


def take_turns(kernel: str, policy: str, turns: int, seconds: float) -> list[list[float]]:
    """The milliseconds of a step with the kernel and both ratios, of each turn."""
    if KERNELS[kernel].can_be_undone:
        contestants = trainings(policy, KERNELS[kernel].ours, KERNELS[kernel].plain)
    else:
        contestants = [elsewhere(kernel, policy, is_plain) for is_plain in (False, True)]
    for train in contestants:  # to warm up
        train(3)
    steps = max(1, round(3 * seconds / contestants[0](3)[0]))
    results = []
    for turn in range(turns):
        order = contestants if turn % 2 else contestants[::-1]
        times = {train: train(steps) for train in order}
        ours, plain = (times[train] for train in contestants)
        results.append([1000 * ours[0] / steps, ours[0] / plain[0], ours[1] / plain[1]])
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
            columns = zip(*take_turns(name, policy, args.turns, args.seconds), strict=True)
            steps, *ratios = (quantiles(column) for column in columns)
            cells = [f"{mid:.3f} ({low:.3f} to {high:.3f})" for low, mid, high in ratios]
            rows.append([name, policy, f"{steps[1]:.2f}", *cells])
    print(f"{machine()}; {args.turns} turns\n")
    print(markdown(["kernel", "policy", "ms per step", "time / plain", "processors' time"], rows))


if __name__ == "__main__":
    main()
