"""Editing files of demonstrations: what merging costs beside ``cp``, and what storing images as
frames costs and saves.

    python benchmarks/edit.py [--demos 100] [--steps 100] [--repeats 5]

Files of two 84 x 84 cameras, whose pictures are smooth with a little noise, and files of vectors
alone. ``cp`` ends when its copy is on the disk (fsync), as an edit does; all files are in the page
cache. The limit of merging large arrays is copying; that of small ones is HDF5's work for each
array; that of frames the encoder.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import h5py
import numpy as np
from measure import alternate, machine, markdown, ratio, timed

from offrl.data.formats.hdf5 import DemoFile
from offrl.data.writer import DemoWriter
from offrl.edits.edit import Edit, open_file
from offrl.edits.rearrange import merge, repack

CAMERAS = ("agentview_image", "robot0_eye_in_hand_image")
VECTORS = {"object": 10, "robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_joint_pos": 7}
WINDOW = 10  # steps that are read at once


def pictures(rng: np.random.Generator, steps: int) -> np.ndarray:
    """``[steps, 84, 84, 3]``: waves of one colour each, which move, and noise of a bit or two."""
    phases = rng.uniform(0, 6, (1, 1, 1, 3)) + np.arange(steps)[:, None, None, None] / 20
    waves = np.linspace(0, 9, 84)[:, None, None] + np.linspace(0, 7, 84)[:, None]
    noise = rng.integers(-2, 3, (steps, 84, 84, 3))
    return (127 + 120 * np.sin(waves + phases) + noise).astype(np.uint8)


def write_file(path: Path, seed: int, demos: int, steps: int, cameras: tuple[str, ...]) -> Path:
    rng = np.random.default_rng(seed)
    with DemoWriter(path, durable=False) as writer:
        for _ in range(demos):
            arrays = {f"obs/{key}": rng.normal(size=(steps, n)) for key, n in VECTORS.items()}
            arrays |= {f"obs/{key}": pictures(rng, steps) for key in cameras}
            arrays |= {"actions": rng.uniform(-1, 1, (steps, 7)), "rewards": np.zeros(steps)}
            writer.write(arrays | {"dones": np.eye(steps)[-1]})
    return path


def copied(paths: list[Path], folder: Path) -> None:
    """``cp``, until all is on the disk."""
    for path in paths:
        copy = folder / f"copy_{path.name}"
        shutil.copyfile(path, copy)
        with open(copy, "rb") as file:
            os.fsync(file.fileno())
        copy.unlink()


def edited(paths: list[Path], folder: Path, make: Callable[[list[DemoFile]], Edit]) -> None:
    out = folder / "out.hdf5"
    out.unlink(missing_ok=True)
    with ExitStack() as stack:
        files = [stack.enter_context(open_file(path)) for path in paths]
        make(files).write(out, {"command": "benchmarks/edit.py"})


def read(path: Path, whole: bool) -> None:
    """All images of one camera: episode by episode, or a few windows of each."""
    window = np.empty((WINDOW, 84, 84, 3), np.uint8)
    with open_file(path) as file:
        for demo in file.demos():
            if whole:
                file.steps(demo, f"obs/{CAMERAS[0]}")
            else:
                for start in range(0, 50, WINDOW):
                    file.read_into(demo, f"obs/{CAMERAS[0]}", window, start)


def merging(title: str, paths: list[Path], folder: Path, repeats: int) -> list[str]:
    size = sum(path.stat().st_size for path in paths) / 1e6
    seconds = alternate(
        {
            "cp": timed(lambda: copied(paths, folder)),
            "merge": timed(lambda: edited(paths, folder, lambda files: merge(*files))),
        },
        repeats,
    )
    with h5py.File(paths[0]) as file:
        arrays = len(paths) * sum(len(demo["obs"]) + 3 for demo in file["data"].values())
    rates = [f"{size / median(seconds[name]):.0f}" for name in ("cp", "merge")]
    per_array = f"{median(seconds['merge']) / arrays * 1e3:.2f}"
    times = f"{ratio(seconds['merge'], seconds['cp']):.1f}"
    return [title, f"{size:.0f}", str(arrays), *rates, times, per_array]


def packing(kind: str | None, path: Path, folder: Path, repeats: int) -> list[str]:
    packed = folder / f"{kind}.hdf5"
    seconds = alternate(
        {
            "repack": timed(lambda: edited([path], folder, lambda files: repack(files[0], kind))),
        },
        repeats,
    )["repack"]
    (folder / "out.hdf5").rename(packed)
    reads = alternate(
        {
            "episodes": timed(lambda: read(packed, whole=True)),
            "windows": timed(lambda: read(packed, whole=False)),
        },
        repeats,
    )
    with open_file(packed) as file:
        lengths = file.lengths(file.demos())
    pixels, pictures = path.stat().st_size / 1e6, int(lengths.sum())
    return [
        kind or "none",
        f"{packed.stat().st_size / path.stat().st_size:.2f}",
        f"{pixels / median(seconds):.0f}",
        f"{pictures / median(reads['episodes']):.0f}",
        f"{50 * len(lengths) / median(reads['windows']):.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demos", type=int, default=100)
    parser.add_argument("--steps", type=int, default=100, help="at least 50")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images, vectors = (
            [
                write_file(folder / f"{title}_{seed}.hdf5", seed, args.demos, args.steps, cameras)
                for seed in (0, 1)
            ]
            for title, cameras in (("images", CAMERAS), ("vectors", ()))
        )
        print(machine(), end="\n\n")
        header = ["merge", "MB", "arrays", "cp, MB/s", "merge, MB/s", "times cp", "ms an array"]
        rows = [merging("images", images, folder, args.repeats)]
        rows += [merging("vectors", vectors, folder, args.repeats)]
        print(markdown(header, rows))
        header = ["images as", "size", "repack, MB/s", "read, images/s", "in windows, images/s"]
        kinds = (None, "png", "jpeg", "gzip")
        print(markdown(header, [packing(kind, images[0], folder, args.repeats) for kind in kinds]))


if __name__ == "__main__":
    main()
