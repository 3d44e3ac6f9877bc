"""What planners predict, in whose units, and from which data."""

import json
import logging

import h5py
import numpy as np
import pytest
import torch
from conftest import GOLDEN

from offrl import (
    RolloutPolicy,
    Trainer,
    algo_factory,
    config_factory,
    policy_from_checkpoint,
)
from offrl.__main__ import main
from offrl.data.loader import BatchLoader
from offrl.data.sequence import SequenceDataset
from offrl.evaluation.proxies import proxies
from offrl.seeding import seed_everything
from offrl.training import train
from offrl.tree import merge

KEYS = {"low_dim": ["position", "speed"]}
MODALITIES = {"modalities": {"obs": KEYS, "subgoal": KEYS}}
REGRESSION = {"vae": {"enabled": False}}
RATE = {"optim_params": {"goal_network": {"learning_rate": {"initial": 1e-3}}}}


def gl(overrides=None, shapes=None):
    overrides = merge({"observation": MODALITIES, "algo": {"subgoal_horizon": 3}}, overrides or {})
    config = config_factory("gl", overrides)
    return algo_factory("gl", config, shapes or {"position": (3,), "speed": (2,)}, 2, "cpu")


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_a_subgoal_is_what_follows_so_many_steps_or_the_end(demos, frame_stack):
    algo = gl({"train": {"frame_stack": frame_stack, "seq_length": 4}})
    dataset = SequenceDataset(
        demos, ["position", "speed"], frame_stack=frame_stack, seq_length=4, load_next_obs=True
    )
    with h5py.File(demos) as file:
        (first, *_) = (file[f"data/{demo}/obs/position"][()] for demo in dataset.demos)
    batch = dataset.get_batch(torch.arange(len(first)))
    ready = algo.process_batch_for_training(batch)
    assert ready["obs"]["position"].shape == (len(first), frame_stack, 3)
    for t, subgoal in enumerate(ready["target_subgoals"]["position"].numpy()):
        np.testing.assert_allclose(subgoal[0], first[min(t + 3, len(first) - 1)], rtol=1e-6)
    np.testing.assert_allclose(ready["obs"]["position"][:, -1].numpy(), first, rtol=1e-6)


def random_obs(n=5):
    return {"position": torch.randn(n, 3), "speed": torch.randn(n, 2)}


STATISTICS = {
    "position": {"scale": [[2.0, 3.0, 4.0]], "offset": [[1.0, 1.0, 1.0]]},
    "speed": {"scale": [[0.5, 0.5]], "offset": [[-1.0, 1.0]]},
}


@pytest.mark.parametrize("vae", [True, False])
def test_subgoals_are_learned_normalised_and_said_as_they_are_recorded(vae):
    algo = gl({"algo": {"vae": {"enabled": vae}}})
    algo.set_statistics(STATISTICS, {})
    again = gl({"algo": {"vae": {"enabled": vae}}})
    again.deserialize(algo.serialize())
    later = {key: x[:, None].repeat(1, 3, 1) for key, x in random_obs().items()}
    targets = algo.process_batch_for_training({"obs": later, "next_obs": later})["target_subgoals"]
    np.testing.assert_allclose(
        targets["speed"][:, 0], (later["speed"][:, 0] - torch.tensor([[-1.0, 1.0]])) / 0.5
    )
    obs = random_obs()
    for a in (algo, again):
        torch.manual_seed(0)
        said = a.get_subgoal_predictions(obs)
        torch.manual_seed(0)
        normalized = a._propose(a.prepare_states(obs), 1)
        torch.testing.assert_close(
            said["position"], normalized["position"][:, 0] * torch.tensor([2.0, 3.0, 4.0]) + 1.0
        )


def test_robomimics_planners_say_subgoals_as_they_are_recorded():
    content = torch.load(GOLDEN / "cases/gl/model.pth", weights_only=True)
    stats = {
        key: {"offset": np.full((1, *shape), 2.0).tolist(), "scale": np.full((1, *shape), 3.0)}
        for key, shape in content["shape_metadata"]["all_shapes"].items()
    }
    obs = {k: torch.randn(4, *s) for k, s in content["shape_metadata"]["all_shapes"].items()}
    plain = policy_from_checkpoint(ckpt_dict=content, device="cpu")[0].policy
    content["obs_normalization_stats"] = stats
    normalizing = policy_from_checkpoint(ckpt_dict=content, device="cpu")[0].policy
    expected = plain.get_subgoal_predictions({key: (x - 2.0) / 3.0 for key, x in obs.items()})
    actual = normalizing.get_subgoal_predictions(obs)
    for key, subgoal in expected.items():
        torch.testing.assert_close(actual[key], subgoal)


