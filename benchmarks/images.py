"""Image data: memory, time to the first batch and time per batch, with robomimic 0.3.0.

    python benchmarks/images.py [--demos 100] [--steps 40] [--repeats 3] [--updates 50]

A synthetic file with two 84 x 84 cameras, windows of ten steps, everything cached. Each measurement
of memory and of the time to the first batch is a process of its own, in turns; peak memory is
above that of a process that has only imported the same. The time of a batch of 16 windows is set
against indexing the same rows of a bare tensor.

The last table is of training steps, by the ways in which batches come to the GPU: data that lies
there, batches that are sent ahead of their turn, and batches that each step moves itself. Without a
GPU there is one way.
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

from offrl import config_factory
from offrl.algos import Algo, algo_factory
from offrl.data.loader import BatchLoader
from offrl.data.sequence import SequenceDataset
from offrl.specs import processed_shapes

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


def loader_of(path: str) -> BatchLoader:
    dataset = SequenceDataset(
        path, [*CAMERAS, VECTOR], seq_length=SEQ_LENGTH, load_next_obs=False, get_pad_mask=True
    )
    return BatchLoader(dataset, BATCH_SIZE, seed=0)


def with_offrl(path: str) -> Any:
    return iter(loader_of(path))


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


def policy_of(loader: BatchLoader, device: torch.device) -> Algo:
    """BC with small networks, which crops the images."""
    crop = {"crop_height": 76, "crop_width": 76}
    core = {"backbone_class": "ShallowConv", "feature_dimension": 64}
    rgb = {"core_kwargs": core, "obs_randomizer_class": "CropRandomizer"}
    observation = {
        "modalities": {"obs": {"rgb": CAMERAS, "low_dim": [VECTOR]}},
        "encoder": {"rgb": rgb | {"obs_randomizer_kwargs": crop}},
    }
    train = {"seq_length": SEQ_LENGTH, "hdf5_normalize_obs": False}
    config = config_factory("bc", {"observation": observation, "train": train})
    shapes = processed_shapes(config.observation, loader.dataset.obs_shapes)
    algo = algo_factory("bc", config, shapes, loader.dataset.ac_dim, device)
    algo.set_train()
    return algo


def step_times(path: str, repeats: int, updates: int) -> dict[str, list[tuple[float, float]]]:
    """The seconds of so many steps, and those of waiting for their batches on the device."""
    loaders = {"in main memory": loader_of(path)}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda":
        loaders |= {"on the GPU": loader_of(path), "sent ahead": loader_of(path).to(device)}
        loaders["on the GPU"].dataset.to(device)
    waits: dict[str, list[float]] = {name: [] for name in loaders}

    def steps(name: str) -> Callable[[], None]:
        batches, algo = iter(loaders[name]), policy_of(loaders[name], device)

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
            spread([updates / seconds for seconds, _ in runs]),
            spread(ratios(first, [seconds for seconds, _ in runs])),
            spread([1000 * waited / updates for _, waited in runs]),
        ]
        for name, runs in measured.items()
    ]
    return markdown(["batches", "steps/s", "/ in main memory", "waiting, ms per step"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--demos", type=int, default=100)
    parser.add_argument("--steps", type=int, default=40, help="of each demonstration")
    parser.add_argument("--repeats", type=int, default=3)
    updates = 50 if torch.cuda.is_available() else 2
    parser.add_argument("--updates", type=int, default=updates, help="training steps per turn")
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
        trained = step_times(path, args.repeats, args.updates)

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
    print(f"{spread(ratios(gathers['offrl'], gathers['bare']))} times the bare gather.\n")
    print(report_steps(trained, args.updates))
    if not torch.cuda.is_available():
        print("There is no GPU here: no data lies on it, and no batch is sent ahead.")


if __name__ == "__main__":
    main()
