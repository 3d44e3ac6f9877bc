"""Policies of two levels: what the actor follows, for how long, and what their configs say."""

import json

import h5py
import numpy as np
import pytest
import torch

from offrl import RolloutPolicy, algo_factory, config_factory
from offrl.__main__ import main
from offrl.data.sequence import SequenceDataset
from offrl.seeding import seed_everything
from offrl.tree import merge

SHAPES = {"position": (3,), "speed": (2,)}
KEYS = {"low_dim": ["position", "speed"]}
SEEN = {"modalities": {"obs": KEYS}}
PLANNER = {"subgoal_horizon": 3, "ae": {"planner_layer_dims": [16]}}
ACTOR = {"actor_layer_dims": [16], "rnn": {"hidden_dim": 16, "horizon": 3}}
HBC_ALGO = {"planner": PLANNER, "actor": ACTOR, "subgoal_update_interval": 4}
IRIS_ALGO = {
    "value_planner": {"planner": PLANNER, "num_samples": 6},
    "actor": ACTOR,
    "subgoal_update_interval": 4,
}
SMALL = {
    "hbc": {"algo": HBC_ALGO, "observation": {"planner": SEEN}},
    "iris": {"algo": IRIS_ALGO, "observation": {"value_planner": {"planner": SEEN}}},
}
BOTH = pytest.mark.parametrize("name", ["hbc", "iris"])


def make(name, overrides=None, shapes=SHAPES):
    seed_everything(0)
    config = config_factory(name, merge(SMALL[name], overrides or {}))
    return algo_factory(name, config, shapes, 2, "cpu")


def write_config(path, demos, name, overrides=None):
    whole = SMALL[name] | {
        "algo_name": name,
        "experiment": {
            "name": "test",
            "epoch_every_n_steps": 5,
            "rollout": {"enabled": False},
            "save": {"every_n_epochs": 1},
        },
    }
    train = {"data": str(demos), "output_dir": str(path.parent / "runs"), "cuda": False}
    train |= {"num_epochs": 3, "batch_size": 4}
    path.write_text(json.dumps(merge(merge(whole, {"train": train}), overrides or {})))
    return path


def episodes(num=4, steps=14):
    generator = torch.Generator().manual_seed(0)
    return [
        [
            {k: torch.randn(s, generator=generator).numpy() for k, s in SHAPES.items()}
            for _ in range(steps)
        ]
        for _ in range(num)
    ]


def subgoal_of(policy, env=0):
    state = policy._episodes[env].state
    return torch.cat([state["subgoal"][key].flatten() for key in sorted(state["subgoal"])])


@BOTH
def test_a_subgoal_lasts_for_its_interval(name):
    algo = make(name)
    policy = RolloutPolicy(algo)
    policy.start_episode(seed=0)
    subgoals = []
    for obs in episodes()[0]:
        policy(obs)
        subgoals.append(subgoal_of(policy))
    changes = [not torch.equal(a, b) for a, b in zip(subgoals, subgoals[1:], strict=False)]
    assert [step + 1 for step, changed in enumerate(changes) if changed] == [4, 8, 12]


@BOTH
def test_subgoals_of_different_ages_in_one_batch_are_those_of_each_alone(name):
    algo, whole = make(name), episodes()
    alone = []
    for seed, episode in enumerate(whole):
        policy = RolloutPolicy(algo, batch_size=4)
        policy.start_episode(seed=seed)
        alone.append([(policy(obs), subgoal_of(policy)) for obs in episode])
    together = RolloutPolicy(algo, batch_size=4)
    at = dict.fromkeys(range(4), 0)
    for turn in range(14 + 3 * 2):
        waiting = {env: whole[env][at[env]] for env in at if 0 <= turn - 2 * env < 14}
        for env in waiting:
            if at[env] == 0:
                together.start_episode(env=env, seed=env)
        for env, action in together.act(waiting).items() if waiting else ():
            expected, subgoal = alone[env][at[env]]
            np.testing.assert_allclose(action, expected, atol=1e-6, rtol=0)
            assert torch.equal(subgoal_of(together, env), subgoal)
            at[env] += 1
    assert set(at.values()) == {14}


