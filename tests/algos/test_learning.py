"""What each family learns on a small problem whose solution is known.

A corridor of five places; an action above zero goes right, others left. Behind the right end waits
a reward of one, and the episode ends; most recorded episodes end before, by a time limit, which is
no failure. The data's actions are uniform, so cloning them goes nowhere. The file has them as
``steps``, too: 1 to the right, 0 to the left.
"""

import h5py
import numpy as np
import pytest
import torch

from offrl import algo_factory, config_factory
from offrl.algos.shared.engine import Engine
from offrl.data.loader import BatchLoader
from offrl.data.sequence import SequenceDataset
from offrl.seeding import seed_everything

pytestmark = pytest.mark.slow

PLACES, DISCOUNT, LIMIT = 5, 0.8, 8
BEST = DISCOUNT ** np.arange(PLACES - 1, -1, -1.0)  # V* by place
LEFT = DISCOUNT * BEST[np.maximum(np.arange(PLACES) - 1, 0)]  # Q* of going left

STEPS = {"steps": {"format": "discrete"}}
SMALL = {"critic": {"layer_dims": [32, 32]}, "actor": {"layer_dims": [32, 32]}}
VAE = {"encoder_layer_dims": [32], "decoder_layer_dims": [32], "latent_dim": 2, "kl_weight": 0.1}
SAMPLER = {"action_sampler": {"vae": VAE}}
# algorithm: overrides, how far Q of a right step may be from the best, and the least action.
# A soft maximum and pessimism are below the best on purpose.
ALGOS = {
    "awac": ({"lam": 0.1}, 0.1, 0.2),
    "bcq": (SAMPLER | {"critic": {"num_action_samples_rollout": 20}}, 0.1, 0.0),
    "cal_ql": ({"critic": {"target_q_gap": None, "cql_weight": 0.05}}, 0.25, 0.2),
    "cql": ({"critic": {"target_q_gap": None, "cql_weight": 0.05}}, 0.25, 0.2),
    "crr": ({"f": "binary"}, 0.1, 0.2),
    "ddpg": ({}, 0.1, 0.2),
    "ddqn": ({}, 0.01, 0.9),
    "discrete_sac": (
        {"actor": {"target_entropy": 0.05}, "critic": {"deterministic_backup": True}},
        0.1,
        0.9,
    ),
    "discrete_bcq": ({}, 0.01, 0.9),
    "discrete_cql": ({"alpha": 0.02}, 0.05, 0.9),
    "dqn": ({"target_tau": 1.0, "target_every": 20}, 0.01, 0.9),
    "edac": ({"critic": {"ensemble": {"n": 3}}, "eta": 0.1}, 0.15, 0.2),
    "iql": ({"adv": {"beta": 0.05}, "vf_quantile": 0.95}, 0.1, 0.2),
    "plas": (SAMPLER | {"warmup_steps": 600}, 0.1, 0.0),
    "rebrac": ({"actor": {"noise_std": 0.05}}, 0.1, 0.2),
    "sac": ({}, 0.15, 0.2),
    "sac_n": ({"critic": {"ensemble": {"n": 3}}}, 0.15, 0.2),
    "td3": ({"actor": {"noise_std": 0.05}}, 0.1, 0.2),
    "td3_bc": ({"alpha": 20.0, "actor": {"noise_std": 0.05}}, 0.15, 0.2),
    "xql": ({"adv": {"beta": 0.05}, "beta": 0.2}, 0.25, 0.2),
}


# Of each kind of update rule ``make test`` has one learned.
ONE_OF_EACH = {"bcq", "crr", "ddqn", "discrete_bcq", "discrete_cql", "iql", "sac_n", "td3_bc"}
# Those that are where they belong long before.
SOON = {"bcq", "crr", "ddpg", "ddqn", "discrete_bcq", "discrete_cql", "dqn", "iql", "rebrac"}
SOON |= {"td3", "td3_bc"}
STEPS_OF = dict.fromkeys(ALGOS, 1500) | {"sac_n": 1200} | dict.fromkeys(SOON, 600)


def each(names, kept):
    """Of which all others are thorough."""
    return [
        pytest.param(name, marks=[] if name in kept else pytest.mark.thorough) for name in names
    ]


@pytest.fixture(scope="module")
def corridor(tmp_path_factory):
    return write_corridor(tmp_path_factory.mktemp("corridor") / "corridor.hdf5")


