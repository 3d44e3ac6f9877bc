"""Training speed: offrl, other libraries and a bare loop train the same networks on the same data.

    python benchmarks/throughput.py [--policy mlp] [--repeats 7] [--steps 200] [--json out.json]

The bare loop is what the arithmetic costs: the networks, the data as tensors on the device, random
indices, fused optimizers and nothing else. For BC a second one multiplies with offrl's layers, so
that what remains is offrl's overhead. All take turns in one run, and a figure is the median over
the turns of the ratio within a turn, with the smallest and the largest: the machine's noise meets
all contestants. Fetching data and averaging logs count. robomimic and d3rlpy are installed into
folders of their own, without dependencies, and run in processes of their own. The second table is
the time to read the data set.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from bare import BareGMM, BareMLP, BareRNN, BareTransformer, BareVAE
from bare_rl import STEPS, Transitions
from measure import alternate, machine, markdown, ratios, spread, timed
from peers import D3RLPY, ROBOMIMICS, MakeEpoch, Peer, d3rlpy_epoch, peer_loop, robomimic_epoch
from torch import nn

from offrl import config_factory
from offrl.config import Config
from offrl.config.files import find_file, read_config_file
from offrl.data.sequence import SequenceDataset
from offrl.kernels.allocator import FreedMemory
from offrl.kernels.layers import Linear
from offrl.training import Trainer
from offrl.tree import merge

EPOCHS: dict[Peer, MakeEpoch] = {
    **dict.fromkeys(ROBOMIMICS, robomimic_epoch),
    D3RLPY: d3rlpy_epoch,
}


@dataclass
class Policy:
    """What is trained: by offrl's and robomimic's config keys, and by hand."""

    title: str
    bare: type[nn.Module] | None  # BC's; of other algorithms by their names
    algo: dict[str, Any]
    train: dict[str, Any]
    algo_name: str = "bc"
    peers: tuple[Peer, ...] = ROBOMIMICS


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
}
OFFLINE_RL: dict[str, tuple[Peer, ...]] = {
    "iql": (*ROBOMIMICS, D3RLPY),
    "awac": (D3RLPY,),
    "td3_bc": (*ROBOMIMICS, D3RLPY),
    "rebrac": (D3RLPY,),
    "cql": (*ROBOMIMICS, D3RLPY),
    "bcq": ROBOMIMICS,
    "sac_n": (),
    "edac": (),
}
for _name, _peers in OFFLINE_RL.items():
    _train = {"batch_size": 256, "hdf5_normalize_obs": False}
    POLICIES[_name] = Policy(f"{_name} (256, 256)", None, SMALL, _train, _name, _peers)


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
    """An epoch, from record to record, as ``offrl.training.train`` runs it."""
    records, memory = trainer(), FreedMemory()

    def train() -> None:
        next(r for r in records if r["type"] == "epoch")
        memory.limit()

    return timed(train)


def repeated(trainer: Trainer, step: Callable[[], None]) -> Callable[[], float]:
    """An epoch of the trainer's number of steps."""

    def train() -> None:
        for _ in range(trainer.config.experiment.epoch_every_n_steps or 0):
            step()

    return timed(train)


def bare_step(trainer: Trainer, policy: Policy, linear: type[nn.Linear]) -> Callable[[], None]:
    """The trainer's network and data, by hand."""
    config, dataset, device = trainer.config, trainer.dataset, trainer.device
    everything = dataset.get_batch(torch.arange(len(dataset), device=dataset.device))
    obs = torch.cat([everything["obs"][key] for key in dataset.obs_keys], dim=-1).to(device)
    actions = everything["actions"].to(device)
    net = policy.bare(obs.shape[-1], actions.shape[-1], linear).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=True, capturable=obs.is_cuda)

    def step() -> None:
        indices = torch.randint(len(obs), (config.train.batch_size,), device=device)
        loss = net(obs[indices], actions[indices])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def bare_rl_step(trainer: Trainer) -> Callable[[], None]:
    """The trainer's transitions, on its device."""
    config, dataset, device = trainer.config, trainer.dataset, trainer.dataset.device
    everything = dataset.get_batch(torch.arange(len(dataset), device=device))
    obs, next_obs = (
        torch.cat([everything[group][key][:, 0] for key in dataset.obs_keys], dim=-1)
        for group in ("obs", "next_obs")
    )
    actions = everything["actions"]
    rewards, dones = (everything[key].flatten(1)[:, 0].float() for key in ("rewards", "dones"))
    data = Transitions(obs, actions[:, 0], rewards, dones, next_obs, actions[:, -1])
    with device:
        step = STEPS[config.algo_name](obs.shape[-1], actions.shape[-1])

    def take() -> None:
        indices = torch.randint(len(obs), (config.train.batch_size,), device=device)
        step(Transitions(*(tensor[indices] for tensor in data)))

    return take


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

    return alternate({"offrl": timed(with_offrl), "plain h5py": timed(with_h5py)}, repeats)


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
            for name, layer in (("bare loop", nn.Linear), ("bare loop, offrl's layers", Linear)):
                contestants[name] = repeated(trainer, bare_step(trainer, policy, layer))
        else:
            contestants["bare loop"] = repeated(trainer, bare_rl_step(trainer))
        for peer in policy.peers:
            try:
                contestants[peer.requirement] = peer_loop(
                    peer, EPOCHS[peer], trainer.config, policy.algo, policy.train
                )
            except RuntimeError as error:
                print(f"without {peer.requirement}: {error}", file=sys.stderr)
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
                spread([1000 * x / steps for x in seconds]),
                spread(ratios(ours, seconds)),
                spread(ratios(seconds, ours)),
            ]
            for name, seconds in train.items()
        ],
    )
    loading = markdown(
        [f"reading {trainer.dataset.n_demos} demonstrations", "s", "time / offrl's"],
        [[name, spread(s, 3), spread(ratios(s, load["offrl"]))] for name, s in load.items()],
    )
    return f"{training}\n{loading}"


if __name__ == "__main__":
    main()
