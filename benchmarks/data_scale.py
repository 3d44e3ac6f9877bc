"""Data that grows: memory, the time to the first batch, and steps of training.

    python benchmarks/data_scale.py [--parts memory first_batch demos] [--quick]

Synthetic files. ``memory``: images of ten times ``train.cache_gb``, and two readers. The table says
what all processes have in memory together while 5,000 batches are drawn, above a process that draws
from two demonstrations. Pages of shared memory count once, and the system's page cache does not.
``first_batch``: a thousand demonstrations of images of growing length, with the page cache warm and
cold. ``demos``: ten to 100,000 demonstrations of vectors, the time to open them, and the processor
time of a step of BC.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median

import h5py
import numpy as np
import torch
from image_windows import BATCH_SIZE, CAMERAS, SIZE, VECTOR, forget
from measure import in_a_process, machine, markdown, spread

from offrl import config_factory
from offrl.algos import algo_factory
from offrl.data.loader import BatchLoader
from offrl.data.sequence import SequenceDataset

PARTS = ("memory", "first_batch", "demos")


def write_images(path: Path, demos: int, steps: int) -> int:
    """Write demonstrations of images. Returns the bytes of the images."""
    images = np.random.default_rng(0).integers(0, 256, (steps, SIZE, SIZE, 3), np.uint8)
    arrays = dict.fromkeys((f"obs/{camera}" for camera in CAMERAS), images)
    arrays |= {f"obs/{VECTOR}": np.zeros((steps, 3), "f4"), "actions": np.zeros((steps, 7), "f4")}
    write(path, demos, arrays | dict.fromkeys(("rewards", "dones"), np.zeros(steps, "f4")))
    return demos * len(CAMERAS) * images.nbytes


def write(path: Path, demos: int, arrays: dict[str, np.ndarray]) -> None:
    with h5py.File(path, "w", libver="latest") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "none", "type": 1, "env_kwargs": {}})
        for i in range(demos):
            demo = data.create_group(f"demo_{i}")
            demo.attrs["num_samples"] = len(arrays["actions"])
            for key, array in arrays.items():
                demo[key] = array


def image_loader(path: str, cache_gb: float | None, num_workers: int) -> BatchLoader:
    dataset = SequenceDataset(
        path,
        [*CAMERAS, VECTOR],
        seq_length=10,
        load_next_obs=False,
        hdf5_cache_mode="auto",
        cache_gb=cache_gb,
        num_readers=num_workers,
    )
    return BatchLoader(dataset, BATCH_SIZE, seed=0, num_workers=num_workers)


def bytes_of_processes() -> int:
    """Count what this process and its children have in memory: their proportional sets, without
    files that are mapped."""
    total = 0
    for process in (os.getpid(), *(child.pid for child in multiprocessing.active_children())):
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
        sizes = {name: int(rest.split()[0]) for name, _, rest in (x.partition(":") for x in lines)}
        total += 1024 * (sizes["Pss_Anon"] + sizes["Pss_Shmem"])
    return total


def memory_of(path: str, cache_gb: float, num_batches: int) -> list[int]:
    """Draw batches, and return the bytes in memory after each hundredth of them."""
    torch.set_num_threads(1)
    loader = image_loader(path, cache_gb, num_workers=2)
    batches, found = iter(loader), []
    for _ in range(100):
        for _ in islice(batches, num_batches // 100):
            pass
        found.append(bytes_of_processes())
    return found


def memory_table(folder: Path, cache_gb: float, num_batches: int) -> str:
    steps, path, small = 50, folder / "large.hdf5", folder / "small.hdf5"
    demos = round(10 * cache_gb * 1e9 / (steps * len(CAMERAS) * SIZE * SIZE * 3))
    size = write_images(path, demos, steps)
    write_images(small, 2, steps)
    bare = min(in_a_process(memory_of, str(small), cache_gb, 200))
    found = in_a_process(memory_of, str(path), cache_gb, num_batches)
    path.unlink()
    cache = cache_gb * 1e9
    shares = [(x - bare) / cache for x in found]
    row = [f"{size / 1e9:.2f} GB", f"{cache_gb:g} GB", f"{bare / 1e6:.0f} MB"]
    row += [f"{max(shares):.3f}", f"{median(shares[50:75]):.3f}", f"{median(shares[75:]):.3f}"]
    header = ["images", "cache", "bare", "peak above it / cache", "third quarter", "last quarter"]
    return markdown(header, [row])


def seconds_to_first_batch(path: str, is_cold: bool) -> float:
    if is_cold:
        forget(path)
    started = time.perf_counter()
    next(iter(image_loader(path, 0.05, num_workers=1)))
    return time.perf_counter() - started


def first_batch_table(folder: Path, demos: int, lengths: list[int], repeats: int) -> str:
    rows = []
    for steps in lengths:
        path = folder / "first.hdf5"
        size = write_images(path, demos, steps)
        times = {
            is_cold: [
                in_a_process(seconds_to_first_batch, str(path), is_cold) for _ in range(repeats)
            ]
            for is_cold in (False, True)
        }
        rows.append([str(demos), str(steps), f"{size / 1e9:.2f} GB", *map(spread, times.values())])
        path.unlink()
    return markdown(["demonstrations", "steps", "images", "warm, s", "cold, s"], rows)


def vector_times(path: str, num_steps: int) -> tuple[float, list[float]]:
    """Return the seconds of opening, and milliseconds of processor time of steps of BC."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    dataset = SequenceDataset(path, ["state"], load_next_obs=False)
    seconds = time.perf_counter() - started
    observation = {"modalities": {"obs": {"low_dim": ["state"]}}}
    config = config_factory("bc", {"observation": observation})
    algo = algo_factory("bc", config, dataset.obs_shapes, dataset.ac_dim, torch.device("cpu"))
    algo.set_train()
    batches = iter(BatchLoader(dataset, 100, seed=0))
    times = []
    for _ in range(5):
        before = time.process_time()
        for batch in islice(batches, num_steps):
            algo.train_on_batch(algo.process_batch_for_training(batch), epoch=1)
        times.append(1000 * (time.process_time() - before) / num_steps)
    return seconds, times[1:]


