"""Policies that see: from uint8 images in a file to actions, in training and acting."""

import json

import h5py
import numpy as np
import pytest
import torch

from offrl import RolloutPolicy, Trainer, policy_from_checkpoint
from offrl.__main__ import main
from offrl.envs.rendering import working_backend
from offrl.registry import MODALITIES
from offrl.specs import Modality
from offrl.training import Checkpointer
from offrl.tree import leaves

SHALLOW = {"backbone_class": "ShallowConv", "feature_dimension": 8, "pool_kwargs": {"num_kp": 4}}


@pytest.fixture
def image_config(small_config, demos):
    """A config whose dataset has pictures, a depth map and a scan."""
    rng = np.random.default_rng(0)
    with h5py.File(demos, "r+") as file:
        for demo in file["data"].values():
            steps = len(demo["actions"])
            demo["obs/picture"] = rng.integers(0, 255, (steps, 12, 10, 3), "uint8")
            demo["obs/distance"] = rng.random((steps, 12, 10, 1), "float32")
            demo["obs/laser"] = rng.random((steps, 40), "float32")
    crop = {"obs_randomizer_class": "CropRandomizer"} | {
        "obs_randomizer_kwargs": {"crop_height": 8, "crop_width": 8}
    }
    observation = {
        "modalities": {
            "obs": {
                "low_dim": ["speed"],
                "rgb": ["picture"],
                "depth": ["distance"],
                "scan": ["laser"],
            }
        },
        "encoder": {"rgb": {"core_kwargs": SHALLOW} | crop, "depth": {"core_kwargs": SHALLOW}},
    }

    def make(train=None, algo=None):
        return small_config({"observation": observation, "train": train or {}, "algo": algo or {}})

    return make


RNN = {"rnn": {"enabled": True, "horizon": 2, "hidden_dim": 8}}
VAE = {"vae": {"enabled": True}}

