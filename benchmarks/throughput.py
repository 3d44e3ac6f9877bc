"""Training speed: offrl, robomimic 0.3.0 and a bare loop train the same network on the same data.

    python benchmarks/throughput.py [--policy mlp] [--repeats 7] [--steps 200] [--json out.json]

The bare loop is what the arithmetic costs: the network, the data as one tensor on the device,
random indices, a fused optimizer and nothing else. A second one multiplies with offrl's layers, so
that what remains is offrl's overhead. All take turns in one run, and a figure is the median over
the turns of the ratio within a turn: the machine's noise meets all of them. Fetching data and
averaging logs count. robomimic is installed into a folder of its own, without dependencies, and
runs in a process of its own. The second table is the time to read the data set.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import MagicMock

import h5py
import numpy as np
import torch
from bare import BareGMM, BareMLP, BareRNN, BareTransformer, BareVAE
from measure import alternate, machine, markdown, ratio, timed
from torch import nn

from offrl import config_factory
from offrl.config import Config
from offrl.config_files import find_file, read_config_file
from offrl.data.sequence import SequenceDataset
from offrl.models.linear import Linear
from offrl.training import Trainer
from offrl.tree import merge

PEER = "robomimic==0.3.0"
PEER_FOLDER = Path(__file__).parent / ".peers" / PEER.replace("==", "-")
# What robomimic imports but does not use when it trains an MLP on a file.
PEER_UNUSED = (
    "torchvision",
    "torchvision.transforms",
    "torchvision.transforms.functional",
    "imageio",
    "matplotlib",
    "matplotlib.pyplot",
    "termcolor",
)


@dataclass
class Policy:
    """What is trained: by offrl's and robomimic's config keys, and by hand."""

    title: str
    bare: type[nn.Module] | None
    algo: dict[str, Any]
    train: dict[str, Any]
    algo_name: str = "bc"


GMM = {"actor_layer_dims": [], "gmm": {"enabled": True}}
SMALL = {"critic": {"layer_dims": [256, 256]}, "actor": {"layer_dims": [256, 256]}}
POLICIES = {
    "mlp": Policy("MLP (1024, 1024)", BareMLP, {}, {}),
    "gmm": Policy("GMM (MLP 1024, 1024)", BareGMM, {"gmm": {"enabled": True}}, {}),
    "vae": Policy("VAE (300, 400), N(0, 1)", BareVAE, {"vae": {"enabled": True}}, {}),
    "rnn_gmm": Policy(
        "RNN-GMM (LSTM 2 x 400, windows of 10)",
        BareRNN,
        GMM | {"rnn": {"enabled": True}},
        {"seq_length": 10},
    ),
    "transformer_gmm": Policy(
        "Transformer-GMM (6 x 512, context 10)",
        BareTransformer,
        GMM | {"transformer": {"enabled": True}},
        {"frame_stack": 10},
    ),
} | {
    name: Policy(
        f"{name} (256, 256)", None, SMALL, {"batch_size": 256, "hdf5_normalize_obs": False}, name
    )
    for name in ("iql", "bcq", "cql", "td3_bc")
}


def make_config(steps: int, policy: Policy, data: str) -> Config:
    content = read_config_file(find_file("bc.json", "configs"))
    overrides = {
        "algo_name": policy.algo_name,
        "algo": policy.algo,
        "train": {"data": data} | policy.train,
    }
    config = config_factory(policy.algo_name, merge(content, overrides))
    config.experiment.validate = False
    config.experiment.rollout.enabled = False
    config.experiment.epoch_every_n_steps = steps
    config.train.num_epochs = 1_000_000  # the contest ends it
    return config


# -- the contestants: functions that train some steps and return the seconds ----------------------


def offrl_loop(trainer: Trainer) -> Callable[[], float]:
    """An epoch, from record to record, as any user of the ``Trainer`` runs it."""
    records = trainer()
    return timed(lambda: next(r for r in records if r["type"] == "epoch"))


def bare_loop(trainer: Trainer, policy: Policy, linear: type[nn.Linear]) -> Callable[[], float]:
    """The trainer's network and data, by hand."""
    config, dataset, device = trainer.config, trainer.dataset, trainer.device
    everything = dataset.get_batch(torch.arange(len(dataset), device=dataset.device))
    obs = torch.cat([everything["obs"][key] for key in dataset.obs_keys], dim=-1).to(device)
    actions = everything["actions"].to(device)
    net = policy.bare(obs.shape[-1], actions.shape[-1], linear).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=True)

    def train() -> None:
        for _ in range(config.experiment.epoch_every_n_steps or 0):
            indices = torch.randint(len(obs), (config.train.batch_size,), device=device)
            loss = net(obs[indices], actions[indices])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return timed(train)


def with_next_obs(folder: str) -> str:
    """The shipped data with ``next_obs``, which robomimic needs, in a copy."""
    path = Path(folder) / "low_dim.hdf5"
    shutil.copy(find_file("datasets/lift/low_dim.hdf5"), path)
    with h5py.File(path, "a") as file:
        for demo in file["data"].values():
            for key, dataset in demo["obs"].items():
                rows = dataset[()]
                demo[f"next_obs/{key}"] = np.concatenate([rows[1:], rows[-1:]])
    return str(path)


def robomimic_loop(steps: int, policy: Policy, data: str) -> Callable[[], float]:
    """robomimic in a process of its own; ``RuntimeError`` says why there is none."""
    install_peer()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=serve_robomimic,
        args=(theirs, steps, policy, data, torch.get_num_threads()),
        daemon=True,
    )
    process.start()
    theirs.close()

    def train() -> float:
        ours.send("train")
        return ours.recv()

    try:
        ours.recv()  # it is ready
    except EOFError:
        raise RuntimeError("it does not start here, see above") from None
    return train


