"""Conversion of demonstrations: MB of arrays a second each way, and what bounds it.

    python benchmarks/convert.py [--dataset images.hdf5] [--demos 300] [--repeats 5]

Two files: one of vectors alone, one of two 84 x 84 cameras as well (made up, or given with
``--dataset``: how fast films are coded depends on what they show). Each is converted to every
format and back, in turns with copying the file and, of the images, with coding and decoding the
same films by one thread that does nothing else. All that is written is synced to the disk.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from offrl.data.formats.convert import convert, make_plan
from offrl.data.formats.files import open_episodes
from offrl.data.formats.film import OpenFilm, encode_film
from offrl.data.formats.hdf5 import DemoFile
from offrl.data.writer import DemoWriter
from offrl.outputs import put

FPS = 20
ENV_ARGS = {"env_name": "none", "type": 2, "env_kwargs": {"control_freq": FPS}}
CAMERAS = ("obs/agentview_image", "obs/robot0_eye_in_hand_image")
OBJECT = "obs/object"

Works = dict[str, Callable[[], object]]


def write_source(path: Path, num_demos: int, num_steps: int, width: int, size: int = 0) -> Path:
    """Random vectors; images of ``size`` pixels, if any, in which a square moves over a picture."""
    rng = np.random.default_rng(0)
    picture = np.kron(rng.integers(0, 220, (12, 12, 3)), np.ones((size // 12, size // 12, 1)))
    with DemoWriter(path, ENV_ARGS, durable=False) as writer:
        for _ in range(num_demos):
            rows = {"actions": rng.random((num_steps, 7)), OBJECT: rng.random((num_steps, width))}
            rows |= {"rewards": np.zeros(num_steps), "dones": np.eye(num_steps)[-1]}
            for key in CAMERAS if size else ():
                rows[key] = np.repeat(picture[None].astype(np.uint8), num_steps, axis=0)
                places = np.cumsum(rng.integers(-2, 3, (num_steps, 2)), axis=0) % (size - 16)
                for frame, (x, y) in zip(rows[key], places, strict=True):
                    frame[x : x + 16, y : y + 16] = [240, 150, 30]
            writer.write(rows)
    return path


def num_megabytes(path: Path) -> float:
    with DemoFile(path) as file:
        demos = [file.trajectory(demo) for demo in file.demos()]
    return sum(x.nbytes for demo in demos for x in demo.values() if hasattr(x, "nbytes")) / 1e6


def converted(source: Path, output: Path, to: str, workers: int | None = None) -> None:
    remove(output)
    with open_episodes(source) as episodes:
        obs = ["object"] if to == "d4rl" else None
        for _ in convert(episodes, str(output), to, make_plan(episodes, to, obs, fps=FPS), workers):
            pass


def copied(source: Path, output: Path) -> None:
    remove(output)
    beside = output.with_suffix(".partial")
    shutil.copyfile(source, beside)
    put(beside, output)


def remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def ways(source: Path, folder: Path, formats: dict[str, tuple[int | None, ...]]) -> Works:
    """Each format, with each number of workers, there and back."""
    runs: Works = {"copy of the file": partial(copied, source, folder / "copy")}
    for to, numbers in formats.items():
        there = folder / f"{to}-v0"
        converted(source, there, to)
        for number in numbers:
            words = f", {number} workers" if number and number > 1 else ""
            words = ", 1 worker" if number == 1 else words
            out, back = folder / f"{to}{number}-v0", folder / f"{to}{number}.hdf5"
            runs[f"to {to}{words}"] = partial(converted, source, out, to, number)
            if to != "robomimic":
                runs[f"from {to}{words}"] = partial(converted, there, back, "robomimic", number)
    return runs


def films(source: Path, folder: Path) -> Works:
    """Coding and decoding alone, by one thread."""
    with DemoFile(source) as file:
        episodes = [file.trajectory(demo, CAMERAS) for demo in file.demos()]
    images = [episode[key] for episode in episodes for key in CAMERAS]
    for i, frames in enumerate(images):
        (folder / f"{i}.mp4").write_bytes(encode_film(frames, FPS))
    return {
        "coding the films alone": lambda: [encode_film(frames, FPS) for frames in images],
        "decoding the films alone": lambda: [
            OpenFilm(folder / f"{i}.mp4").frames(0, 0, len(x), FPS) for i, x in enumerate(images)
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dataset", type=Path, help="with images of the two cameras of Lift")
    parser.add_argument("--demos", type=int, default=300, help="of vectors; of images 2 for 15")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    from measure import machine

    print(f"{machine()}\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        vectors = write_source(folder / "vectors.hdf5", args.demos, 300, 150)
        once = (None,)
        formats = {"robomimic": once, "d4rl": once, "minari": once, "lerobot": once}
        report("vectors", vectors, ways(vectors, folder, formats), args.repeats)
        num_filmed = max(1, args.demos * 2 // 15)
        images = args.dataset or write_source(folder / "images.hdf5", num_filmed, 100, 10, 84)
        formats = {"robomimic": once, "minari": once, "lerobot": (1, 2)}
        runs = ways(images, folder, formats) | films(images, folder)
        report("images", images, runs, args.repeats)


def report(what: str, source: Path, works: Works, repeats: int) -> None:
    # Not above: it imports torch, and so would every worker, which imports this file.
    from measure import alternate, markdown, ratio, timed

    runs = {name: timed(work) for name, work in works.items()}
    seconds, size = alternate(runs, repeats), num_megabytes(source)
    rows = [
        [
            name,
            f"{size / median(times):.0f}",
            f"{ratio(times, seconds['copy of the file']):.1f}",
        ]
        for name, times in seconds.items()
    ]
    print(markdown([f"{what}, {size:.0f} MB of arrays", "MB/s", "time / copy"], rows))
    for way in ("to", "from"):
        one, two = (f"{way} lerobot, {n}" for n in ("1 worker", "2 workers"))
        if two in seconds:
            print(f"{one} / {two}: {ratio(seconds[one], seconds[two]):.2f}")


if __name__ == "__main__":
    main()
