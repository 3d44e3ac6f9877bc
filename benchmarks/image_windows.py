"""Random windows of images, as trainings draw them: parts of ``images.py``."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from itertools import islice
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from measure import alternate, markdown, ratios, spread
from peers import ROBOMIMIC

from offrl.data.loader import BatchLoader
from offrl.data.sequence import SequenceDataset
from offrl.data.storage import create
from offrl.kernels.allocator import FreedMemory

CAMERAS = ["agentview_image", "robot0_eye_in_hand_image"]
VECTOR = "robot0_eef_pos"
SIZE, BATCH_SIZE = 84, 16
KINDS = ("plain", "chunked", "jpeg")
Rate = tuple[float, float]  # processor and wall microseconds of an image


def smooth_images(rng: np.random.Generator, steps: int) -> np.ndarray:
    """Images ``[steps, 84, 84, 3]`` that a camera could make: soft waves with a little noise."""
    waves = np.linspace(0, 9, SIZE)[:, None, None] + np.linspace(0, 7, SIZE)[:, None]
    phases = rng.uniform(0, 6, (steps, 1, 1, 3))
    noise = rng.integers(-2, 3, (steps, SIZE, SIZE, 3))
    return (127 + 110 * np.sin(waves[None] + phases) + noise).astype(np.uint8)


def write_file(path: Path, kind: str, demos: int, steps: int) -> int:
    """Write demonstrations, their images as plain arrays, in chunks with checksums, or as JPEGs.
    Returns the bytes of the images in memory."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "none", "type": 1, "env_kwargs": {}})
        for i in range(demos):
            demo = data.create_group(f"demo_{i}")
            demo.attrs["num_samples"] = steps
            for camera in CAMERAS:
                images = smooth_images(rng, steps)
                if kind == "plain":
                    demo[f"obs/{camera}"] = images
                else:
                    create(demo, f"obs/{camera}", images, "jpeg" if kind == "jpeg" else None)
            demo[f"obs/{VECTOR}"] = rng.random((steps, 3), "f4")
            demo["actions"] = rng.random((steps, 7), "f4")
            demo["rewards"] = demo["dones"] = np.zeros(steps, "f4")
        data.attrs["total"] = demos * steps
    return demos * steps * len(CAMERAS) * SIZE * SIZE * 3


def offrl_batches(path: str, seq_length: int, workers: int = 0, **options: Any) -> Iterator[Any]:
    dataset = SequenceDataset(
        path, [*CAMERAS, VECTOR], seq_length=seq_length, load_next_obs=False, **options
    )
    return iter(BatchLoader(dataset, BATCH_SIZE, seed=0, num_workers=workers))


def robomimic_batches(path: str, seq_length: int, **options: Any) -> Iterator[Any]:
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        from robomimic.utils import obs_utils
        from robomimic.utils.dataset import SequenceDataset as Theirs

        obs_utils.initialize_obs_modality_mapping_from_dict({"rgb": CAMERAS, "low_dim": [VECTOR]})
        dataset = Theirs(
            hdf5_path=path,
            obs_keys=[*CAMERAS, VECTOR],
            dataset_keys=["actions", "rewards", "dones"],
            seq_length=seq_length,
            load_next_obs=False,
            **options,
        )

    def endless() -> Iterator[Any]:
        while True:
            yield from torch.utils.data.DataLoader(dataset, BATCH_SIZE, shuffle=True)

    return endless()


def forget(path: str) -> None:
    """Drop a file from the system's page cache."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Contestant:
    """A loader in a process of its own, which draws batches when it is asked to."""

    def __init__(
        self, make: Callable[..., Iterator[Any]], path: str, seq_length: int, **options: Any
    ):
        context = multiprocessing.get_context("spawn")
        self.path, self._images = path, len(CAMERAS) * BATCH_SIZE * seq_length
        self._ours, theirs = context.Pipe()
        arguments = (make, path, seq_length, options, theirs)
        self._process = context.Process(target=_draw, args=arguments)
        self._process.start()

    def rate(self, batches: int) -> Rate:
        self._ours.send(batches)
        processor, wall = self._ours.recv()
        num = batches * self._images / 1e6
        return processor / num, wall / num

    def close(self) -> None:
        self._ours.send(0)
        self._process.join()


def _draw(
    make: Any, path: str, seq_length: int, options: Mapping[str, Any], connection: Any
) -> None:
    torch.set_num_threads(1)
    FreedMemory()  # as the program does; both contestants gain by it
    if make is robomimic_batches:
        ROBOMIMIC.make_importable()
    drawn = make(path, seq_length, **options)
    next(drawn)
    while num := connection.recv():
        started, before = time.perf_counter(), _processor_seconds()
        for _ in islice(drawn, num):
            pass
        connection.send((_processor_seconds() - before, time.perf_counter() - started))


def _processor_seconds() -> float:
    """Count the seconds of this process and of its children, which have not ended."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    seconds = usage.ru_utime + usage.ru_stime
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        seconds += sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return seconds


