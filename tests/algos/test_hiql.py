"""hiql's config, and what it is conditioned on."""

import h5py
import numpy as np
import pytest
import torch
from conftest import write_demos

from offrl import RolloutPolicy, Trainer, config_factory
from offrl.evaluation.proxies import proxies
from offrl.training import Proxies
from offrl.tree import merge

SMALL = {"layer_dims": [16, 16]}
ALGO = {"subgoal_steps": 3, "representation_dim": 4, "critic": SMALL, "planner": SMALL}
ALGO |= {"actor": SMALL}


@pytest.fixture
def config(small_config):
    return lambda **changes: small_config(merge({"algo": ALGO}, changes), "hiql")


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
        ({"train": {"goal_rewards": False}}, "train.goal_rewards: hiql"),
        (
            {"observation": {"modalities": {"goal": {"low_dim": []}}}},
            "train.goal_rewards: .*observation.modalities.goal",
        ),
        ({"algo": {"critic": {"use_huber": True}}}, "algo.critic.use_huber"),
        (
            {"algo": {"critic": {"value_bounds": [-50, 0]}}},
            "algo.critic.value_bounds: .*-100 .*0",
        ),
        (
            {"experiment": {"proxies": {"enabled": True, "fqe_steps": 5}}},
            "experiment.proxies.fqe_steps",
        ),
        (
            {"algo": {"subgoal_steps": 8}},
            "algo.subgoal_steps: 8.* 7",
        ),
        ({"train": {"goal_mode": "last"}}, 'train.goal_rewards: .*train.goal_mode.*"mixture"'),
        (
            {"observation": {"modalities": {"goal": {"low_dim": ["depth"]}}}},
            "'obs/depth'.*observation.modalities",
        ),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(config, changes, words):
    with pytest.raises(ValueError, match=words):
        Proxies(Trainer(config(**changes)))


REWARDED = {"goal_rewards": True, "goal_mode": "mixture"}


@pytest.mark.parametrize(
    ("name", "seen", "words"),
    [
        ("iql", [], "train.goal_rewards: .*observation.modalities.goal"),
        ("bc", ["position"], "train.goal_rewards: bc"),
    ],
)
def test_rewards_of_goals_need_goals_and_who_learns_from_them(small_config, name, seen, words):
    goals = {"modalities": {"goal": {"low_dim": seen}}}
    with pytest.raises(ValueError, match=words):
        Trainer(small_config({"train": REWARDED, "observation": goals}, name))


def terms(algo, batch):
    """The losses as the paper has them, of networks with two values."""
    vf, slow, config = algo.nets["vf"], algo.nets["vf_target"], algo.algo_config
    obs, goal, high = batch["obs"], batch["goal_obs"], batch["high_goal_obs"]
    target = batch["rewards"] + (1 - batch["dones"]) * 0.99 * slow(batch["next_obs"], goal)
    error = target - vf(obs, goal)
    value_loss = (torch.where(error > 0, 0.7, 0.3) * error**2).mean()

    def v(obs, goal):
        return (vf(obs, goal)[0] + vf(obs, goal)[1]) / 2

    ahead = v(batch["waypoint_obs"], high) - v(obs, high)
    way = {key: x[:, -1] for key, x in batch["waypoint_obs"].items()}
    miss = algo.nets["planner"](obs, high)[0]["representation"] - vf.representation(obs, way)
    weight = (ahead / config.planner.adv.beta).exp().clamp(max=100)
    planner_loss = (weight * 0.5 * (miss**2).sum(-1)).mean()

    near = batch["subgoal_obs"]
    phi = {"representation": vf.representation(obs, near)[:, 0]}
    weight = ((v(batch["next_obs"], near) - v(obs, near)) / config.adv.beta).exp().clamp(max=100)
    log_prob = algo.nets["actor"](obs, phi)[0].log_prob(batch["actions"])
    return {
        "vf/v_loss": value_loss,
        "planner/loss": planner_loss,
        "actor/loss": -(weight * log_prob).mean(),
    }


def test_losses_are_those_of_the_paper(config):
    algo = ALGO | {"adv": {"beta": 0.05}}
    algo["planner"] = SMALL | {"adv": {"beta": 0.002}}
    trainer = Trainer(config(algo=algo, train={"batch_size": 15}))
    algo, batches = trainer.algo, iter(trainer.loader)
    for weight in algo.nets["vf_target"].parameters():  # far from the others
        weight.data.mul_(1.5)
    batch = algo.process_batch_for_training(next(batches))
    expected = {name: float(x.detach()) for name, x in terms(algo, batch).items()}
    info = algo.train_on_batch(batch, epoch=1, validate=True)
    for name, value in expected.items():
        assert float(info[name]) == pytest.approx(value, rel=1e-5), name


def test_each_network_learns_from_its_own_loss(config):
    trainer = Trainer(config())
    algo = trainer.algo
    batch = algo.process_batch_for_training(next(iter(trainer.loader)))
    for name, (loss, _) in {
        "planner": algo.pi_high_loss(batch),
        "actor": algo.pi_low_loss(batch),
    }.items():
        algo.nets.zero_grad(set_to_none=True)
        loss.backward()
        learns = {
            n for n, net in algo.nets.items() if any(p.grad is not None for p in net.parameters())
        }
        assert learns == {name}


def test_the_actor_looks_one_step_ahead_whatever_n_step_is(config):
    algo = ALGO | {"n_step": 3}
    trainer = Trainer(config(algo=algo))
    raw = next(iter(trainer.loader))
    batch = trainer.algo.process_batch_for_training(raw)
    for key, later in raw["next_obs"].items():
        if key != "pad_mask":
            assert torch.equal(batch["following_obs"][key][:, 0], later[:, 0].float())
            assert torch.equal(batch["next_obs"][key][:, 0], later[:, 2].float())


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
    with pytest.raises(ValueError, match="hiql: "):
        algo.get_state_action_value(obs, first, goal)


@pytest.mark.slow
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
        "algo": ALGO,
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
        changes["algo"] = ALGO
    trainer = Trainer(small_config(changes, name))
    data = trainer.dataset.single_steps()
    assert proxies(trainer.algo, data, data).keys() == {"Action_Difference"}
    with pytest.raises(ValueError, match=f"{name}: .*train.goal_rewards"):
        proxies(trainer.algo, data, data, fqe_steps=1)