@BOTH
def test_the_planner_rests_between_two_subgoals(name, monkeypatch):
    algo, calls = make(name), []
    plan = algo._plan
    monkeypatch.setattr(algo, "_plan", lambda *a: calls.append(1) or plan(*a))
    policy = RolloutPolicy(algo)
    policy.start_episode(seed=0)
    for obs in episodes()[0][:9]:
        policy(obs)
    assert len(calls) == 3


@BOTH
def test_the_actor_follows_its_subgoal(name):
    algo = make(name)
    obs = {key: torch.zeros(1, 1, *shape) for key, shape in SHAPES.items()}
    actor, actions = algo.parts["actor"], []
    for value in (0.0, 3.0):
        goal = {key: torch.full((1, *shape), value) for key, shape in SHAPES.items()}
        actions.append(actor.act(obs, goal)[0])
    assert not torch.allclose(*actions)
    assert algo.current_subgoal is None
    algo.get_action({key: x[:, 0] for key, x in obs.items()})
    assert algo.current_subgoal["position"].shape == (1, 3)
    algo.reset()
    assert algo.current_subgoal is None


HAND_KEYS = ["left_eef_pos", "position", "robot0_eef_pos"]
HANDS = {"modalities": {"obs": {"low_dim": HAND_KEYS}}}


def with_hands(name, algo=None):
    """An algorithm that sees and predicts where two hands are."""
    seen = {"planner": HANDS} if name == "hbc" else {"value_planner": {"planner": HANDS}}
    overrides = {"observation": seen, "algo": algo or {}}
    return make(name, overrides, dict.fromkeys(HAND_KEYS, (3,)))


@BOTH
def test_a_policy_says_which_subgoal_its_action_follows(name, monkeypatch):
    algo, goals = with_hands(name), []
    actor = algo.parts["actor"]
    act = actor.act
    monkeypatch.setattr(actor, "act", lambda seen: goals.append(seen.goal) or act(seen))
    policy = RolloutPolicy(algo, batch_size=4)
    ages = {env: [] for env in (1, 2)}
    for turn in range(9):
        for env in ages:
            if turn == 3 * (env - 1):  # the second one starts later
                policy.start_episode(env=env, seed=env)
                assert policy.subgoal(env) is None
        envs = [env for env in ages if turn >= 3 * (env - 1)]
        policy.act({env: {key: np.full(3, 0.1 * turn) for key in HAND_KEYS} for env in envs})
        for env in envs:
            subgoal = policy.subgoal(env)
            assert subgoal.positions.keys() == {"left_eef_pos", "robot0_eef_pos"}
            for key, position in subgoal.positions.items():
                np.testing.assert_array_equal(position, goals[-1][key][env])
            ages[env].append(subgoal.steps_left)
    assert ages == {1: [3, 2, 1, 0, 3, 2, 1, 0, 3], 2: [3, 2, 1, 0, 3, 2]}


def test_latents_and_other_policies_say_no_subgoal():
    latent = {"latent_subgoal": {"enabled": True}, "planner": {"vae": {"enabled": True}}}
    config = config_factory("bc", {"observation": HANDS})
    bc = algo_factory("bc", config, dict.fromkeys(HAND_KEYS, (3,)), 2, "cpu")
    for algo in (with_hands("hbc", latent), bc):
        policy = RolloutPolicy(algo)
        policy.start_episode(seed=0)
        policy({key: np.zeros(3) for key in HAND_KEYS})
        assert policy.subgoal() is None


def test_iris_takes_the_proposal_of_the_highest_value():
    algo = make("iris", {"algo": {"value_planner": {"num_samples": 50}}})
    planner = algo.parts["planner"]
    value = planner.parts["value_net"]
    obs = {key: torch.randn(3, *shape) for key, shape in SHAPES.items()}
    # What is worth most is where the first number is largest, whatever one does there.
    value.best_action = lambda obs, generators: (obs["position"][:, 0, :1], None)
    torch.manual_seed(0)
    chosen = planner.get_subgoal_predictions(obs)
    torch.manual_seed(0)
    proposals = planner.sample_subgoals(obs, num_samples=50)
    best = proposals["position"][..., 0].max(1).values
    torch.testing.assert_close(chosen["position"][:, 0], best)
    rows = proposals["position"][..., 0].argmax(1)
    torch.testing.assert_close(chosen["speed"], proposals["speed"][torch.arange(3), rows])