def write_corridor(path, share_right=0.5):
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for i in range(150):
            places, actions = [int(rng.integers(PLACES))], []
            while len(actions) < LIMIT and places[-1] < PLACES:
                actions.append(rng.uniform(-1, 1) + 2 * share_right - 1)
                places.append(max(0, places[-1] + (1 if actions[-1] > 0 else -1)))
            demo = file.create_group(f"data/demo_{i}")
            demo.attrs["num_samples"] = len(actions)
            codes = np.eye(PLACES + 1)[:, :PLACES]
            demo["obs/place"], demo["next_obs/place"] = codes[places[:-1]], codes[places[1:]]
            demo["actions"] = np.array(actions)[:, None]
            demo["steps"] = (np.array(actions) > 0).astype(int)
            demo["dones"] = demo["rewards"] = (np.array(places[1:]) == PLACES).astype(float)
    return path


def train(corridor, name, overrides, steps=600, n_step=1, device="cpu", **how):
    seed_everything(0)
    defaults = config_factory(name)
    rate = {"learning_rate": {"initial": 3e-3}}
    rates = dict.fromkeys(defaults.algo.optim_params, rate)
    algo = {**SMALL, "discount": DISCOUNT, "target_tau": 0.05, "n_step": n_step}
    algo = {key: value for key, value in algo.items() if key in defaults.algo}
    algo["optim_params"] = rates
    for key, value in overrides.items():
        algo[key] = {**algo.get(key, {}), **value} if isinstance(value, dict) else value
    seq_length = n_step + (name == "rebrac")
    key = "steps" if name == "bc" or defaults.train.acts_discretely else "actions"
    actions = STEPS if key == "steps" else {}
    config = config_factory(
        name,
        {
            "algo": algo,
            "train": {"seq_length": seq_length, "action_keys": [key], "action_config": actions}
            | how,
            "observation": {"modalities": {"obs": {"low_dim": ["place"]}}},
        },
    )
    data = SequenceDataset(
        corridor,
        ["place"],
        [key],
        config.train.dataset_keys,
        actions,
        seq_length=seq_length,
        get_pad_mask=seq_length > 1,
        discount=DISCOUNT,
    )
    algo = algo_factory(name, config, data.obs_shapes, data.ac_dim, device=device)
    engine = Engine(algo)
    batches = iter(BatchLoader(data, batch_size=64, seed=0))
    algo.set_train()
    for _ in range(steps):
        engine.step(next(batches), epoch=1)
    algo.set_eval()
    return algo


def learned(algo):
    """Q of a step to the right and to the left by place, and the policy's actions."""
    obs = {"place": torch.eye(PLACES)}
    both = ([0.0, 1.0], [1.0, 0.0]) if algo.is_discrete else ([0.6], [-0.6])
    with torch.no_grad():
        right, left = (
            algo.get_state_action_value(obs, torch.tensor(a).expand(PLACES, -1)).squeeze(1).cpu()
            for a in both
        )
        actions = torch.stack([algo.raw_action(algo.get_action(obs)) for _ in range(20)]).cpu()
    return right.numpy(), left.numpy(), actions.view(20, PLACES).numpy().mean(0)


DISTRIBUTIONAL = {
    "critic": {
        "value_bounds": [-0.1, 1.1],
        "distributional": {"enabled": True, "num_atoms": 31},
    }
}
VARIANTS = {
    "bcq": {
        "action_sampler": {"vae": VAE},
        "critic": DISTRIBUTIONAL["critic"] | {"num_action_samples_rollout": 20},
    },
    "crr": {"f": "binary"} | DISTRIBUTIONAL,
    "dqn": {"target_tau": 1.0, "target_every": 20, "double": True, "dueling": True}
    | DISTRIBUTIONAL,
    "plas": ALGOS["plas"][0] | {"actor": {"perturbation": {"enabled": True}}},
}


@pytest.mark.parametrize("name", each(VARIANTS, {"dqn"}))
def test_distributional_critics_and_perturbations(corridor, name):
    right, left, actions = learned(train(corridor, name, VARIANTS[name], STEPS_OF[name]))
    assert np.abs(right - BEST).max() < 0.15, (right, BEST)
    assert (right > left).all() and (actions > 0).all(), (right, left, actions)


@pytest.mark.parametrize("name", each(ALGOS, ONE_OF_EACH))
def test_values_and_policy_are_those_of_the_exact_solution(corridor, name):
    overrides, tolerance, least_action = ALGOS[name]
    algo = train(corridor, name, overrides, STEPS_OF[name])
    right, left, actions = learned(algo)
    assert np.abs(right - BEST).max() < tolerance, (right, BEST)
    if algo.is_discrete:  # the data has both steps
        assert np.abs(left - LEFT).max() < tolerance, (left, LEFT)
    assert (right > left).all(), (right, left)
    assert (actions > least_action).all(), actions


NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
HOW = [
    {"precision": "bf16"},
    pytest.param({"engine": "compile"}, marks=pytest.mark.thorough),
    pytest.param({"precision": "tf32", "device": "cuda"}, marks=NEEDS_GPU),
]


@pytest.mark.parametrize("how", HOW, ids=str)
def test_steps_that_round_in_other_ways_learn_the_same(corridor, caplog, how):
    overrides, tolerance, least_action = ALGOS["iql"]
    right, left, actions = learned(train(corridor, "iql", overrides, STEPS_OF["iql"], **how))
    assert "steps are eager" not in caplog.text  # not eager after all
    assert np.abs(right - BEST).max() < tolerance, (right, BEST)
    assert (right > left).all() and (actions > least_action).all(), (right, left, actions)


def test_the_datas_actions_go_nowhere(corridor):
    """So whoever goes right has learned it from the rewards."""
    rows = SequenceDataset(corridor, ["place"])
    everything = rows.get_batch(torch.arange(len(rows)))
    assert abs(float(everything["actions"].mean())) < 0.1


@pytest.mark.parametrize("n_step", each([2, 4], {4}))
def test_returns_of_several_steps_stay_within_an_episode(corridor, n_step):
    """Windows reach over the ends of episodes: by the reward, and by the time limit."""
    algo = train(corridor, "bcq", ALGOS["bcq"][0], n_step=n_step)
    right, left, _ = learned(algo)
    # Off-policy: the steps between were random, so values are lower than the best, never higher.
    assert (right < BEST + 0.1).all() and right[-1] == pytest.approx(1.0, abs=0.1)
    assert (np.diff(right) > 0).all() and (right > left).all()


def shares_of_steps(path):
    """How often the data goes left and right, by place."""
    data = SequenceDataset(path, ["place"], ["steps"], action_config=STEPS)
    rows = data.get_batch(torch.arange(len(data)))
    place, step = rows["obs"]["place"][:, 0], rows["actions"][:, 0]
    return ((place.T @ step) / place.sum(0)[:, None]).numpy()


def test_discrete_cloning_learns_how_likely_each_action_is(tmp_path):
    path = write_corridor(tmp_path / "corridor.hdf5", share_right=0.8)
    algo = train(path, "bc", {"actor_layer_dims": [32, 32]})
    with torch.no_grad():
        pi, _ = algo.action_distribution({"place": torch.eye(PLACES)[:, None]})
    probabilities = pi.logits[:, 0].softmax(-1).numpy()
    np.testing.assert_allclose(probabilities, shares_of_steps(path), atol=0.03)


@pytest.mark.parametrize(
    ("threshold", "goes_right"),
    [(0.3, False), pytest.param(0.01, True, marks=pytest.mark.thorough)],
)
def test_discrete_bcq_does_not_take_what_the_data_hardly_does(tmp_path, threshold, goes_right):
    path = write_corridor(tmp_path / "corridor.hdf5", share_right=0.15)
    right, left, actions = learned(train(path, "discrete_bcq", {"threshold": threshold}))
    # To the left for ever after, only the step to the reward itself has a value.
    exact = BEST if goes_right else np.eye(PLACES)[-1]
    assert np.abs(right - exact).max() < 0.1, right
    assert (actions == goes_right).all(), actions


@pytest.mark.parametrize("alpha", each([0.1, 0.5], {0.5}))
def test_discrete_cql_finds_its_conservative_values(corridor, alpha):
    """The loss is flat at Q = r + gamma max Q' + alpha (1 - softmax Q / the data's share)."""
    shares, q = shares_of_steps(corridor), np.zeros((PLACES, 2))
    after = np.array([[max(0, place - 1), place + 1] for place in range(PLACES)])
    for _ in range(2000):
        value = np.append(q.max(1), 1 / DISCOUNT)  # of the end: the reward
        soft = np.exp(q) / np.exp(q).sum(1, keepdims=True)
        q += 0.1 * (DISCOUNT * value[after] + alpha * (1 - soft / shares) - q)
    right, left, _ = learned(train(corridor, "discrete_cql", {"alpha": alpha}))
    np.testing.assert_allclose(np.stack([left, right], axis=1), q, atol=0.05)