def install_peer() -> None:
    if (PEER_FOLDER / "robomimic").is_dir():
        return
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--target",
            str(PEER_FOLDER),
            PEER,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise RuntimeError(f"it cannot be installed ({reason})")


def import_peer() -> None:
    """Make robomimic importable in this process."""
    sys.path.insert(0, str(PEER_FOLDER))
    for name in PEER_UNUSED:
        try:
            import_module(name)
        except ImportError:
            sys.modules[name] = MagicMock()


def serve_robomimic(
    connection: Connection, steps: int, policy: Policy, data: str, num_threads: int
) -> None:
    """The other process: ``robomimic/scripts/train.py`` up to its ``run_epoch``, on request."""
    import_peer()
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        run_epoch = robomimic_epoch(make_config(steps, policy, data), policy)
        torch.set_num_threads(num_threads)
        connection.send("ready")
        try:
            while connection.recv():
                connection.send(timed(run_epoch)())
        except (EOFError, KeyboardInterrupt):
            return


def robomimic_epoch(config: Config, policy: Policy) -> Callable[[], object]:
    from robomimic.algo import algo_factory
    from robomimic.config import config_factory
    from robomimic.utils import file_utils, obs_utils, torch_utils, train_utils

    theirs = config_factory(policy.algo_name)
    with theirs.values_unlocked():
        theirs.train.hdf5_normalize_obs = False
        theirs.observation.modalities.obs.low_dim = list(config.observation.modalities.obs.low_dim)
        theirs.train.data = str(find_file(config.train.data[0].path))
        theirs.train.hdf5_filter_key = config.train.hdf5_filter_key
        theirs.train.hdf5_cache_mode = "all"
        theirs.train.batch_size = config.train.batch_size
        theirs.train.update(policy.train)
        for name, value in policy.algo.items():
            if isinstance(value, dict):
                theirs.algo[name].update(value)
            else:
                theirs.algo[name] = value
    obs_utils.initialize_obs_utils_with_config(theirs)
    shapes = file_utils.get_shape_metadata_from_dataset(
        dataset_path=theirs.train.data, all_obs_keys=theirs.all_obs_keys
    )
    model = algo_factory(
        algo_name=policy.algo_name,
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


# -- reading the data set -------------------------------------------------------------------------


def load_times(trainer: Trainer, repeats: int) -> dict[str, list[float]]:
    dataset, key = trainer.dataset, trainer.config.train.hdf5_filter_key

    def with_offrl() -> None:
        SequenceDataset(
            dataset.hdf5_path, dataset.obs_keys, filter_by_attribute=key, load_next_obs=False
        )

    def with_h5py() -> None:
        keys = [*(f"obs/{key}" for key in dataset.obs_keys), *dataset.dataset_keys]
        with h5py.File(dataset.hdf5_path) as file:
            demos = file[f"mask/{key}"].asstr()[()]
            for name in keys:
                np.concatenate([file[f"data/{demo}/{name}"][()] for demo in demos])

    return alternate({"offrl": timed(with_offrl), "h5py": timed(with_h5py)}, repeats)


# -- the report -----------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--policy", choices=POLICIES, default="mlp", help="what to train")
    parser.add_argument("--repeats", type=int, default=7, help="turns of each contestant")
    parser.add_argument("--steps", type=int, default=200, help="training steps per turn")
    parser.add_argument("--json", type=Path, help="also write every measured second there")
    args = parser.parse_args()

    policy = POLICIES[args.policy]
    with tempfile.TemporaryDirectory() as folder:
        data = "datasets/lift/low_dim.hdf5" if policy.bare else with_next_obs(folder)
        trainer = Trainer(make_config(args.steps, policy, data))
        contestants = {"offrl": offrl_loop(trainer)}
        if policy.bare:
            contestants["bare loop"] = bare_loop(trainer, policy, nn.Linear)
            contestants["bare loop, offrl's layers"] = bare_loop(trainer, policy, Linear)
        try:
            contestants[PEER] = robomimic_loop(args.steps, policy, data)
        except RuntimeError as error:
            print(f"without {PEER}: {error}", file=sys.stderr)
        train = alternate(contestants, args.repeats)
        load = load_times(trainer, args.repeats)

    print(f"{machine()}; {args.repeats} turns of {args.steps} steps\n")
    print(report(policy, train, load, args.steps, trainer))
    if args.json:
        content = {"machine": machine(), "steps": args.steps, "train": train, "load": load}
        args.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def report(
    policy: Policy,
    train: dict[str, list[float]],
    load: dict[str, list[float]],
    steps: int,
    trainer: Trainer,
) -> str:
    ours = train["offrl"]
    training = markdown(
        [
            f"{policy.title}, batch {trainer.config.train.batch_size}",
            "ms per step",
            "offrl's time / this",
            "offrl's rate / this",
        ],
        [
            [
                name,
                f"{1000 * median(seconds) / steps:.2f}",
                f"{ratio(ours, seconds):.2f}",
                f"{ratio(seconds, ours):.2f}",
            ]
            for name, seconds in train.items()
        ],
    )
    loading = markdown(
        [f"reading {trainer.dataset.n_demos} demonstrations", "s", "ratio"],
        [
            ["offrl", f"{median(load['offrl']):.3f}", ""],
            [
                "h5py, high-level",
                f"{median(load['h5py']):.3f}",
                f"{ratio(load['h5py'], load['offrl']):.2f} times offrl",
            ],
        ],
    )
    return f"{training}\n{loading}"


if __name__ == "__main__":
    main()
