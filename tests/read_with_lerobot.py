"""Whether LeRobot itself reads what ``offrl convert`` writes, every step's values and frames, and
offrl what LeRobot writes (with films in AV1, and images in its tables), in the layout 3.0 or 2.1.

LeRobot brings another numpy and torch, so it has an environment of its own, which is made in
``--venv`` if it is not there (some gigabytes). Not a part of ``make test``:

    python tests/read_with_lerobot.py --venv ~/lerobot-venv --dataset lift_images.hdf5
    python tests/read_with_lerobot.py --venv ~/lerobot-v2 --layout 2.1 --dataset lift_images.hdf5

``--keep FOLDER`` leaves there what LeRobot wrote. ``tests/golden/lerobot`` was made so.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

BOUND = 3.0  # of 255: the mean difference of frames that a film costs at most
# The layouts: the newest LeRobot that writes each, what it goes with, and the format of ``offrl
# convert``.
LAYOUTS = {
    "2.1": (["lerobot==0.3.3", "numpy<2.3"], "lerobot-v2.1"),
    "3.0": (["lerobot==0.4.4"], "lerobot"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--layout", choices=LAYOUTS, default="3.0")
    parser.add_argument("--dataset", default="datasets/lift/low_dim.hdf5")
    parser.add_argument("--keep", type=Path, help="a new folder for what LeRobot writes")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)  # run by LeRobot's python
    args = parser.parse_args()
    if args.inside:
        compare(args.inside)
        return write_theirs(args.inside)
    packages, to = LAYOUTS[args.layout]
    python = args.venv / "bin/python"
    if not python.is_file():
        subprocess.run([sys.executable, "-m", "venv", args.venv], check=True)
        subprocess.run([python, "-m", "pip", "install", *packages], check=True)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), args.dataset, to)
        command = [python, __file__, "--venv", args.venv, "--inside", folder]
        subprocess.run(command, check=True)
        read_theirs(Path(folder) / "theirs")
        if args.keep:
            shutil.copytree(Path(folder) / "theirs", args.keep)
    return 0


def write(folder, dataset, to):
    """The converted data set, and what was converted, for a Python without h5py."""
    from offrl.__main__ import main as offrl
    from offrl.data.formats.hdf5 import DemoFile

    task = "lift the cube"
    assert offrl(["convert", dataset, f"{folder}/set", "--to", to, "--task", task]) == 0
    with DemoFile(dataset) as file:
        demos = [file.trajectory(demo) for demo in file.demos()]
    keys = [key for key, value in demos[0].items() if isinstance(value, np.ndarray)]
    arrays = {key.replace("/", "|"): np.concatenate([d[key] for d in demos]) for key in keys}
    np.savez(folder / "expected.npz", **arrays, lengths=[len(d["actions"]) for d in demos])


def backend():
    """torchcodec, LeRobot's own choice, where the system has the FFmpeg that it needs."""
    try:
        import torchcodec.decoders  # noqa: F401
    except (ImportError, RuntimeError, OSError):
        return "pyav"
    return "torchcodec"


