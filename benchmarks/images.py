"""Image data: memory, time to the first batch, random windows and training steps, with robomimic.

    python benchmarks/images.py [--demos 100] [--steps 40] [--repeats 3] [--updates 50]
    python benchmarks/images.py --parts windows steps

Synthetic files with two 84 x 84 cameras. The part ``memory`` has windows of ten steps, everything
cached; each measurement of memory and of the time to the first batch is a process of its own, in
turns; peak memory is above that of a process that has only imported the same. The time of a batch
of 16 windows is set against indexing the same rows of a bare tensor.

The part ``windows`` draws random windows of one step and of ten, from files and from memory, each
contestant in a process of its own, in turns; ``cold`` does so with a page cache that was emptied.

The part ``steps`` makes steps of ``configs/bc_image.json``, by where the data is. On a GPU it also
compares data that lies there, batches that are sent ahead, and batches that each step moves itself.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from image_windows import (
    BATCH_SIZE,
    CAMERAS,
    KINDS,
    VECTOR,
    cached_table,
    mapped_table,
    offrl_batches,
    robomimic_batches,
    windows_table,
    write_file,
)
from measure import alternate, in_a_process, machine, markdown, ratios, spread, timed
from peers import ROBOMIMIC

from offrl import config_factory
from offrl.algos import Algo, algo_factory
from offrl.config.files import find_file, read_config_file
from offrl.data.loader import BatchLoader
from offrl.data.sequence import SequenceDataset
from offrl.kernels.allocator import FreedMemory
from offrl.specs import processed_shapes

SEQ_LENGTH = 10
PARTS = ("memory", "windows", "cold", "steps")


with_offrl = partial(offrl_batches, seq_length=SEQ_LENGTH, get_pad_mask=True)
with_robomimic = partial(robomimic_batches, seq_length=SEQ_LENGTH, hdf5_cache_mode="all")


def nothing(path: str) -> Any:
    return iter([None])


def peak_and_first_batch(load: Callable[[str], Any], path: str) -> tuple[float, float]:
    """Peak memory in bytes, and seconds from the constructor to the first batch."""
    if getattr(load, "func", load) is robomimic_batches:
        ROBOMIMIC.make_importable()
    started = time.perf_counter()
    next(load(path))
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024), seconds


def batch_times(path: str, repeats: int) -> dict[str, list[float]]:
    """A hundred batches, and as many gathers from bare tensors."""
    batches = with_offrl(path)
    dataset = SequenceDataset(path, CAMERAS, load_next_obs=False)
    everything = dataset.get_batch(torch.arange(len(dataset)))["obs"]
    tensors = [everything[camera][:, 0] for camera in CAMERAS]
    offsets = torch.arange(SEQ_LENGTH)

    def ours() -> None:
        for _ in range(100):
            next(batches)

    def bare() -> None:
        for _ in range(100):
            start = torch.randint(len(tensors[0]) - SEQ_LENGTH, (BATCH_SIZE, 1))
            for tensor in tensors:
                tensor[start + offsets]

    return alternate({"offrl": timed(ours), "bare": timed(bare)}, repeats)


def policy_of(dataset: SequenceDataset, device: torch.device) -> Algo:
    """Make the policy of ``bc_image.json``, which sees one vector only."""
    content = read_config_file(find_file("configs/bc_image.json"))
    content["observation"]["modalities"]["obs"]["low_dim"] = [VECTOR]
    config = config_factory("bc", content)
    shapes = processed_shapes(config.observation, dataset.obs_shapes)
    algo = algo_factory("bc", config, shapes, dataset.ac_dim, device)
    algo.set_train()
    return algo


def step_times(folder: Path, size: int, repeats: int, updates: int) -> dict[str, list[Any]]:
    """The seconds of so many steps, and those of waiting for their batches on the device."""
    FreedMemory()  # as the program does
    plain, jpeg = (str(folder / f"{kind}.hdf5") for kind in ("plain", "jpeg"))
    quarter = {"hdf5_cache_mode": "auto", "cache_gb": size / 4e9}

    def loader(path: str, num_workers: int = 0, **options: Any) -> BatchLoader:
        keys = [*CAMERAS, VECTOR]
        dataset = SequenceDataset(path, keys, load_next_obs=False, **options)
        return BatchLoader(dataset, BATCH_SIZE, seed=0, num_workers=num_workers)

    loaders = {
        "in main memory": loader(plain),
        "cache_dir": loader(plain, cache_dir=str(folder / "cache")),
        "auto, a cache of a quarter, one reader": loader(plain, 1, **quarter),
        "the same, two readers": loader(plain, 2, **quarter),
        "JPEG, auto, a cache of a quarter, two readers": loader(jpeg, 2, **quarter),
    }
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        loaders |= {"on the GPU": loader(plain), "sent ahead": loader(plain).to(device)}
        loaders["on the GPU"].dataset.to(device)
    waits: dict[str, list[float]] = {name: [] for name in loaders}

    def steps(name: str) -> Callable[[], None]:
        batches, algo = iter(loaders[name]), policy_of(loaders[name].dataset, device)

        def train() -> None:
            waited = 0.0
            for _ in range(updates):
                asked = time.perf_counter()
                batch = algo.process_batch_for_training(next(batches))
                waited += time.perf_counter() - asked
                algo.train_on_batch(batch, epoch=1)
            waits[name].append(waited)

        return train

    seconds = alternate({name: timed(steps(name)) for name in loaders}, repeats)
    return {name: [*zip(x, waits[name][1:], strict=True)] for name, x in seconds.items()}


def report_steps(measured: dict[str, list[tuple[float, float]]], updates: int) -> str:
    first = [seconds for seconds, _ in measured["in main memory"]]
    rows = [
        [
            name,
            spread([1000 * seconds / updates for seconds, _ in runs], 1),
            spread(ratios([seconds for seconds, _ in runs], first)),
            spread([1000 * waited / updates for _, waited in runs]),
        ]
        for name, runs in measured.items()
    ]
    return markdown(["data", "step, ms", "/ in main memory", "waiting, ms of a step"], rows)


def memory_table(folder: Path, raw: int, loaders: dict[str, Any], repeats: int) -> str:
    path = str(folder / "plain.hdf5")
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in loaders}
    for _ in range(repeats):
        for name, load in loaders.items():
            measured[name].append(in_a_process(peak_and_first_batch, load, path))
    gathers = batch_times(path, 3 * repeats)
    bare = median(peak for peak, _ in measured.pop("nothing"))
    first = {name: [seconds for _, seconds in runs] for name, runs in measured.items()}
    rows = [
        [
            name,
            spread([(peak - bare) / raw for peak, _ in runs]),
            spread(first[name]),
            spread(ratios(first[name], first["offrl"]), 1),
        ]
        for name, runs in measured.items()
    ]
    header = ["", "peak memory / raw bytes", "first batch, s", "time / offrl's"]
    return (
        f"{markdown(header, rows)}\nA batch of {BATCH_SIZE} x {SEQ_LENGTH} x 2 images: "
        f"{spread([10 * seconds for seconds in gathers['offrl']])} ms,\n"
        f"{spread(ratios(gathers['offrl'], gathers['bare']))} times the bare gather.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--demos", type=int, default=100)
    parser.add_argument("--steps", type=int, default=40, help="of each demonstration")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--updates", type=int, default=50, help="training steps per turn")
    parser.add_argument("--batches", type=int, default=60, help="of windows per turn")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    args = parser.parse_args()
    loaders = {"nothing": nothing, "offrl": with_offrl}
    try:
        ROBOMIMIC.install()
        loaders[ROBOMIMIC.requirement] = with_robomimic
    except RuntimeError as error:
        print(f"without {ROBOMIMIC.requirement}: {error}", file=sys.stderr)
    has_peer = ROBOMIMIC.requirement in loaders
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for kind in KINDS:
            raw = write_file(folder / f"{kind}.hdf5", kind, args.demos, args.steps)
        print(f"{machine()}; {raw / 1e6:.0f} MB of images\n")
        if "memory" in args.parts:
            print(memory_table(folder, raw, loaders, args.repeats))
        for part, is_cold in (("windows", False), ("cold", True)):
            if part in args.parts:
                print(windows_table(folder, args.batches, args.repeats, has_peer, is_cold))
        if "windows" in args.parts:
            print(cached_table(folder, raw, args.batches, args.repeats))
            print(mapped_table(folder, args.batches, args.repeats))
        if "steps" in args.parts:
            measured = step_times(folder, raw, args.repeats, args.updates)
            print(report_steps(measured, args.updates))
            if not torch.cuda.is_available():
                print("There is no GPU here: no data lies on it, and no batch is sent ahead.")


if __name__ == "__main__":
    main()
