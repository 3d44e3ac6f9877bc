"""Small data that tests make, and small configs that train on it."""

import copy
import gc
import json
import os
import signal
from contextlib import contextmanager
from pathlib import Path

# Tests run side by side: several threads in each would wait for each other, spinning. Processes
# that tests start inherit this.
os.environ["OMP_NUM_THREADS"] = "1"
# Data of tests names environments of tests.
os.environ["OFFRL_MODULES"] = "toy_env,faulty_env,imitated"

import h5py  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402, F401 (before offrl, so that tests reach the functions that it calls)
from hypothesis import settings  # noqa: E402

from offrl import config_factory  # noqa: E402
from offrl.registry import ALGO_CONFIGS, ALGOS, ENVS, PARTS  # noqa: E402

# Else a tenth of the time goes to looking through what thousands of tests left alive.
gc.set_threshold(50_000, 20, 100)

# A busy machine is no failure.
settings.register_profile("offrl", deadline=None)
settings.load_profile("offrl")

pytest.register_assert_rewrite("comparison")  # of tests/faults

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "golden"


def write_demos(path, lengths=(5, 7, 6), obs=None, seed=0, next_obs=False, env_args=None):
    """A file in robomimic's layout with random content, ``mask/train`` and ``mask/valid``."""
    rng = np.random.default_rng(seed)
    obs = obs or {"position": (3,), "speed": (2,)}
    with h5py.File(path, "w") as file:
        for i, length in enumerate(lengths):
            demo = file.create_group(f"data/demo_{i}")
            demo.attrs["num_samples"] = length
            groups = ("obs", "next_obs") if next_obs else ("obs",)
            for group in groups:
                for key, shape in obs.items():
                    demo[f"{group}/{key}"] = rng.standard_normal((length, *shape))
            demo["actions"] = np.tanh(rng.standard_normal((length, 2)))
            demo["rewards"] = rng.random(length)
            demo["dones"] = np.eye(length)[-1]
        file["data"].attrs["total"] = sum(lengths)
        if env_args:
            file["data"].attrs["env_args"] = env_args
        file["mask/train"] = np.array([f"demo_{i}" for i in range(len(lengths) - 1)], dtype="S")
        file["mask/valid"] = np.array([f"demo_{len(lengths) - 1}"], dtype="S")
    return path


@contextmanager
def heeding():
    """Shells make what is in their background ignore interrupts, ``nohup`` hangups, and a command
    that was interrupted ignores every other signal on its way out."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in numbers[1:]:
        signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, before[number])


SMALL = {
    "experiment": {
        "name": "test",
        "epoch_every_n_steps": 5,
        "rollout": {"enabled": False},
        "save": {"every_n_epochs": 1},
    },
    "train": {
        "num_epochs": 3,
        "batch_size": 4,
        "cuda": False,
        "hdf5_normalize_obs": False,
    },
    "observation": {"modalities": {"obs": {"low_dim": ["position", "speed"]}}},
}


def acting_in(env, every):
    """The section ``experiment`` of a training that acts and does little else, in epochs of
    ``every`` steps."""
    quiet = {"rollout": {"enabled": False}, "logging": {"log_tb": False}}
    return {"env": env, "epoch_every_n_steps": every, **quiet}


@pytest.fixture(autouse=True)
def registries():
    """Remove what a test registered and what it allowed, after it; entries of offrl's own modules
    stay."""
    registries = (ALGOS, ALGO_CONFIGS, ENVS, *PARTS.values())
    before = [(registry, {*registry._entries}) for registry in registries]
    allowed = os.environ["OFFRL_MODULES"]
    yield
    os.environ["OFFRL_MODULES"] = allowed
    for registry, known in before:
        for name in {*registry._entries} - known - registry._own:
            del registry._entries[name]


@pytest.fixture
def demos(tmp_path):
    return write_demos(tmp_path / "demos.hdf5")


@pytest.fixture
def small_config(demos, tmp_path):
    """A function: overrides -> a config that trains in a moment on ``demos``."""

    def make(overrides=None, algo_name="bc"):
        from offrl.tree import merge

        paths = {"train": {"data": str(demos), "output_dir": str(tmp_path / "runs")}}
        small = copy.deepcopy(SMALL)
        if algo_name == "bc":
            small["algo"] = {"actor_layer_dims": [16, 16]}
        return config_factory(algo_name, merge(merge(small, paths), overrides or {}))

    return make


@pytest.fixture(scope="module")
def pools():
    """By their numbers of workers, whose start takes longer than their episodes."""
    from toy_env import toy_args

    from offrl.envs.workers import EnvPool

    with (
        EnvPool(toy_args(), 1) as one,
        EnvPool(toy_args(), 2) as two,
        EnvPool(toy_args(), 5) as five,
    ):
        yield {1: one, 2: two, 5: five}


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory):
    """The folder of a run that ``offrl train`` has finished, for tests that only read it (those
    that write take a copy): two epochs of BC on ``demos.hdf5``, which lies in the run's
    ``parents[2]`` and names the toy environment, each with a validation, an evaluation of two
    episodes and a video, and then a test. There are ``last.pth``, a checkpoint of each epoch, the
    records, the learning curve and ``log.txt``, but nothing of TensorBoard."""
    from toy_env import toy_args

    from offrl.__main__ import main
    from offrl.tree import merge

    folder = tmp_path_factory.mktemp("trained")
    demos = write_demos(folder / "demos.hdf5", env_args=json.dumps(toy_args()))
    config = {
        "algo_name": "bc",
        "algo": {"actor_layer_dims": [16, 16]},
        "experiment": {
            "rollout": {"enabled": True, "n": 2, "horizon": 5, "rate": 1, "num_workers": 1},
            "validate": True,
            "logging": {"log_tb": False},
        },
        "train": {
            "num_epochs": 2,
            "data": str(demos),
            "output_dir": str(folder / "runs"),
            "hdf5_filter_key": "train",
            "hdf5_validation_filter_key": "valid",
        },
    }
    (folder / "config.json").write_text(json.dumps(merge(SMALL, config)))
    assert main(["train", "--config", str(folder / "config.json")]) == 0
    (run,) = folder.glob("runs/test/2*")
    return run


def train_completely(trainer):
    """All records of a training with its evaluations, logs and checkpoints."""
    from offrl.training import Checkpointer, Evaluator, Logger

    evaluator, logger = Evaluator(trainer), Logger(trainer)
    try:
        return list(Checkpointer(trainer)(logger(evaluator(trainer()))))
    finally:
        evaluator.close()
        logger.close()