SEEN = [
    *((cache, {}) for cache in ("all", "low_dim", None)),
    *(("all", algo) for algo in (RNN, VAE)),
    *(
        pytest.param(cache, algo, marks=pytest.mark.thorough)
        for cache in ("low_dim", None)
        for algo in (RNN, VAE)
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("cache", "algo"), SEEN)
def test_a_policy_that_sees_trains_and_acts(image_config, tmp_path, cache, algo):
    train = {"hdf5_cache_mode": cache, "seq_length": 2, "hdf5_normalize_obs": True}
    trainer = Trainer(image_config(train, algo))
    list(Checkpointer(trainer)(trainer()))
    policy, content = policy_from_checkpoint(trainer.run.last_checkpoint, device="cpu")
    assert content["shape_metadata"]["all_shapes"]["picture"] == [3, 12, 10]
    raw = {
        "speed": np.zeros(2),
        "picture": np.full((12, 10, 3), 200, np.uint8),
        "distance": np.zeros((12, 10, 1)),
        "laser": np.zeros(40),
    }
    policy.start_episode(seed=0)
    first = policy(raw)
    policy.start_episode(seed=0)
    np.testing.assert_array_equal(policy(raw), first)
    dark = RolloutPolicy(policy.policy)
    dark.start_episode(seed=0)
    assert not np.array_equal(dark(raw | {"picture": np.zeros((12, 10, 3), np.uint8)}), first)

    assert main(["export-robomimic", str(trainer.run.last_checkpoint), f"{tmp_path}/out.pth"]) == 0
    exported = torch.load(tmp_path / "out.pth", weights_only=True)
    for key, shape in content["shape_metadata"]["all_shapes"].items():
        assert np.shape(exported["obs_normalization_stats"][key]["scale"]) == (1, *shape)
    back, _ = policy_from_checkpoint(tmp_path / "out.pth", device="cpu")
    back.start_episode(seed=0)
    np.testing.assert_array_equal(back(raw), first)


def test_policies_learn_from_pictures_whose_channels_lie_last(image_config, demos):
    rng = np.random.default_rng(1)
    with h5py.File(demos, "r+") as file:
        for demo in file["data"].values():
            goes_right = rng.random(len(demo["actions"])) > 0.5
            demo["actions"][:, 0] = np.where(goes_right, 0.8, -0.8)
            light = np.where(goes_right, 220, 20)[:, None, None, None]
            demo["obs/picture"][:, :, 5:] = light
            demo["obs/picture"][:, :, :5] = 240 - light
    config = image_config({"channels_last": True, "batch_size": 16, "num_epochs": 1})
    config.experiment.epoch_every_n_steps = 80
    config.algo.optim_params["policy"].learning_rate.initial = 3e-3
    trainer = Trainer(config)
    list(trainer())
    of_colors = [p for p in trainer.algo.nets.parameters() if p.ndim == 4 and p.shape[1] == 3]
    assert of_colors and not any(p.is_contiguous() for p in of_colors)
    rows = trainer.dataset.get_batch(torch.arange(len(trainer.dataset)))
    trainer.algo.set_eval()
    with torch.no_grad():
        actions = trainer.algo.get_action({key: x[:, 0] for key, x in rows["obs"].items()})
    assert (actions[:, 0] * rows["actions"][:, 0, 0] > 0.2).all(), actions[:, 0]


def test_a_longer_training_draws_as_if_it_had_been_so_long(image_config, demos, tmp_path):
    with h5py.File(demos, "r+") as file:
        for demo in file["data"].values():
            demo["obs/first"] = np.moveaxis(demo["obs/picture"][()], -1, 1) / 255
    random = ["ShiftRandomizer", "CropRandomizer", "ColorRandomizer", "GaussianNoiseRandomizer"]
    options = [{"pad": 2}, {"crop_height": 9, "crop_width": 8}, {}, {"noise_std": 0.1}]
    weights = {}
    for name, num_epochs in (("whole", 2), ("longer", 1)):
        config = image_config({"num_epochs": num_epochs})
        config.experiment.name = name
        config.train.data[0].images = {"first": ["channels_first", "unit_floats"]}
        config.observation.modalities.obs["rgb"] = ["first"]
        config.observation.encoder["rgb"].obs_randomizer_class = random
        config.observation.encoder["rgb"].obs_randomizer_kwargs = options
        (tmp_path / "config.json").write_text(config.dump())
        assert main(["train", "--config", f"{tmp_path}/config.json"]) == 0
        (run,) = (tmp_path / "runs" / name).iterdir()
        if name == "longer":
            assert main(["train", "--resume", str(run), "--set", "train.num_epochs=2"]) == 0
        weights[name] = leaves(torch.load(run / "last.pth", weights_only=True)["model"]["nets"])
    assert all(torch.equal(x, weights["longer"][key]) for key, x in weights["whole"].items())
    # robomimic has no shifts, which are at rest while a policy acts.
    assert main(["export-robomimic", str(run), f"{tmp_path}/out.pth"]) == 0
    exported = json.loads(torch.load(tmp_path / "out.pth", weights_only=True)["config"])
    encoder = exported["observation"]["encoder"]["rgb"]
    assert encoder["obs_randomizer_class"] == random[1:]
    assert encoder["obs_randomizer_kwargs"] == options[1:]
    # Its trainings take neither "auto" nor null there.
    train = exported["train"]
    assert train["hdf5_cache_mode"] == "low_dim" and train["num_data_workers"] == 0
    assert not {"cache_gb", "cache_dir"} & {*train}


def test_pictures_of_another_kind_are_refused(image_config, demos):
    def spoil(change):
        with h5py.File(demos, "r+") as file:
            for demo in file["data"].values():
                picture = demo["obs/picture"][()]
                del demo["obs/picture"]
                demo["obs/picture"] = change(picture)

    spoil(lambda x: x.astype("float32") / 255)
    with pytest.raises(ValueError, match="'picture'.*float32"):
        Trainer(image_config())
    spoil(lambda x: (255 * x).astype("uint8").transpose(0, 3, 1, 2))
    with pytest.raises(ValueError, match=r"'picture'.*\[3, 12, 10\]"):
        Trainer(image_config())


def test_a_modality_of_a_users_own(small_config):
    @MODALITIES.register("touch")
    class Touch(Modality):
        def process(self, x):
            return 10 * x.float()

    encoder = {"encoder": {"touch": {}}}
    keys = {"modalities": {"obs": {"low_dim": ["speed"], "touch": ["position"]}}}
    algo = Trainer(small_config({"observation": keys | encoder})).algo
    obs = {"speed": torch.ones(1, 1, 2), "position": torch.ones(1, 1, 3)}
    assert float(algo.prepare_obs(obs)["position"].max()) == 10.0
    with pytest.raises(ValueError, match="observation.encoder: .*'touch'"):
        Trainer(small_config({"observation": keys}))


@pytest.mark.thorough
@pytest.mark.skipif(working_backend() is None, reason="no rendering back end")
def test_images_are_rendered_from_states_and_trained_on(tmp_path, capsys):
    path, runs = str(tmp_path / "images.hdf5"), str(tmp_path / "runs")
    source = ["--dataset", "datasets/lift/low_dim.hdf5", "--n", "2", "--size", "24"]
    cameras = ["--cameras", "agentview", "robot0_eye_in_hand"]
    assert main(["images", *source, *cameras, "--output", path]) == 0
    with h5py.File(path) as file:
        demo = file["data/demo_0"]
        assert demo["obs/agentview_image"].shape == (len(demo["actions"]), 24, 24, 3)
        assert demo["obs/agentview_image"][()].std() > 10
        assert not np.array_equal(
            demo["obs/agentview_image"][()], demo["obs/robot0_eye_in_hand_image"][()]
        )
        assert "mask/train" in file and demo["states"].dtype == np.float64
    crop = 'observation.encoder.rgb.obs_randomizer_kwargs={"crop_height": 20, "crop_width": 20}'
    options = ["--debug", "--dataset", path, "--output", runs, "--set", crop]
    options += ["--set", "experiment.rollout.horizon=3", "--set", "train.batch_size=4"]
    assert main(["train", "--config", "bc_image.json", *options]) == 0
    assert "success rate" in capsys.readouterr().out
