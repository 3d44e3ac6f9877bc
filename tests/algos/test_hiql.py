"""hiql's config, and what it is conditioned on."""

import h5py
import numpy as np
import pytest
import torch
from conftest import write_demos

from offrl import RolloutPolicy, Trainer, config_factory
from offrl.evaluation.proxies import proxies

SMALL = {"layer_dims": [16, 16]}
ALGO = {"subgoal_steps": 3, "representation_dim": 4, "critic": SMALL, "planner": SMALL}


@pytest.fixture
def config(small_config):
    return lambda **changes: small_config({"algo": ALGO | {"actor": SMALL}} | changes, "hiql")


def test_a_goal_is_all_that_is_seen_unless_the_config_says_more(config):
    obs = {"low_dim": ["position", "lang_emb"], "rgb": ["view"]}
    seen = {"observation": {"modalities": {"obs": obs}}}
    goal = config_factory("hiql", seen).observation.modalities.goal
    assert (goal["low_dim"], goal["rgb"]) == (["position"], ["view"])
    seen["observation"]["modalities"]["goal"] = {"low_dim": ["position"]}
    goal = config_factory("hiql", seen).observation.modalities.goal
    assert (goal["low_dim"], goal.get("rgb", [])) == (["position"], [])
    train = config_factory("hiql").train
    assert train.goal_rewards and train.goal_mode == "mixture"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train": {"goal_rewards": False}}, "train.goal_rewards: hiql learns to reach goals"),
        (
            {"observation": {"modalities": {"goal": {"low_dim": []}}}},
            "observation.modalities.goal: name the observations",
        ),
        ({"algo": {"critic": {"use_huber": True}}}, "algo.critic.use_huber: .*set it to false"),
        (
            {"algo": {"subgoal_steps": 8}},
            "algo.subgoal_steps: 8, but the longest demonstration has 7 steps",
        ),
        ({"train": {"goal_mode": "last"}}, 'goal_rewards: .*goal_mode to "mixture"'),
        (
            {"observation": {"modalities": {"goal": {"low_dim": ["depth"]}}}},
            "has no 'obs/depth'.*observation.modalities",
        ),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(config, changes, words):
    with pytest.raises(ValueError, match=words):
        Trainer(config(**changes))


def test_a_subgoal_is_a_representation_of_length_root_r(config):
    algo = Trainer(config()).algo
    obs = {"position": torch.randn(5, 3), "speed": torch.randn(5, 2)}
    goal = {key: torch.randn_like(x) for key, x in obs.items()}
    assert algo.current_subgoal is None
    algo.set_eval()
    first = algo.get_action(obs, goal)
    (phi,) = algo.current_subgoal.values()
    assert phi.shape == (5, 4) and torch.allclose(phi.norm(dim=-1), torch.tensor(2.0))
    assert not torch.allclose(first, algo.get_action(obs, obs))
    algo.reset()
    assert algo.current_subgoal is None
    value = algo.get_state_value(obs, goal)
    assert value.shape == (5, 1) and not torch.allclose(value, algo.get_state_value(obs, obs))
    with pytest.raises(ValueError, match="its values are of states and goals, not of actions"):
        algo.get_state_action_value(obs, first, goal)


def test_images_are_goals_too(small_config, tmp_path):
    shapes = {"position": (3,), "view": (32, 32, 3)}
    path = write_demos(tmp_path / "images.hdf5", obs={"position": (3,)})
    with h5py.File(path, "a") as file:
        for demo in file["data"].values():
            size = (len(demo["actions"]), *shapes["view"])
            demo["obs/view"] = np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)
    core = {
        "core_class": "VisualCore",
        "core_kwargs": {"backbone_class": "ShallowConv", "pool_class": None},
    }
    core["core_kwargs"] |= {"feature_dimension": 8}
    observation = {
        "modalities": {"obs": {"low_dim": ["position"], "rgb": ["view"]}},
        "encoder": {"rgb": core},
    }
    changes = {
        "train": {"data": str(path), "frame_stack": 2},
        "observation": observation,
        "algo": ALGO | {"actor": SMALL},
    }
    trainer = Trainer(small_config(changes, "hiql"))
    assert {r["type"] for r in trainer()} >= {"train", "epoch"}
    policy = RolloutPolicy(trainer.algo)
    policy.start_episode(seed=0)
    obs = {"position": np.zeros(3), "view": np.zeros((32, 32, 3), np.uint8)}
    light = obs | {"view": np.full((32, 32, 3), 255, np.uint8)}
    assert not np.allclose(policy(obs, obs), policy(obs, light))


@pytest.mark.parametrize("name", ["hiql", "iql"])
def test_proxies_leave_out_values_of_other_rewards(small_config, name):
    changes = {
        "train": {"goal_rewards": True, "goal_mode": "mixture"},
        "observation": {"modalities": {"goal": {"low_dim": ["position"]}}},
    }
    if name == "hiql":
        changes["algo"] = ALGO | {"actor": SMALL}
    trainer = Trainer(small_config(changes, name))
    data = trainer.dataset.single_steps()
    assert proxies(trainer.algo, data, data).keys() == {"Action_Difference"}
    with pytest.raises(ValueError, match="goal_rewards, but fitted Q evaluation"):
        proxies(trainer.algo, data, data, fqe_steps=1)