# -- what the actor is trained with ---------------------------------------------------------------

STATISTICS = {
    "position": {"scale": [[2.0, 3.0, 4.0]], "offset": [[1.0, 1.0, 1.0]]},
    "speed": {"scale": [[0.5, 0.5]], "offset": [[-1.0, 1.0]]},
}


def batch_of(demos, seq_length=3, **options):
    dataset = SequenceDataset(demos, list(SHAPES), seq_length=seq_length, **options)
    return dataset.get_batch(torch.arange(5))


@BOTH
@pytest.mark.parametrize("normalizes", [False, True])
def test_the_actors_goal_is_the_planners_target(demos, name, normalizes):
    algo = make(name)
    if normalizes:
        algo.set_statistics(STATISTICS, {})
    batch = algo.process_batch_for_training(batch_of(demos))
    planner = batch["planner"]["planner"] if name == "iris" else batch["planner"]
    goals = algo._batch_of("actor", batch)["goal_obs"]
    assert goals.keys() == SHAPES.keys()
    for key, goal in goals.items():
        torch.testing.assert_close(goal, planner["target_subgoals"][key][:, 0])


@BOTH
def test_random_subgoals_are_of_any_later_step(demos, name):
    algo = make(name, {"algo": {"actor_use_random_subgoals": True}})
    raw, steps = batch_of(demos), set()
    for seed in range(20):
        torch.manual_seed(seed)
        goal = algo.process_batch_for_training(raw)["subgoals"]["position"]
        same = (raw["next_obs"]["position"] == goal[:, None]).all(-1)
        assert same.any(1).all()
        steps |= set(same.float().argmax(1).tolist())
    assert steps == {0, 1, 2}


@BOTH
def test_in_a_cascade_the_actor_sees_what_the_planner_predicts(demos, name):
    algo = make(name, {"algo": {"mode": "cascade"}})
    algo.set_statistics(STATISTICS, {})
    batch = algo.process_batch_for_training(batch_of(demos))
    torch.manual_seed(0)
    expected = algo._plan(batch["planner"])
    torch.manual_seed(0)
    given = algo._batch_of("actor", batch)["goal_obs"]
    offset, scale = (torch.tensor(STATISTICS["position"][x]) for x in ("offset", "scale"))
    torch.testing.assert_close(given["position"], (expected["position"] - offset) / scale)
    assert not given["position"].requires_grad
    assert algo._batch_of("planner", batch) is batch["planner"]


@pytest.mark.parametrize("categorical", [False, True])
@pytest.mark.parametrize("corrects", [False, True])
def test_latent_subgoals(demos, categorical, corrects):
    vae = {"latent_dim": 5, "prior": {"use_categorical": categorical, "categorical_dim": 3}}
    latent = {"enabled": True, "prior_correction": {"enabled": corrects, "num_samples": 500}}
    algo = make("hbc", {"algo": {"latent_subgoal": latent, "planner": {"vae": vae}}})
    size = 15 if categorical else 5
    assert algo.parts["actor"].obs_spec.shapes("goal") == {"latent_subgoal": (size,)}
    batch = algo.process_batch_for_training(batch_of(demos))
    z = algo._batch_of("actor", batch)["goal_obs"]["latent_subgoal"]
    assert z.shape == (5, size) and not z.requires_grad
    if corrects:  # it is one that the prior can draw
        net, seen = algo.goal_planner.nets["goal_network"], batch["planner"]
        with torch.no_grad():
            torch.manual_seed(3)
            near = algo.goal_planner.latent_subgoals(seen, 500)
            torch.manual_seed(3)
            posterior, _ = net.posterior(seen["obs"], given=seen["target_subgoals"])
            aim = net.prior.draw(posterior, 1.0)
            drawn = net.latents(seen["obs"], None, 500)
        distance = (drawn - aim).square().sum(-1)
        torch.testing.assert_close((near - aim[:, 0]).square().sum(-1), distance.min(1).values)
    policy = RolloutPolicy(algo)
    policy.start_episode(seed=0)
    policy(episodes()[0][0])
    assert policy._episodes[0].state["subgoal"].keys() == {"latent_subgoal"}


