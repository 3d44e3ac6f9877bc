"""The libraries that offrl is compared with: each installed into a folder of its own beside this
file, without touching the environment, and trained in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import h5py
import numpy as np
import torch
from measure import timed

from offrl.config import Config, config_factory
from offrl.config.files import find_file


@dataclass(frozen=True)
class Peer:
    """A library at one version, what it needs besides offrl's own dependencies, what it imports
    but does not use here, and where it is if no package index has it."""

    requirement: str
    needs: tuple[str, ...]
    unused: tuple[str, ...]
    source: str = ""

    @property
    def folder(self) -> Path:
        return Path(__file__).parent / ".peers" / self.requirement.replace("==", "-")

    def install(self) -> None:
        """Without dependencies, if it is not there; ``RuntimeError`` says why it cannot be."""
        name = self.requirement.partition("==")[0].replace("-", "_")
        if (self.folder / name).is_dir():
            return
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--target"]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", *options, str(self.folder)]
            + [self.source or self.requirement, *self.needs],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
            raise RuntimeError(f"it cannot be installed ({reason})")

    def make_importable(self) -> None:
        """In this process."""
        sys.path.insert(0, str(self.folder))
        for name in self.unused:
            try:
                import_module(name)
            except ImportError:
                sys.modules[name] = MagicMock(__spec__=ModuleSpec(name, None))


ROBOMIMIC = Peer(
    "robomimic==0.3.0",
    needs=(),
    unused=(
        "torchvision",
        "torchvision.transforms",
        "torchvision.transforms.functional",
        "imageio",
        "matplotlib",
        "matplotlib.pyplot",
        "termcolor",
    ),
)
NEWER_ROBOMIMIC = Peer(
    "robomimic==0.5.0",
    needs=(),
    unused=(
        *ROBOMIMIC.unused,
        "diffusers",
        "diffusers.schedulers",
        "diffusers.schedulers.scheduling_ddim",
        "diffusers.schedulers.scheduling_ddpm",
        "diffusers.training_utils",
        "egl_probe",
        "huggingface_hub",
        "transformers",
    ),
    source="git+https://github.com/ARISE-Initiative/robomimic.git@v0.5.0",
)
ROBOMIMICS = ROBOMIMIC, NEWER_ROBOMIMIC
D3RLPY = Peer(
    "d3rlpy==2.8.1",
    needs=(
        "colorama==0.4.6",
        "dataclasses-json==0.6.7",
        "gym==0.26.2",
        "gym-notices==0.1.0",
        "marshmallow==3.26.1",
        "mypy-extensions==1.1.0",
        "structlog==25.4.0",
        "typing-inspect==0.9.0",
    ),
    unused=("sklearn", "sklearn.neighbors"),
)


# -- training in another process ------------------------------------------------------------------

# Of offrl's config and robomimic's ``algo`` and ``train`` keys: a function that trains an epoch.
MakeEpoch = Callable[[Config, Mapping[str, Any], Mapping[str, Any]], Callable[[], object]]


def peer_loop(
    peer: Peer,
    make_epoch: MakeEpoch,
    config: Config,
    algo: Mapping[str, Any],
    train: Mapping[str, Any],
) -> Callable[[], float]:
    """A function that trains an epoch in the other process and returns its seconds there;
    ``RuntimeError`` says why there is none."""
    return elsewhere(peer, timed_epoch, make_epoch, config.to_dict(), algo, train)


def timed_epoch(
    make_epoch: MakeEpoch,
    config: Mapping[str, Any],
    algo: Mapping[str, Any],
    train: Mapping[str, Any],
) -> Callable[[], float]:
    return timed(make_epoch(config_factory(config["algo_name"], config), algo, train))


def elsewhere(peer: Peer, make: Callable[..., Callable[..., Any]], *args: Any) -> Callable:
    """The function that ``make(*args)`` returns in a process with the peer, to be called from here;
    ``RuntimeError`` says why there is none."""
    peer.install()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_serve, args=(theirs, peer, torch.get_num_threads(), make, *args), daemon=True
    )
    process.start()
    theirs.close()

    def call(*arguments: Any) -> Any:
        ours.send(arguments)
        return ours.recv()

    try:
        ours.recv()  # it is ready
    except EOFError:
        raise RuntimeError("it does not start here, see above") from None
    return call


def _serve(
    connection: Connection,
    peer: Peer,
    num_threads: int,
    make: Callable[..., Callable[..., Any]],
    *args: Any,
) -> None:
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        peer.make_importable()
        work = make(*args)
        torch.set_num_threads(num_threads)
        connection.send("ready")
        try:
            while True:
                connection.send(work(*connection.recv()))
        except (EOFError, KeyboardInterrupt):
            return


def robomimic_epoch(
    config: Config, algo: Mapping[str, Any], train: Mapping[str, Any]
) -> Callable[[], object]:
    """``robomimic/scripts/train.py`` up to its ``run_epoch``."""
    from robomimic.algo import algo_factory
    from robomimic.config import config_factory
    from robomimic.utils import file_utils, obs_utils, torch_utils, train_utils

    theirs = config_factory(config.algo_name)
    path = str(find_file(config.train.data[0].path))
    has_several_files = "action_keys" in theirs.train  # since 0.4
    with theirs.values_unlocked():
        theirs.train.hdf5_normalize_obs = False
        theirs.observation.modalities.obs.low_dim = list(config.observation.modalities.obs.low_dim)
        theirs.train.data = [{"path": path}] if has_several_files else path
        theirs.train.hdf5_filter_key = config.train.hdf5_filter_key
        theirs.train.hdf5_cache_mode = "all"
        theirs.train.batch_size = config.train.batch_size
        theirs.train.update(train)
        for name, value in algo.items():
            if isinstance(value, dict):
                theirs.algo[name].update(value)
            else:
                theirs.algo[name] = value
    obs_utils.initialize_obs_utils_with_config(theirs)
    described = (
        {"dataset_config": theirs.train.data[0], "action_keys": theirs.train.action_keys}
        if has_several_files
        else {"dataset_path": path}
    )
    shapes = file_utils.get_shape_metadata_from_dataset(
        **described, all_obs_keys=theirs.all_obs_keys
    )
    model = algo_factory(
        algo_name=config.algo_name,
        config=theirs,
        obs_key_shapes=shapes["all_shapes"],
        ac_dim=shapes["ac_dim"],
        device=torch_utils.get_torch_device(try_to_use_cuda=theirs.train.cuda),
    )
    dataset, _ = train_utils.load_data_for_training(theirs, obs_keys=shapes["all_obs_keys"])
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=theirs.train.batch_size, shuffle=True, num_workers=0, drop_last=True
    )
    steps = config.experiment.epoch_every_n_steps
    return lambda: train_utils.run_epoch(model, loader, epoch=1, num_steps=steps)


def d3rlpy_epoch(
    config: Config, algo: Mapping[str, Any], train: Mapping[str, Any]
) -> Callable[[], object]:
    """Its ``fit`` without what that logs and saves: sampling from the buffer, and updates."""
    with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):  # gym's farewell
        import d3rlpy

    def encoder(**options: Any) -> Any:
        return d3rlpy.models.VectorEncoderFactory([256, 256], **options)

    names = {"td3_bc": "TD3PlusBC", "rebrac": "ReBRAC"}
    name = names.get(config.algo_name, config.algo_name.upper())
    normalised = {"use_layer_norm": True} if name == "ReBRAC" else {}
    optim = config.algo.optim_params
    is_on_gpu = config.train.cuda and torch.cuda.is_available()
    model = getattr(d3rlpy.algos, f"{name}Config")(
        batch_size=config.train.batch_size,
        actor_learning_rate=optim["actor"].learning_rate.initial,
        critic_learning_rate=optim["critic"].learning_rate.initial,
        actor_encoder_factory=encoder(),
        critic_encoder_factory=encoder(**normalised),
        compile_graph=is_on_gpu,  # it compiles and captures its updates
        **({"value_encoder_factory": encoder()} if name == "IQL" else {}),
    ).create(device=is_on_gpu)
    episodes = d3rlpy_episodes(config)
    buffer = d3rlpy.dataset.create_infinite_replay_buffer(episodes=episodes)
    model.create_impl(episodes[0].observations.shape[1:], episodes[0].actions.shape[-1])

    def run_epoch() -> None:
        for _ in range(config.experiment.epoch_every_n_steps or 0):
            model.update(buffer.sample_transition_batch(config.train.batch_size))

    return run_epoch


def d3rlpy_episodes(config: Config) -> list[Any]:
    from d3rlpy.dataset import Episode

    keys = sorted(config.observation.modalities.obs.low_dim)
    episodes = []
    with h5py.File(find_file(config.train.data[0].path)) as file:
        for name in file[f"mask/{config.train.hdf5_filter_key}"].asstr()[()]:
            demo = file[f"data/{name}"]
            obs, actions, rewards = (
                np.asarray(values, dtype=np.float32)
                for values in (
                    np.concatenate([demo["obs"][key][()] for key in keys], axis=-1),
                    demo["actions"][()],
                    demo["rewards"][()][:, None],
                )
            )
            episodes.append(Episode(obs, actions, rewards, terminated=bool(demo["dones"][-1])))
    return episodes
