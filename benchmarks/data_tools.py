"""The data commands as whole processes: ``info`` on a large file; playback and observations from
states on one core and on two.

    python benchmarks/data_tools.py [--gigabytes 5] [--demos 24] [--repeats 5]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import h5py
import numpy as np
from measure import alternate, machine, markdown, ratio, spread, timed

from offrl.envs.rendering import working_backend

ROOT = Path(__file__).parents[1]
LIFT = ROOT / "datasets/lift/low_dim.hdf5"
CAMERAS = ("agentview_image", "robot0_eye_in_hand_image")
STEPS = 200


def command(cores: Sequence[int], *words: str) -> Callable[[], float]:
    """A command of offrl's as a process that has these cores, timed."""
    environ = os.environ | {"PYTHONPATH": str(ROOT), "MUJOCO_GL": working_backend() or "disabled"}
    on_cores = ["taskset", "--cpu-list", ",".join(map(str, cores))]
    program = [*on_cores, sys.executable, "-m", "offrl", *words]
    return timed(lambda: subprocess.run(program, env=environ, check=True, capture_output=True))


def writing(folder: Path, cores: Sequence[int], *words: str) -> Callable[[], float]:
    """A command that writes an output, which is taken away."""

    def run() -> float:
        output = folder / {"playback": "film.mp4", "images": "images.hdf5"}[words[0]]
        seconds = command(cores, *words, "--output", str(output))()
        output.unlink()
        return seconds

    return run


def write_large_file(path: Path, gigabytes: float) -> None:
    """Demonstrations of two cameras and Lift's vectors, random, without compression."""
    rng = np.random.default_rng(0)
    with h5py.File(LIFT) as lift:
        demo = lift["data/demo_0"]
        vectors = [f"obs/{key}" for key in demo["obs"]] + ["actions", "states", "rewards", "dones"]
        shapes = {key: demo[key].shape[1:] for key in vectors}
        env_args = lift["data"].attrs["env_args"]
    images = rng.integers(0, 256, (STEPS, 84, 84, 3), dtype=np.uint8)
    with h5py.File(path, "w") as file:
        file.create_group("data").attrs["env_args"] = env_args
        for i in range(round(gigabytes * 1e9 / (len(CAMERAS) * images.nbytes))):
            demo = file.create_group(f"data/demo_{i}")
            demo.attrs["num_samples"] = STEPS
            for key, shape in shapes.items():
                demo[key] = rng.uniform(-1, 1, (STEPS, *shape)).astype(np.float32)
            demo["dones"][...] = np.eye(STEPS)[-1]
            for camera in CAMERAS:
                demo[f"obs/{camera}"] = images


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=5.0, help="of the file for info")
    parser.add_argument("--demos", type=int, default=24, help="that are played back")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    print(f"{machine()}\n")
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder) / "large.hdf5"
        write_large_file(large, args.gigabytes)
        cores = sorted(os.sched_getaffinity(0))[:2]
        info = alternate({"info": command(cores, "info", str(large))}, args.repeats)["info"]
        size = large.stat().st_size / 1e9
        large.unlink()
        jobs = {
            "playback": ["playback", str(LIFT), "--n", str(args.demos), "--size", "128"],
            "images": ["images", "--dataset", str(LIFT), "--n", str(args.demos), "--size", "84"],
        }
        rows, ratios = [[f"info, {size:.1f} GB", spread(info)]], []
        for name, words in jobs.items():
            one, two = f"{name}, one core", f"{name}, two cores"
            contestants = {
                one: writing(Path(folder), cores[:1], *words),
                two: writing(Path(folder), cores, *words),
            }
            found = alternate(contestants, args.repeats, warm_up=False)
            rows += [[name, spread(seconds)] for name, seconds in found.items()]
            ratios.append(f"{name}: {ratio(found[one], found[two]):.2f} times faster on two")
    print(markdown(["", "s"], rows))
    print("\n".join(ratios))


if __name__ == "__main__":
    main()
