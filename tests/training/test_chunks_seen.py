"""Policies that predict chunks, from the images of two cameras and from goals."""

import h5py
import numpy as np
import pytest
import torch

from offrl import RolloutPolicy, Trainer, config_factory

CAMERAS = ["front_image", "hand_image"]
CHUNKS = {"action_horizon": 2, "prediction_horizon": 4}
RATE = {"initial": 1e-3, "scheduler_type": "constant", "warmup_steps": 0}
SMALL = {
    "diffusion_policy": {
        "unet": {"down_dims": [8, 16], "n_groups": 4, "diffusion_step_embed_dim": 8},
        "ddpm": {"num_train_timesteps": 10, "num_inference_timesteps": 2},
    },
    "flow_matching": {
        "unet": {"enabled": False},
        "transformer": {"enabled": True, "embed_dim": 16, "num_layers": 1},
    },
    "act": {"transformer": {"embed_dim": 16, "feedforward_dim": 16, "num_heads": 2}},
    "vq_bet": {
        "transformer": {"embed_dim": 16, "num_layers": 1, "num_heads": 2},
    },
}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "demos.hdf5"
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for i in range(2):
            demo = file.create_group(f"data/demo_{i}")
            for camera in CAMERAS:
                demo[f"obs/{camera}"] = rng.integers(0, 255, (6, 40, 40, 3), dtype=np.uint8)
            demo["obs/speed"] = rng.normal(size=(6, 2))
            demo["actions"] = rng.uniform(-1, 1, (6, 2))
            demo["rewards"] = demo["dones"] = np.zeros(6)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "backbone", ["ShallowConv", pytest.param("ResNet18Conv", marks=pytest.mark.thorough)]
)
@pytest.mark.parametrize(
    "name",
    [
        *("diffusion_policy", "act"),
        *(pytest.param(x, marks=pytest.mark.thorough) for x in ("flow_matching", "vq_bet")),
    ],
)
def test_two_cameras_are_seen(images, tmp_path, name, backbone):
    """The backbones of both learn, without statistics of batches, and what is random in training
    is not while acting."""
    observation = {
        "modalities": {"obs": {"low_dim": ["speed"], "rgb": CAMERAS}},
        "encoder": {
            "rgb": {
                "core_kwargs": {"backbone_class": backbone},
                "obs_randomizer_class": ["ColorRandomizer", "CropRandomizer"],
                "obs_randomizer_kwargs": [{}, {"crop_height": 36, "crop_width": 36}],
            }
        },
    }
    optimizers = config_factory(name).algo.optim_params
    changes = {
        "experiment": {"epoch_every_n_steps": 2, "rollout": {"enabled": False}},
        "train": {
            "data": str(images),
            "output_dir": str(tmp_path),
            "batch_size": 2,
            "num_epochs": 2,
            "cuda": False,
        },
        "algo": {
            **SMALL[name],
            "horizon": CHUNKS | {"observation_horizon": 2},
            "optim_params": {net: {"learning_rate": RATE} for net in optimizers},
        },
        "observation": observation,
    }
    config = config_factory(name, changes)
    trainer = Trainer(config)
    nets = trainer.algo.nets
    backbones = [n for n, p in nets.named_parameters() if ".backbone." in n and p.ndim == 4]
    before = {name: nets.get_parameter(name).detach().clone() for name in backbones}
    list(trainer())
    moves = [float((nets.get_parameter(n).detach() - x).abs().max()) for n, x in before.items()]
    assert len(moves) >= 2 * 4 and min(moves) > 1e-4  # more than weights decay
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in nets.modules())

    rng = np.random.default_rng(1)
    obs = {camera: rng.integers(0, 255, (40, 40, 3), dtype=np.uint8) for camera in CAMERAS}
    obs["speed"] = np.zeros(2)
    policy = RolloutPolicy(trainer.algo)

    actions = []
    for _ in range(2):
        policy.start_episode(seed=0)
        actions.append(policy(obs))
    np.testing.assert_array_equal(*actions)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_goals_are_seen(small_config, name):
    """In training, and in the actions that follow from the same observation."""
    changes = {
        "algo": SMALL[name] | {"horizon": CHUNKS | {"observation_horizon": 2}},
        "train": {"goal_mode": "last"},
        "observation": {"modalities": {"goal": {"low_dim": ["position"]}}},
    }
    trainer = Trainer(small_config(changes, name))
    list(trainer())
    policy = RolloutPolicy(trainer.algo)
    obs = {"position": np.zeros(3), "speed": np.zeros(2)}
    actions = []
    for goal in (np.zeros(3), np.ones(3)):
        policy.start_episode(seed=0)
        actions.append([policy(obs, {"position": goal}) for _ in range(2)])
    assert not np.array_equal(*actions)
    with pytest.raises(ValueError, match="environment 0"):
        policy(obs)
    frames = {key: torch.zeros(1, 2, *x.shape) for key, x in obs.items()}
    with pytest.raises(ValueError, match="observation.modalities.goal"):
        trainer.algo.chunk(frames)