def compare(folder):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    file = np.load(folder / "expected.npz")
    expected = {key.replace("|", "/"): file[key] for key in file}
    lengths = expected.pop("lengths")
    dataset = LeRobotDataset("offrl/check", root=folder / "set", video_backend=backend())
    info = json.loads((folder / "set/meta/info.json").read_text())
    obs = [key for key in sorted(expected) if key.startswith("obs/")]
    cameras = [key for key in obs if expected[key].ndim == 4]
    parts = [expected[key] for key in obs if key not in cameras]
    state = np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)
    print(dataset, flush=True)
    assert len(dataset) == len(state) == lengths.sum() and dataset.num_episodes == len(lengths)
    assert sorted(dataset.meta.camera_keys) == sorted(
        f"observation.images.{key[4:].removesuffix('_image')}" for key in cameras
    )
    episodes = np.repeat(np.arange(len(lengths)), lengths)
    worst, total, num_frames = 0.0, 0.0, 0
    for i in range(len(dataset)):
        item = dataset[i]
        np.testing.assert_array_equal(item["observation.state"], state[i].astype(np.float32))
        np.testing.assert_array_equal(item["action"], expected["actions"][i].astype(np.float32))
        assert float(item["next.reward"]) == np.float32(expected["rewards"][i])
        assert bool(item["next.done"]) == bool(expected["dones"][i])
        assert item["task"] == "lift the cube" and int(item["episode_index"]) == episodes[i]
        for key in cameras:
            frame = item[f"observation.images.{key[4:].removesuffix('_image')}"]
            image = expected[key][i].transpose(2, 0, 1) / 255
            difference = 255 * np.abs(frame.numpy() - image).mean()
            worst, total, num_frames = max(worst, difference), total + difference, num_frames + 1
    print(f"{len(dataset)} steps of {len(lengths)} episodes: state, action, reward, done equal")
    if cameras:
        print(
            f"{num_frames} frames ({dataset.video_backend}): mean difference "
            f"{total / num_frames:.2f} of 255, of the worst frame {worst:.2f}"
        )
        assert worst < BOUND
    step = 1 / info["fps"]
    names = ["observation.state", *dataset.meta.camera_keys]
    windows = LeRobotDataset(
        "offrl/check",
        root=folder / "set",
        video_backend=dataset.video_backend,
        delta_timestamps={k: [-step, 0.0] for k in names},
    )
    middle = int(lengths[0]) + 1  # the second step of the second episode
    np.testing.assert_array_equal(
        windows[middle]["observation.state"], state[middle - 1 : middle + 1].astype(np.float32)
    )
    stats = dataset.meta.stats["observation.state"]
    np.testing.assert_allclose(stats["mean"], state.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(stats["std"], state.std(0), rtol=1e-3, atol=1e-5)
    print("windows of two steps and statistics agree")


THEIRS = (7, 12, 9)  # steps of each episode that LeRobot writes
FPS = 30


def rows(episode, length):
    """What LeRobot is given: a picture that brightens, twice, and vectors."""
    rng = np.random.default_rng(episode)
    picture = np.linspace(0, 150, 64, dtype=np.uint8)
    images = np.stack([np.full((64, 96, 3), picture[:, None, None] + 8 * t) for t in range(length)])
    vectors = {"observation.state": (5,), "action": (3,), "next.reward": (1,)}
    arrays = {k: rng.random((length, *shape), np.float32) for k, shape in vectors.items()}
    arrays["next.done"] = (np.arange(length) == length - 1)[:, None]
    return arrays | dict.fromkeys(("observation.images.film", "observation.images.still"), images)


def write_theirs(folder):
    from lerobot.datasets.lerobot_dataset import CODEBASE_VERSION, LeRobotDataset

    features = {
        key: {"dtype": str(array.dtype), "shape": array.shape[1:], "names": None}
        for key, array in rows(0, 1).items()
    }
    names = ["height", "width", "channels"]
    features["observation.images.film"] |= {"dtype": "video", "names": names}
    features["observation.images.still"] |= {"dtype": "image", "names": names}
    dataset = LeRobotDataset.create("offrl/theirs", FPS, features, folder / "theirs")
    for episode, length in enumerate(THEIRS):
        arrays = rows(episode, length)
        for t in range(length):
            frame = {key: array[t] for key, array in arrays.items()}
            task = f"task {episode % 2}"
            if CODEBASE_VERSION == "v2.1":
                dataset.add_frame(frame, task)
            else:
                dataset.add_frame(frame | {"task": task})
        dataset.save_episode()
    if CODEBASE_VERSION != "v2.1":
        dataset.finalize()
    shutil.rmtree(folder / "theirs/images", ignore_errors=True)  # what it encoded


def read_theirs(folder):
    """Compare what is in a folder that LeRobot wrote with what it was given."""
    from offrl.data.formats.files import open_demos

    names = {"obs/state": "observation.state", "actions": "action", "rewards": "next.reward"}
    names |= {"dones": "next.done", "obs/still_image": "observation.images.still"}
    film = "obs/film_image"
    with open_demos(folder) as file:
        assert set(file.keys("demo_0")) == {*names, film}
        for (episode, length), demo in zip(enumerate(THEIRS), file.demos(), strict=True):
            expected, found = rows(episode, length), file.trajectory(demo)
            for key, name in names.items():
                array = expected[name].reshape(found[key].shape).astype(found[key].dtype)
                np.testing.assert_array_equal(found[key], array)
            assert found["task"] == f"task {episode % 2}" and found["fps"] == FPS
            difference = np.abs(found[film].astype(float) - expected["observation.images.film"])
            assert difference.mean((1, 2, 3)).max() < 2 * BOUND
    print(f"{len(THEIRS)} episodes that LeRobot wrote: equal; film within {difference.mean():.2f}")


if __name__ == "__main__":
    sys.exit(main())
