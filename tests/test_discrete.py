"""Discrete actions from a recording to an evaluation, in CartPole; and where they do not belong."""

import runpy

import h5py
import numpy as np
import pytest
import torch
from conftest import ROOT, train_completely

from offrl import RolloutPolicy, Trainer, config_factory, policy_from_checkpoint
from offrl.__main__ import main
from offrl.checkpoint import env_from_checkpoint, write_checkpoint
from offrl.config.files import read_config_file
from offrl.data.sequence import SequenceDataset
from offrl.training import Proxies
from offrl.tree import merge

DISCRETE = {"action_config": {"actions": {"format": "discrete"}}}
SMALL = {"bc": {"actor_layer_dims": [32]}, "discrete_cql": {"critic": {"layer_dims": [32, 32]}}}


@pytest.fixture(scope="module")
def cart_pole(tmp_path_factory):
    path = tmp_path_factory.mktemp("cart_pole") / "demos.hdf5"
    runpy.run_path(str(ROOT / "examples/record_cart_pole.py"))["record"](path, 30)
    return path


def cart_pole_config(name, path, output_dir, num_steps=300):
    rollout = {"n": 4, "horizon": 200, "rate": 2, "num_workers": 1}
    rate = {"learning_rate": {"initial": 3e-3}}
    small = {
        "algo_name": name,
        "experiment": {"rollout": rollout, "epoch_every_n_steps": num_steps},
        "train": {"data": str(path), "output_dir": str(output_dir), "num_epochs": 2, **DISCRETE},
        "algo": SMALL[name]
        | {"optim_params": {net: rate for net in config_factory(name).algo.optim_params}},
    }
    example = read_config_file(ROOT / "examples/discrete_cql.json")
    return config_factory(name, merge(example, small))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bc", pytest.param("discrete_cql", marks=pytest.mark.thorough)])
def test_a_recorded_policy_is_learned_evaluated_and_recorded_again(cart_pole, tmp_path, name):
    with h5py.File(cart_pole) as file:
        assert file["data/demo_0/actions"].dtype == np.int64
    trainer = Trainer(cart_pole_config(name, cart_pole, tmp_path / "runs"))
    (logs,) = (r["logs"] for r in train_completely(trainer) if r["type"] == "rollout")
    assert logs["Crashed"] == 0 and logs["Return"] > 100  # pushing at random: about 20

    policy, content = policy_from_checkpoint(trainer.run.last_checkpoint, device="cpu")
    env, _ = env_from_checkpoint(ckpt_dict=content)
    obs, _ = env.reset(seed=0)
    policy.start_episode(seed=0)
    action = policy(obs)
    assert isinstance(action, np.integer) and env.action_space.contains(action)
    with pytest.raises(ValueError, match="flat"):
        policy({"flat": np.full(4, np.nan)})

    del content["env_metadata"]
    with pytest.raises(ValueError, match="env_metadata"):
        env_from_checkpoint(ckpt_dict=content)
    env, _ = env_from_checkpoint(ckpt_dict=content, env_name="CartPole-v1")
    assert env.reset(seed=0)[0]["flat"].tolist() == obs["flat"].tolist()

    recorded = str(tmp_path / "recorded.hdf5")
    source = str(trainer.run.last_checkpoint)
    options = ["--n", "3", "--horizon", "60", "--workers", "1", "--record", recorded]
    assert main(["rollout", "--checkpoint", source, *options]) == 0
    again = SequenceDataset(recorded, ["flat"], action_config=DISCRETE["action_config"])
    assert again.ac_dim == 2 and again.n_demos == 3
    list(Trainer(cart_pole_config(name, recorded, tmp_path / "runs", num_steps=5))())


@pytest.fixture
def discrete_demos(demos):
    with h5py.File(demos, "a") as file:
        for demo in file["data"].values():
            steps = len(demo["actions"])
            del demo["actions"]
            demo["actions"] = np.arange(steps) % 3
            demo["obs/picture"] = np.full((steps, 12, 10, 3), 50 * (steps % 3), np.uint8)
    return demos


@pytest.mark.parametrize("name", ["iql", "td3_bc", "bcq"])
def test_algorithms_for_real_numbers_refuse_discrete_actions(small_config, discrete_demos, name):
    with pytest.raises(ValueError, match=f"actions.format: .*{name} .*discrete_cql"):
        Trainer(small_config({"train": DISCRETE}, name))
    with pytest.raises(ValueError, match="demo_0/actions .*discrete_cql"):
        Trainer(small_config({}, name))


