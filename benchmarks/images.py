"""Image data: memory, time to the first batch and time per batch, with robomimic 0.3.0.

    python benchmarks/images.py [--demos 100] [--steps 40] [--repeats 3]

A synthetic file with two 84 x 84 cameras, windows of ten steps, everything cached. Each measurement
of memory and of the time to the first batch is a process of its own, in turns; peak memory is
above that of a process that has only imported the same. The time of a batch of 16 windows is set
against indexing the same rows of a bare tensor.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median
from typing import Any

import h5py
import numpy as np
import torch
from measure import alternate, machine, markdown, ratios, spread, timed
from peers import ROBOMIMIC

from offrl.data.loader import BatchLoader
from offrl.data.sequence import SequenceDataset

CAMERAS = ["agentview_image", "robot0_eye_in_hand_image"]
VECTOR = "robot0_eef_pos"
SEQ_LENGTH, BATCH_SIZE = 10, 16


def write_file(path: Path, demos: int, steps: int) -> int:
    """Random demonstrations; the bytes of their arrays."""
    rng = np.random.default_rng(0)
    total = 0
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "none", "type": 1, "env_kwargs": {}})
        for i in range(demos):
            demo = data.create_group(f"demo_{i}")
            demo.attrs["num_samples"] = steps
            arrays = {f"obs/{c}": rng.integers(0, 255, (steps, 84, 84, 3), "u1") for c in CAMERAS}
            arrays |= {f"obs/{VECTOR}": rng.random((steps, 3), "f4")}
            arrays |= {"actions": rng.random((steps, 7), "f4"), "rewards": np.zeros(steps, "f4")}
            arrays |= {"dones": np.zeros(steps, "f4")}
            for key, array in arrays.items():
                demo[key] = array
                total += array.nbytes
        data.attrs["total"] = demos * steps
    return total


def with_offrl(path: str) -> Any:
    dataset = SequenceDataset(
        path, [*CAMERAS, VECTOR], seq_length=SEQ_LENGTH, load_next_obs=False, get_pad_mask=True
    )
    return iter(BatchLoader(dataset, BATCH_SIZE, seed=0))


def with_robomimic(path: str) -> Any:
    ROBOMIMIC.make_importable()
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        from robomimic.utils import obs_utils
        from robomimic.utils.dataset import SequenceDataset as Theirs

        obs_utils.initialize_obs_modality_mapping_from_dict({"rgb": CAMERAS, "low_dim": [VECTOR]})
        dataset = Theirs(
            hdf5_path=path,
            obs_keys=[*CAMERAS, VECTOR],
            dataset_keys=["actions", "rewards", "dones"],
            seq_length=SEQ_LENGTH,
            hdf5_cache_mode="all",
            load_next_obs=False,
        )
    return iter(torch.utils.data.DataLoader(dataset, BATCH_SIZE, shuffle=True))


def nothing(path: str) -> Any:
    return iter([None])


def in_a_process(load: Callable[[str], Any], path: str) -> tuple[float, float]:
    """Peak memory in bytes, and seconds from the constructor to the first batch."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_measure, args=(load, path, theirs))
    process.start()
    result = ours.recv()
    process.join()
    return result


def _measure(load: Callable[[str], Any], path: str, connection: Any) -> None:
    if load is with_robomimic:
        ROBOMIMIC.make_importable()
    started = time.perf_counter()
    next(load(path))
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    connection.send((peak * (1 if sys.platform == "darwin" else 1024), seconds))


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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--demos", type=int, default=100)
    parser.add_argument("--steps", type=int, default=40, help="of each demonstration")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    loaders = {"nothing": nothing, "offrl": with_offrl}
    try:
        ROBOMIMIC.install()
        loaders[ROBOMIMIC.requirement] = with_robomimic
    except RuntimeError as error:
        print(f"without {ROBOMIMIC.requirement}: {error}", file=sys.stderr)

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "images.hdf5")
        raw = write_file(Path(path), args.demos, args.steps)
        measured: dict[str, list[tuple[float, float]]] = {name: [] for name in loaders}
        for _ in range(args.repeats):
            for name, load in loaders.items():
                measured[name].append(in_a_process(load, path))
        gathers = batch_times(path, 3 * args.repeats)

    bare = median(peak for peak, _ in measured.pop("nothing"))
    print(f"{machine()}; {raw / 1e6:.0f} MB of arrays, windows of {SEQ_LENGTH}\n")
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
    print(markdown(header, rows))
    milliseconds = spread([10 * seconds for seconds in gathers["offrl"]])
    print(f"A batch of {BATCH_SIZE} x {SEQ_LENGTH} x 2 images: {milliseconds} ms, ")
    print(f"{spread(ratios(gathers['offrl'], gathers['bare']))} times the bare gather.")


if __name__ == "__main__":
    main()
