"""Policies that predict chunks keep the ways to act of their data apart.

Half of the demonstrations go one way and half the other, all from the same observation. A policy
that averages goes neither; one that keeps no plan changes its mind within a chunk.
"""

import h5py
import numpy as np
import pytest
import torch

from offrl import algo_factory, config_factory
from offrl.data.datasets import make_dataset
from offrl.data.loader import BatchLoader
from offrl.seeding import seed_everything

pytestmark = pytest.mark.slow

WAY = 0.7
RATE = {"initial": 2e-3, "scheduler_type": "constant", "warmup_steps": 0, "step_every_batch": False}
UNET = {"down_dims": [32], "diffusion_step_embed_dim": 32}
DDIM = {"ddpm": {"enabled": False}, "ddim": {"enabled": True}}
TRANSFORMER = {
    "unet": {"enabled": False},
    "transformer": {"enabled": True, "embed_dim": 32, "num_layers": 2, "attn_dropout": 0.0},
}
CHUNKS = {"observation_horizon": 2, "action_horizon": 4, "prediction_horizon": 8}
# name: algorithm, its section, number of training steps
POLICIES = {
    "unet": ("diffusion_policy", {"unet": UNET, "horizon": CHUNKS, **DDIM}, 400),
    "transformer": ("diffusion_policy", {"horizon": CHUNKS, **TRANSFORMER, **DDIM}, 600),
    "flow": ("flow_matching", {"unet": UNET, "horizon": CHUNKS, "num_inference_steps": 8}, 600),
    "act": (
        "act",
        {
            "transformer": {"embed_dim": 32, "feedforward_dim": 64, "num_heads": 2, "dropout": 0.0},
            "latent_dim": 2,
            "kl_weight": 0.05,
            "draws_latent": True,
            "horizon": {"prediction_horizon": 8},
        },
        400,
    ),
    "vq_bet": (
        "vq_bet",
        {
            "vq": {"num_codes": 4, "latent_dim": 4, "layer_dims": [32]},
            "transformer": {"embed_dim": 32, "num_heads": 2, "num_layers": 1},
        },
        400,
    ),
}


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    path = tmp_path_factory.mktemp("modes") / "demos.hdf5"
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for i in range(40):
            way = WAY if i % 2 else -WAY
            file[f"data/demo_{i}/obs/place"] = rng.normal(scale=0.01, size=(16, 1))
            file[f"data/demo_{i}/actions"] = way + rng.normal(scale=0.01, size=(16, 2))
            for key in ("rewards", "dones"):
                file[f"data/demo_{i}/{key}"] = np.zeros(16)
    return path


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("unet", "vq_bet") else pytest.mark.thorough)
        for name in POLICIES
    ],
)
def test_both_ways_are_kept_apart(demos, name):
    algo_name, section, num_steps = POLICIES[name]
    optimizers = config_factory(algo_name).algo.optim_params
    section = {**section, "optim_params": {net: {"learning_rate": RATE} for net in optimizers}}
    train = {
        "data": str(demos),
        "cuda": False,
        "num_epochs": 2,
        "ema": {"power": None, "max_decay": 0.98},
    }
    modalities = {"modalities": {"obs": {"low_dim": ["place"]}}}
    changes = {"algo": section, "train": train, "observation": modalities}
    config = config_factory(algo_name, changes)
    seed_everything(0)
    dataset = make_dataset(config, {}, get_pad_mask=True)
    algo = algo_factory(algo_name, config, dataset.obs_shapes, dataset.ac_dim, "cpu")
    algo.inspect_data(dataset.values)
    batches = iter(BatchLoader(dataset, batch_size=32, seed=0))
    algo.set_train()
    for step in range(num_steps):
        epoch = 1 if step < num_steps / 2 else 2
        algo.train_on_batch(algo.process_batch_for_training(next(batches)), epoch)

    algo.set_eval()
    frames = algo.algo_config.horizon.observation_horizon
    num = 64
    generators = [torch.Generator().manual_seed(i) for i in range(num)]
    with torch.no_grad():
        chunks = algo.chunk({"place": torch.zeros(num, frames, 1)}, None, generators)
    ways = chunks.mean((1, 2)).sign()
    is_on_its_way = (chunks - WAY * ways[:, None, None]).abs().amax(2) < WAY / 2
    shares = (ways > 0).float().mean().item(), is_on_its_way.float().mean().item()
    assert 0.25 < shares[0] < 0.75 and shares[1] > 0.8, shares