@BOTH
def test_proxies_measure_them(name, demos, tmp_path):
    proxies = {"experiment": {"proxies": {"enabled": True, "rate": 3, "fqe_steps": 2}}}
    config = write_config(tmp_path / "config.json", demos, name, proxies)
    assert main(["train", "--config", str(config)]) == 0
    (run,) = (tmp_path / "runs/test").iterdir()
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (logs,) = [record["logs"] for record in records if record["type"] == "proxy"]
    assert np.isfinite(logs["FQE_Initial_Value"])
    assert ("Advantage_Mean" in logs) == (name == "iris")


def test_many_proposals_are_judged_in_several_turns(monkeypatch):
    algo = make("iris")
    obs = {key: torch.randn(7, *shape) for key, shape in SHAPES.items()}
    planner = algo.parts["planner"]
    value = planner.parts["value_net"]
    value.best_action = lambda obs, generators: (obs["speed"][:, 0, :1], None)
    chosen = []
    for at_once in (2048, 5):
        monkeypatch.setattr("offrl.algos.iris.AT_ONCE", at_once)
        torch.manual_seed(0)
        chosen.append(planner.get_subgoal_predictions(obs))
    assert all(torch.equal(chosen[0][key], chosen[1][key]) for key in SHAPES)


# -- what they learn ------------------------------------------------------------------------------


@pytest.mark.slow
def test_iris_prefers_where_rewards_are(tmp_path):
    """Walks to the right and to the left; only those to the right are rewarded. What is cloned goes
    either way, and IRIS goes right."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "walks.hdf5", "w") as file:
        for i in range(120):
            way, start = (-1) ** i, rng.uniform(-0.5, 0.5)
            x = start + way * np.arange(9) / 4
            demo = file.create_group(f"data/demo_{i}")
            demo["obs/x"], demo["next_obs/x"] = x[:-1, None], x[1:, None]
            demo["actions"] = np.full((8, 1), way * 0.8)
            demo["dones"] = demo["rewards"] = np.eye(8)[-1] * (1.0 if way > 0 else 0.0)
            demo["dones"][-1] = 1.0
    rate = {"learning_rate": {"initial": 1e-3}}
    dims = {"encoder_layer_dims": [32], "decoder_layer_dims": [32], "latent_dim": 2}
    planner = {
        "subgoal_horizon": 4,
        "vae": dims | {"kl_weight": 0.02},
        "optim_params": {"goal_network": rate},
    }
    value = {
        "critic": {"layer_dims": [32, 32], "num_action_samples_rollout": 10},
        "action_sampler": {"vae": dims},
        "discount": 0.9,
    }
    algo = {
        "value_planner": {"planner": planner, "value": value, "num_samples": 20},
        "actor": {
            "rnn": {"enabled": False},
            "actor_layer_dims": [32, 32],
            "optim_params": {"policy": rate},
        },
    }
    keys = {"modalities": {"obs": {"low_dim": ["x"]}}}
    seed_everything(0)
    config = config_factory(
        "iris", {"algo": algo, "observation": {"value_planner": {"planner": keys}}}
    )
    iris = algo_factory("iris", config, {"x": (1,)}, 1, "cpu")
    dataset = SequenceDataset(tmp_path / "walks.hdf5", ["x"], seq_length=4, get_pad_mask=True)
    for _ in range(400):
        batch = dataset.get_batch(torch.randint(len(dataset), (64,)))
        iris.train_on_batch(iris.process_batch_for_training(batch), epoch=1)
    iris.set_eval()
    x = torch.linspace(-0.4, 0.4, 50)[:, None]
    subgoals = iris.parts["planner"].get_subgoal_predictions({"x": x})["x"]
    proposed = iris.parts["planner"].sample_subgoals({"x": x}, num_samples=20)["x"]
    assert 0.3 < (proposed > x[:, None]).float().mean() < 0.7
    assert (subgoals > x).float().mean() > 0.9
    actions, _ = iris.act({"x": x[:, None]})
    assert (actions > 0.4).float().mean() > 0.9