@pytest.mark.parametrize("name", ["ddqn", "discrete_bcq", "discrete_cql"])
def test_algorithms_for_discrete_actions_refuse_real_numbers(small_config, demos, name):
    with pytest.raises(ValueError, match="actions.format: .*demo_0/actions"):
        Trainer(small_config({}, name))
    real = {"action_config": {"actions": {"format": None}}}
    with pytest.raises(ValueError, match=f'actions.format: .*{name} .*"discrete", .* iql'):
        Trainer(small_config({"train": real}, name))


@pytest.mark.parametrize("name", ["ddqn", "discrete_bcq", "discrete_cql"])
def test_they_are_measured_without_an_environment(small_config, discrete_demos, name):
    experiment = {"proxies": {"enabled": True}}
    trainer = Trainer(small_config({"train": DISCRETE, "experiment": experiment}, name))
    *_, logs = (r["logs"] for r in Proxies(trainer)(trainer()) if r["type"] == "proxy")
    assert logs["Action_Difference"] <= 2 and np.isfinite(logs["TD_Error"])
    # What was done has, by these critics, no more value than the best of them.
    assert name != "ddqn" or logs["Advantage_Mean"] <= 0


@pytest.mark.parametrize("head", ["gaussian", "gmm", "vae"])
def test_other_heads_contradict_discrete_actions(small_config, discrete_demos, head):
    with pytest.raises(ValueError, match=f"algo.{head}.enabled: "):
        Trainer(small_config({"train": DISCRETE, "algo": {head: {"enabled": True}}}))


@pytest.mark.parametrize("name", ["bc", "ddqn", "discrete_bcq", "discrete_cql"])
def test_images_goals_and_frames_are_seen(small_config, discrete_demos, name):
    shallow = {
        "backbone_class": "ShallowConv",
        "feature_dimension": 8,
        "pool_kwargs": {"num_kp": 4},
    }
    crop = {"obs_randomizer_class": "CropRandomizer"} | {
        "obs_randomizer_kwargs": {"crop_height": 8, "crop_width": 8}
    }
    overrides = {
        "train": DISCRETE | {"goal_mode": "last", "frame_stack": 2},
        "observation": {
            "modalities": {
                "obs": {"low_dim": ["speed"], "rgb": ["picture"]},
                "goal": {"low_dim": ["position"]},
            },
            "encoder": {"rgb": {"core_kwargs": shallow} | crop},
        },
    }
    trainer = Trainer(small_config(overrides, name))
    list(trainer())
    algo = trainer.algo
    algo.set_eval()

    def answers(picture=0, goal=0.0, earlier=0.0):
        speed = torch.tensor([[[earlier] * 2, [0.0] * 2]])
        frames = torch.full((1, 2, 12, 10, 3), picture, dtype=torch.uint8)
        goal = {"position": torch.full((1, 3), goal)}
        obs = algo.prepare({"speed": speed, "picture": frames}, goal)
        return algo.nets["policy"](obs)[0].logits if name == "bc" else algo.scores(obs)

    with torch.no_grad():
        plain = answers()
        changes = {"picture": 200, "goal": 1.0} | ({} if name == "bc" else {"earlier": 1.0})
        for what, value in changes.items():
            assert not torch.equal(answers(**{what: value})[..., -1, :], plain[..., -1, :])
    policy = RolloutPolicy(algo)
    policy.start_episode(seed=0)
    obs = {"speed": np.zeros(2), "picture": np.zeros((12, 10, 3), np.uint8)}
    assert policy(obs, {"position": np.zeros(3)}) in range(3)


def test_robomimic_has_no_discrete_policies(small_config, discrete_demos, tmp_path, capsys):
    trainer = Trainer(small_config({"train": DISCRETE}))
    write_checkpoint(tmp_path / "ours.pth", trainer.state())
    paths = [str(tmp_path / name) for name in ("ours.pth", "theirs.pth")]
    assert main(["export-robomimic", *paths]) == 1
    assert "robomimic has no policy for discrete actions" in capsys.readouterr().err


def test_a_stochastic_policy_can_be_evaluated_as_it_is(small_config, discrete_demos):
    algo = {"categorical": {"low_noise_eval": False}}
    actions = {}
    for name, changes in (("likeliest", {}), ("sampled", algo)):
        policy = RolloutPolicy(Trainer(small_config({"train": DISCRETE, "algo": changes})).algo)
        policy.start_episode(seed=0)
        obs = {"position": np.zeros(3), "speed": np.zeros(2)}
        actions[name] = {int(policy(obs)) for _ in range(50)}
    assert len(actions["likeliest"]) == 1 and actions["sampled"] == {0, 1, 2}
