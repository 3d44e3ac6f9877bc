"""Demonstrations to convert, the command, and what came of it."""

import json

import h5py
import numpy as np
from conftest import write_demos

from offrl.__main__ import main
from offrl.data.formats.hdf5 import DemoFile

LENGTHS = [5, 7, 6, 4, 3, 9, 2, 8, 5, 6, 7, 4]  # demo_10 sorts before demo_2, as text
ENV_ARGS = {"env_name": "Lift", "type": 1, "env_kwargs": {"robots": "Panda", "control_freq": 20}}


def convert(source, output, to, *options):
    return main(["convert", str(source), str(output), "--to", to, *map(str, options)])


def read(path):
    with DemoFile(path) as file:
        return {demo: file.trajectory(demo) for demo in file.demos()}, file.masks(), file.env_args


def smooth_images(rng, length, size=48):
    """A bright square that moves over a gradient: films are made for what is not noise."""
    grid = np.linspace(0, 200, size, dtype=np.uint8)
    images = np.empty((length, size, size, 3), np.uint8)
    images[...] = np.stack(np.broadcast_arrays(grid[:, None], grid, 90), axis=-1)
    for t, corner in enumerate(rng.integers(0, size - 12, length)):
        images[t, corner : corner + 12, corner : corner + 12] = [250, 160, 20]
    return images


def write_source(path):
    """A file with an image, masks and float64 states, as robomimic's are."""
    rng = np.random.default_rng(0)
    write_demos(path, LENGTHS, {"position": (3,), "speed": (2,), "pose": (2, 2)})
    with h5py.File(path, "a") as file:
        file["data"].attrs["env_args"] = json.dumps(ENV_ARGS)
        for i, length in enumerate(LENGTHS):
            demo = file[f"data/demo_{i}"]
            demo["obs/agentview_image"] = smooth_images(rng, length)
            demo["states"] = rng.standard_normal((length, 8))
            demo.attrs["model_file"] = "<mujoco/>"
    return path