def race(
    contestants: Mapping[str, Contestant], batches: int, repeats: int, cold: bool = False
) -> dict[str, list[Rate]]:
    """Let contestants draw batches in turns."""

    def turn(contestant: Contestant) -> Callable[[], Any]:
        def run() -> Rate:
            if cold:
                forget(contestant.path)
            return contestant.rate(batches)

        return run

    try:
        return alternate({name: turn(c) for name, c in contestants.items()}, repeats)  # type: ignore
    finally:
        for contestant in contestants.values():
            contestant.close()


def windows_table(folder: Path, batches: int, repeats: int, peer: bool, cold: bool) -> str:
    """Compare random windows from the file, and from memory, with robomimic's."""
    rows = []
    for kind in ("plain", "chunked"):
        for seq_length in (1, 10):
            for place, mode in (("file", "low_dim"), ("memory", "all")):
                if cold and place == "memory":
                    continue
                path, options = str(folder / f"{kind}.hdf5"), {"hdf5_cache_mode": mode}
                own = {"offrl": Contestant(offrl_batches, path, seq_length, **options)}
                if peer:
                    own["robomimic"] = Contestant(robomimic_batches, path, seq_length, **options)
                found = race(own, batches, repeats, cold)
                times = {name: [wall for _, wall in rates] for name, rates in found.items()}
                rows.append(
                    [
                        f"{kind}, {seq_length} steps, from {'a cold ' * cold}{place}",
                        *(spread(times[name], 1) for name in times),
                        *([spread(ratios(times["robomimic"], times["offrl"]), 1)] * peer),
                        spread([processor for processor, _ in found["offrl"]], 1),
                    ]
                )
    header = ["windows", "offrl, us an image", *["robomimic", "robomimic / offrl"] * peer]
    return markdown([*header, "offrl, processor us"], rows)


def cached_table(folder: Path, size: int, batches: int, repeats: int) -> str:
    """Compare JPEGs that are cached as such, with two readers, with a plain file read likewise."""
    options = {"workers": 2, "hdf5_cache_mode": "auto", "cache_gb": 0.5 * size / 1e9}
    ways = {kind: (folder / f"{kind}.hdf5", options) for kind in ("plain", "jpeg")}
    title = "two readers, a cache of half the images"
    return _pair_table(
        [title, "plain, us an image", "JPEG", "JPEG / plain"], ways, batches, repeats
    )


def mapped_table(folder: Path, batches: int, repeats: int) -> str:
    """Compare windows from mapped rows (``cache_dir``) with those from memory."""
    path, options = folder / "plain.hdf5", {"cache_dir": str(folder / "cache")}
    ways = {"cache_dir": (path, options), "memory": (path, {})}
    header = ["", "cache_dir, us an image", "memory", "rate / that from memory"]
    return _pair_table(header, ways, batches, repeats)


def _pair_table(
    header: list[str], ways: Mapping[str, tuple[Path, Any]], batches: int, repeats: int
) -> str:
    """Compare two ways to draw windows of one step and of ten, each a file and its options."""
    rows = []
    for seq_length in (1, 10):
        contestants = {
            name: Contestant(offrl_batches, str(path), seq_length, **options)
            for name, (path, options) in ways.items()
        }
        found = race(contestants, batches, repeats)
        one, two = ([wall for _, wall in rates] for rates in found.values())
        shares = spread(ratios(two, one))
        rows.append([f"{seq_length} steps", spread(one, 1), spread(two, 1), shares])
    return markdown(header, rows)