# Two futures: three steps on, all positions have moved by one, up or down, whatever the state.


def write_forks(path):
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for i in range(200):
            start, way = rng.uniform(-1, 1), rng.choice([-1.0, 1.0])
            steps = start + way * np.arange(7) / 3
            # What was is hidden: the way shows only later.
            file[f"data/demo_{i}/obs/x"] = steps[[0, 3, 3, 3]][:, None]
            file[f"data/demo_{i}/next_obs/x"] = steps[[3, 3, 3, 3]][:, None]
            file[f"data/demo_{i}/actions"] = np.zeros((4, 1))
            file[f"data/demo_{i}/dones"] = np.eye(4)[-1]
    return path


@pytest.fixture(scope="module")
def forks(tmp_path_factory):
    return write_forks(tmp_path_factory.mktemp("forks") / "forks.hdf5")


def trained(forks, steps=1000, **algo):
    seed_everything(0)
    modalities = {"obs": {"low_dim": ["x"]}, "subgoal": {"low_dim": ["x"]}}
    config = {
        "algo": RATE | {"subgoal_horizon": 3, "ae": {"planner_layer_dims": [32, 32]}} | algo,
        "observation": {"modalities": modalities},
    }
    planner = gl(config, {"x": (1,)})
    dataset = SequenceDataset(forks, ["x"], seq_length=3)
    starts = torch.arange(0, len(dataset), 4)  # of each demonstration
    for _ in range(steps):
        batch = dataset.get_batch(starts[torch.randperm(len(starts))[:64]])
        planner.train_on_batch(planner.process_batch_for_training(batch), epoch=1)
    return planner


@pytest.mark.slow
def test_a_regression_predicts_the_mean_of_what_may_come(forks):
    planner = trained(forks, steps=400, **REGRESSION)
    x = torch.linspace(-0.8, 0.8, 5)[:, None]
    predicted = planner.get_subgoal_predictions({"x": x})["x"]
    np.testing.assert_allclose(predicted.detach(), x, atol=0.25)


@pytest.mark.slow
@pytest.mark.parametrize(
    "prior",
    [
        {},
        pytest.param(
            {"learn": True, "is_conditioned": True, "use_gmm": True}, marks=pytest.mark.thorough
        ),
    ],
)
def test_a_vae_draws_each_of_them(forks, prior):
    dims = {name: [32, 32] for name in ("encoder_layer_dims", "decoder_layer_dims")}
    planner = trained(
        forks, vae=dims | {"enabled": True, "latent_dim": 2, "kl_weight": 0.02, "prior": prior}
    )
    planner.set_eval()
    x = torch.linspace(-0.8, 0.8, 5)[:, None]
    drawn = planner.sample_subgoals({"x": x}, num_samples=200)["x"]
    assert drawn.shape == (5, 200, 1)
    moved = (drawn - x[:, None]).detach().squeeze(-1)
    assert ((moved > 0.7).float().mean(1) > 0.2).all()
    assert ((moved < -0.7).float().mean(1) > 0.2).all()
    assert (moved.abs() < 1.5).float().mean() > 0.95


def test_subgoals_may_be_images(tmp_path):
    with h5py.File(tmp_path / "images.hdf5", "w") as file:
        rng = np.random.default_rng(0)
        demo = file.create_group("data/demo_0")
        demo["obs/view"] = rng.integers(0, 256, (6, 16, 16, 3), dtype=np.uint8)
        demo["actions"], demo["dones"] = np.zeros((6, 2)), np.eye(6)[-1]
    cores = {"core_kwargs": {"backbone_class": "ShallowConv", "feature_dimension": 8}}
    seen = {"rgb": ["view"], "low_dim": []}
    observation = {"modalities": {"obs": seen, "subgoal": seen}, "encoder": {"rgb": cores}}
    algo = gl({"observation": observation}, {"view": (3, 16, 16)})
    dataset = SequenceDataset(tmp_path / "images.hdf5", ["view"], seq_length=3)
    batch = algo.process_batch_for_training(next(iter(BatchLoader(dataset, 2, seed=0))))
    losses = [float(algo.train_on_batch(batch, epoch=1)["loss"]) for _ in range(20)]
    assert losses[-1] < losses[0]
    subgoal = algo.get_subgoal_predictions(
        {"view": batch["obs"]["view"][:, 0].movedim(1, -1).byte()}
    )
    assert subgoal["view"].shape == (2, 3, 16, 16)


# -- what a config says ---------------------------------------------------------------------------


