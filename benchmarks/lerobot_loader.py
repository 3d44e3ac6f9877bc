"""Samples per second out of a LeRobot folder, by offrl's loader and by LeRobot's own.

    python benchmarks/lerobot_loader.py --venv ~/lerobot-venv [--episodes 6] [--steps 150]
        [--size 240 320] [--batches 8] [--workers 2] [--repeats 5]

LeRobot has an environment of its own, which is made in ``--venv`` if it is not there (some
gigabytes). There it writes two folders with its own settings: with films, and with images in the
tables. Both loaders then give random windows of the same folder in batches of 32: a state and the
images of two cameras at one step, and a chunk of 16 actions. They take turns, each with as many
processes. offrl reads from the files, or, as ``hdf5_cache_mode=auto`` does where it fits, from
memory. LeRobot's images are floats, and offrl's are bytes until they are on the device.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from measure import alternate, machine, markdown, ratios, spread

PACKAGE = "lerobot==0.4.4"
KINDS = {"video": "films", "image": "images"}
CAMERAS = ("observation.images.front", "observation.images.wrist")
FPS, CHUNK, BATCH_SIZE = 30, 16, 32
AHEAD = 4  # batches that two processes have read while the other loader had its turn


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--episodes", type=int, default=6)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--size", type=int, nargs=2, default=(240, 320))
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)  # run by LeRobot's python
    args = parser.parse_args()
    if args.peer:
        return serve(args)
    python = args.venv / "bin/python"
    if not python.is_file():
        subprocess.run([sys.executable, "-m", "venv", args.venv], check=True)
        subprocess.run([python, "-m", "pip", "install", PACKAGE], check=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        command = [python, __file__, *sys.argv[1:], "--peer", folder]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, text=True, **pipes) as peer:
            answer(peer)  # the folders are written
            for kind, words in KINDS.items():
                path = Path(folder, kind)
                found = alternate(
                    {
                        "LeRobot": lambda kind=kind: ask(peer, kind),
                        "from files": rate(ours(path, "low_dim", args), args.batches),
                        "from memory": rate(ours(path, "all", args), args.batches),
                    },
                    args.repeats,
                )
                theirs = found["LeRobot"]
                for name, rates in list(found.items())[1:]:
                    row = [words, name, spread(rates, 0), spread(theirs, 0)]
                    rows.append([*row, spread(ratios(rates, theirs))])
            peer.stdin.close()
    print(markdown(["folder with", "offrl reads", "offrl", "LeRobot", "ratio"], rows))
    print(f"samples per second; {machine()}")


def rate(batches: Iterator[Any], num: int) -> Callable[[], float]:
    """A function that measures samples per second, behind those that were read ahead."""

    def run() -> float:
        list(islice(batches, AHEAD))
        started = time.perf_counter()
        list(islice(batches, num))
        return num * BATCH_SIZE / (time.perf_counter() - started)

    return run


def ours(path: Path, mode: str, args: argparse.Namespace) -> Iterator[Any]:
    from offrl.data.loader import BatchLoader
    from offrl.data.sequence import SequenceDataset

    dataset = SequenceDataset(
        str(path),
        ["front_image", "wrist_image", "state"],
        dataset_keys=("actions",),
        seq_length=CHUNK,
        obs_steps=1,
        get_pad_mask=True,
        load_next_obs=False,
        hdf5_cache_mode=mode,
    )
    return iter(BatchLoader(dataset, BATCH_SIZE, seed=0, num_workers=args.workers))


# -- in LeRobot's environment ---------------------------------------------------------------------


def ask(peer: subprocess.Popen[str], kind: str) -> float:
    peer.stdin.write(f"{kind}\n")
    peer.stdin.flush()
    return answer(peer)


def answer(peer: subprocess.Popen[str]) -> float:
    for line in peer.stdout:  # LeRobot prints, too
        if line.startswith("rate "):
            return float(line.removeprefix("rate "))
    raise RuntimeError("LeRobot's process has ended")


def serve(args: argparse.Namespace) -> None:
    """Write the folders, and then measure whatever the other process asks for."""
    batches = {}
    for kind in KINDS:
        write(args.peer / kind, kind, args)
        batches[kind] = rate(theirs(args.peer / kind, args), args.batches)
    print("rate", 0, flush=True)
    for line in sys.stdin:
        print("rate", batches[line.strip()](), flush=True)


def write(path: Path, kind: str, args: argparse.Namespace) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    shape = (*args.size, 3)
    vector = {"dtype": "float32", "shape": (7,), "names": None}
    features: dict[str, Any] = {"observation.state": vector, "action": vector}
    image = {"dtype": kind, "shape": shape, "names": ["height", "width", "channels"]}
    features |= dict.fromkeys(CAMERAS, image)
    dataset = LeRobotDataset.create("offrl/loader", FPS, features, path, image_writer_threads=4)
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 250, (args.size[0] // 8 + 1, args.size[1] // 8 + 1, 3), np.uint8)
    scene = blocks.repeat(8, 0).repeat(8, 1)[: args.size[0], : args.size[1]]
    for _ in range(args.episodes):
        for t in range(args.steps):
            frame: dict[str, Any] = {k: rng.random(7, np.float32) for k in list(features)[:2]}
            for shift, camera in enumerate(CAMERAS):
                picture, at = scene.copy(), (t + 40 * shift) % (args.size[0] - 30)
                picture[at : at + 30, at : at + 30] = [250, 160, 20]
                frame[camera] = picture
            dataset.add_frame(frame | {"task": "move"})
        dataset.save_episode()
    dataset.finalize()


def theirs(path: Path, args: argparse.Namespace) -> Iterator[Any]:
    import torch
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    times = {"action": [i / FPS for i in range(CHUNK)], "observation.state": [0.0]}
    times |= dict.fromkeys(CAMERAS, [0.0])
    dataset = LeRobotDataset("offrl/loader", root=path, delta_timestamps=times)
    options: dict[str, Any] = {"num_workers": args.workers}
    if args.workers:
        options |= {"persistent_workers": True}
    loader = torch.utils.data.DataLoader(dataset, BATCH_SIZE, shuffle=True, **options)
    while True:
        yield from loader


if __name__ == "__main__":
    main()