def demos_table(folder: Path, numbers: list[int], num_steps: int) -> str:
    rng, rows, first = np.random.default_rng(0), [], None
    arrays = {"obs/state": rng.random((20, 20), "f4"), "actions": rng.random((20, 7), "f4")}
    arrays |= dict.fromkeys(("rewards", "dones"), np.zeros(20, "f4"))
    for number in numbers:
        path = folder / f"{number}.hdf5"
        write(path, number, arrays)
        seconds, times = in_a_process(vector_times, str(path), num_steps)
        first = first or median(times)
        path.unlink()
        each = f"{1e6 * seconds / number:.0f}"
        shares = spread([x / first for x in times])
        rows.append([f"{number}", f"{seconds:.2f}", each, spread(times), shares])
    header = ["demonstrations", "opened in, s", "us each", "step, ms", "/ the first"]
    return markdown(header, rows)


def tables(folder: Path, parts: list[str], is_quick: bool) -> Iterator[str]:
    if "memory" in parts:
        yield memory_table(folder, *((0.004, 200) if is_quick else (0.4, 5000)))
    if "first_batch" in parts:
        lengths = [12] if is_quick else [12, 50, 100]
        yield first_batch_table(folder, *((5, lengths, 1) if is_quick else (1000, lengths, 3)))
    if "demos" in parts:
        numbers = [10, 20] if is_quick else [10, 100, 1000, 10_000, 100_000]
        yield demos_table(folder, numbers, 2 if is_quick else 200)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--quick", action="store_true", help="try all of it, with little data")
    args = parser.parse_args()
    print(f"{machine()}\n")
    with tempfile.TemporaryDirectory() as folder:
        for table in tables(Path(folder), args.parts, args.quick):
            print(table, flush=True)


if __name__ == "__main__":
    main()