def test_what_is_predicted_is_what_is_seen_unless_a_config_says_otherwise():
    def subgoals(modalities):
        config = config_factory("gl", {"observation": {"modalities": modalities}})
        return config.observation.modalities.subgoal

    seen = {"low_dim": ["position"], "rgb": ["view"]}
    assert subgoals({"obs": seen}).low_dim == ["position"] and not subgoals({"obs": seen}).rgb
    stated = subgoals({"obs": seen, "subgoal": {"low_dim": ["speed"]}})
    assert stated.low_dim == ["speed"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"train": {"seq_length": 2}}, "train.seq_length: 2.*algo.subgoal_horizon"),
        (
            {"observation": {"modalities": {"subgoal": {"low_dim": []}}}},
            "observation.modalities.subgoal",
        ),
        ({"algo": {"vae": {"prior": {"use_gmm": True}}}}, "algo.vae.prior.use_gmm"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(overrides, words):
    with pytest.raises(ValueError, match=words):
        gl(overrides)


def small_gl(small_config, overrides=None):
    short = {"algo": {"subgoal_horizon": 3, "ae": {"planner_layer_dims": [8]}} | REGRESSION}
    return small_config(merge(short, overrides or {}), "gl")


def test_a_horizon_beyond_every_demonstration_is_refused(small_config):
    with pytest.raises(ValueError, match="algo.subgoal_horizon: 9"):
        Trainer(small_gl(small_config, {"algo": {"subgoal_horizon": 9}}))


def test_a_key_that_the_data_lacks_is_named(small_config):
    subgoal = {"observation": {"modalities": {"subgoal": {"low_dim": ["colour"]}}}}
    with pytest.raises(ValueError, match="demos.hdf5.*colour"):
        Trainer(small_gl(small_config, subgoal))


def test_robomimics_template_runs_with_a_dataset_alone(demos, tmp_path):
    """Its samples have one step, and its subgoals are ten steps on."""
    template = json.loads((GOLDEN / "configs/gl.json").read_text())
    assert template["train"]["seq_length"] == 1
    assert config_factory("gl", template).train.seq_length == 10
    stated = merge(template, {"train": {"seq_length": 5}})
    config = config_factory("gl", stated)
    with pytest.raises(ValueError, match="train.seq_length: 5"):
        algo_factory("gl", config, dict.fromkeys(["object"], (3,)) | SHAPES, 2, "cpu")


SHAPES = {"robot0_eef_pos": (3,), "robot0_eef_quat": (4,), "robot0_gripper_qpos": (2,)}


# -- planners do not act --------------------------------------------------------------------------


def test_nothing_is_evaluated_in_simulators_which_is_said_in_one_line(small_config, caplog):
    with caplog.at_level(logging.INFO, "offrl"):
        result = train(small_gl(small_config, {"experiment": {"rollout": {"enabled": True}}}))
    said = [r.getMessage() for r in caplog.records if "takes no actions" in r.getMessage()]
    assert said == ["no evaluation (gl takes no actions)"]
    assert result.describe()["result"] == "not measured"
    assert result.describe()["video"] == "none: no evaluation (gl takes no actions)"
    assert result.checkpoint is not None


def test_who_asks_a_planner_for_actions_is_told(small_config):
    trainer = Trainer(small_gl(small_config))
    policy = RolloutPolicy(trainer.algo)
    policy.start_episode()
    with pytest.raises(ValueError, match="gl: "):
        policy({key: x[0].numpy() for key, x in random_obs().items()})
    with pytest.raises(ValueError, match="gl: "):
        proxies(trainer.algo, trainer.dataset.single_steps(), trainer.dataset.single_steps())
    with pytest.raises(ValueError, match="experiment.proxies.enabled"):
        train(small_gl(small_config, {"experiment": {"proxies": {"enabled": True}}}))


def test_a_planner_is_exported_where_robomimic_can_say_the_same(small_config, tmp_path, capsys):
    vae = {"algo": {"vae": {"enabled": True, "latent_dim": 3}}}
    run = train(small_gl(small_config, vae)).run
    exported = str(tmp_path / "theirs.pth")
    assert main(["export-robomimic", str(run.last_checkpoint), exported]) == 0
    ours, back = (
        policy_from_checkpoint(path, device="cpu")[0].policy
        for path in (run.last_checkpoint, exported)
    )
    for algo in (ours, back):
        algo.set_eval()
    obs, said = random_obs(), []
    for algo in (ours, back):
        torch.manual_seed(0)
        said.append(algo.get_subgoal_predictions(obs))
    assert all(torch.equal(said[0][key], said[1][key]) for key in said[0])
    normalizing = {"train": {"hdf5_normalize_obs": True}}
    run = train(small_gl(small_config, normalizing)).run
    other = str(tmp_path / "other.pth")
    assert main(["export-robomimic", str(run.last_checkpoint), other]) == 1
    assert "robomimic's subgoals are never normalised" in capsys.readouterr().err
