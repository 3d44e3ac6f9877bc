"""What every registered algorithm must do. A new algorithm is tested by being registered."""

import copy

import h5py
import numpy as np
import pytest
import torch

from offrl import RolloutPolicy, Trainer, algo_factory, config_factory
from offrl.data.loader import BatchLoader
from offrl.data.sequence import SequenceDataset
from offrl.registry import ALGOS
from offrl.seeding import seed_everything
from offrl.tree import gather, map_leaves, merge

HEADS = {
    "deterministic": {},
    "gaussian": {"gaussian": {"enabled": True}},
    "gaussian_true_noise": {"gaussian": {"enabled": True, "low_noise_eval": False}},
    "tanh_gaussian": {"gaussian": {"enabled": True, "use_tanh": True, "low_noise_eval": False}},
    "gmm": {"gmm": {"enabled": True}},
    "gmm_true_noise": {"gmm": {"enabled": True, "low_noise_eval": False}},
    "vae": {"vae": {"enabled": True}},
}
SMALL_RNN = {"enabled": True, "hidden_dim": 16, "horizon": 3}
SMALL_TRANSFORMER = {"enabled": True, "embed_dim": 16, "num_heads": 2, "num_layers": 2}
TRUNKS = {
    "mlp": {},
    "rnn": {"rnn": SMALL_RNN},
    "transformer": {"transformer": SMALL_TRANSFORMER},
}
OTHERS = {
    "gru_open_loop": {"rnn": SMALL_RNN | {"rnn_type": "GRU", "open_loop": True}},
    "rnn_bidirectional": {"rnn": SMALL_RNN | {"kwargs": {"bidirectional": True}}},
    "transformer_all_steps": {
        "transformer": SMALL_TRANSFORMER
        | {"supervise_all_steps": True, "activation": "geglu", "sinusoidal_embedding": True}
    },
    "transformer_table": {"transformer": SMALL_TRANSFORMER | {"nn_parameter_for_timesteps": False}},
    "vae_learned": {"vae": {"enabled": True, "prior": {"learn": True}}},
    "vae_gmm": {
        "vae": {
            "enabled": True,
            "latent_clip": 2.0,
            "decoder": {"is_conditioned": False},
            "prior": {
                "learn": True,
                "is_conditioned": True,
                "use_gmm": True,
                "gmm_learn_weights": True,
            },
        }
    },
    "vae_categorical": {"vae": {"enabled": True, "prior": {"use_categorical": True}}},
    "vae_categorical_learned": {
        "vae": {
            "enabled": True,
            "prior": {"use_categorical": True, "learn": True, "is_conditioned": True},
        }
    },
}
BOUNDED = {"value_bounds": [-1.0, 9.0]}
DISTRIBUTIONAL = {"distributional": {"enabled": True, "num_atoms": 11}}
SAMPLING = {"categorical": {"low_noise_eval": False}}
VARIANTS = {
    "bcq": {
        "vae": {},
        "perturbed": {"actor": {"enabled": True}},
        "gmm": {"action_sampler": {"gmm": {"enabled": True}, "vae": {"enabled": False}}},
        "distributional": {"critic": BOUNDED | DISTRIBUTIONAL},
        "learned_prior": {
            "action_sampler": {"vae": {"prior": {"learn": True, "is_conditioned": True}}}
        },
    },
    "cql": {
        "lagrange": {},
        "fixed_weights": {
            "critic": {"target_q_gap": None, "deterministic_backup": False},
            "actor": {"target_entropy": None},
        },
        "from_cloning": {"actor": {"bc_start_steps": 2}, "critic": {"num_action_samples": 3}},
    },
    "iql": {"gaussian": {}, "gmm": {"actor": {"net": {"type": "gmm"}}}},
    "crr": {
        "exp": {},
        "binary": {"f": "binary"},
        "distributional": {"critic": BOUNDED | DISTRIBUTIONAL},
    },
    "plas": {
        "warm": {"warmup_steps": 1},
        "vae": {},
        "perturbed": {"warmup_steps": 1, "actor": {"perturbation": {"enabled": True}}},
    },
    "td3_bc": {"default": {}, "bounded": {"critic": BOUNDED, "infinite_horizon": True}},
    "bc": {f"{t}-{h}": TRUNKS[t] | HEADS[h] for t in TRUNKS for h in HEADS} | OTHERS,
    "ddqn": {"default": {}, "several_critics": {"critic": {"ensemble": {"n": 3}}}},
}
CASES = [
    pytest.param(algo, overrides, id=f"{algo}-{name}")
    for algo in ALGOS.names()
    for name, overrides in VARIANTS.get(algo, {"default": {}}).items()
]
# With discrete actions, where an algorithm takes others as well.
CASES += [
    pytest.param("bc", overrides | SAMPLING, id=f"bc-{trunk}-categorical")
    for trunk, overrides in TRUNKS.items()
]
pytestmark = pytest.mark.parametrize(("name", "overrides"), CASES)


@pytest.fixture
def is_discrete(name, overrides):
    return "categorical" in overrides or config_factory(name).train.acts_discretely


@pytest.fixture
def demos(demos, is_discrete):
    if is_discrete:
        with h5py.File(demos, "a") as file:
            for demo in file["data"].values():
                real = demo["actions"][:, 0]
                del demo["actions"]
                demo["actions"] = np.digitize(real, [-0.4, 0.4])  # 0, 1 or 2
    return demos


@pytest.fixture
def small_config(small_config, is_discrete):
    actions = {"format": "discrete" if is_discrete else None}
    train = {"action_config": {"actions": actions}}
    return lambda overrides, name: small_config(merge({"train": train}, overrides), name)


@pytest.fixture
def make(small_config, demos):
    """A function: algorithm and overrides -> (algo, batches)."""

    def build(name, overrides, train=None):
        seed_everything(0)
        train = train or {}
        overrides = fit(overrides, train)
        rate = {"learning_rate": {"initial": 1e-3}}
        rates = dict.fromkeys(config_factory(name).algo.optim_params, rate)
        config = small_config(
            {"algo": overrides | {"optim_params": rates}, "train": {"batch_size": 4} | train}, name
        )
        dataset = SequenceDataset(
            demos,
            ["position", "speed"],
            dataset_keys=config.train.dataset_keys,
            action_config=config.train.action_config,
            seq_length=config.train.seq_length,
            get_pad_mask=True,
            frame_stack=config.train.frame_stack,
            hdf5_normalize_obs=True,
        )
        algo = algo_factory(name, config, dataset.obs_shapes, dataset.ac_dim, device="cpu")
        algo.set_statistics(
            dataset.get_obs_normalization_stats(), dataset.get_action_normalization_stats()
        )
        return algo, iter(BatchLoader(dataset, batch_size=8, seed=0))

    return build


def fit(overrides, train):
    """A Transformer's context is the stack of frames."""
    if "transformer" not in overrides:
        return overrides
    context = {"context_length": train.get("frame_stack", 1)}
    return overrides | {"transformer": overrides["transformer"] | context}


def weights(algo):
    return copy.deepcopy(algo.nets.state_dict())


def same(first, second):
    return all(torch.equal(first[key], second[key]) for key in first)


def test_the_loss_falls_on_one_batch(make, name, overrides):
    algo, batches = make(name, overrides)
    batch = algo.process_batch_for_training(next(batches))
    algo.set_train()
    losses = [float(algo.train_on_batch(batch, epoch=1)["loss"]) for _ in range(100)]
    assert losses[-1] < losses[0] - 0.1 * abs(losses[0])


def test_validation_changes_no_weight(make, name, overrides):
    algo, batches = make(name, overrides)
    before = weights(algo)
    info = algo.train_on_batch(
        algo.process_batch_for_training(next(batches)), epoch=1, validate=True
    )
    assert same(before, weights(algo))
    assert "Loss" in algo.log_info(info)
    algo.train_on_batch(algo.process_batch_for_training(next(batches)), epoch=1)
    assert not same(before, weights(algo))


def test_a_weight_that_is_frozen_stays(make, name, overrides):
    algo, batches = make(name, overrides)
    batch = algo.process_batch_for_training(next(batches))
    algo.train_on_batch(batch, epoch=1)
    parameters = [list(algo.nets[name].parameters()) for name in algo.optimizers]
    frozen = [some[0].requires_grad_(False) for some in parameters if len(some) > 1]
    before = [weight.clone() for weight in frozen]
    for _ in range(2):
        algo.train_on_batch(batch, epoch=1)
    assert all(torch.equal(a, b) for a, b in zip(before, frozen, strict=True))


def test_info_is_detached_scalars(make, name, overrides):
    algo, batches = make(name, overrides)
    info = algo.train_on_batch(algo.process_batch_for_training(next(batches)), epoch=1)
    for value in info.values():
        assert value.dim() == 0 and not value.requires_grad


def test_serialize_and_deserialize_are_the_identity(make, name, overrides):
    algo, batches = make(name, overrides)
    batch = algo.process_batch_for_training(next(batches))
    algo.train_on_batch(batch, epoch=1)
    state = copy.deepcopy(algo.serialize())
    other, _ = make(name, overrides)
    other.deserialize(state)
    for a in (algo, other):
        seed_everything(1)
        a.train_on_batch(batch, epoch=1)
    assert same(weights(algo), weights(other))
    bare, _ = make(name, overrides)
    bare.deserialize(state["nets"])
    assert same(bare.nets.state_dict(), state["nets"])


def test_weights_of_another_shape_are_refused_by_name(make, name, overrides):
    algo, _ = make(name, overrides)
    state = dict(algo.nets.state_dict())
    first = next(key for key, weight in state.items() if weight.ndim > 1)
    broken = {**state, first: state[first][:1, ..., :1]}
    with pytest.raises(ValueError, match=f"of another shape: {first}"):
        algo.deserialize(broken)
    del broken[first]
    with pytest.raises(ValueError, match=f"missing: {first}"):
        algo.deserialize(broken | {"stranger": torch.zeros(1)})


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_acting_in_a_batch_equals_one_by_one(make, name, overrides, frame_stack):
    algo, _ = make(name, overrides, {"frame_stack": frame_stack})
    generator = torch.Generator().manual_seed(0)
    episodes = [
        [
            {
                k: torch.randn(d, generator=generator).numpy()
                for k, d in (("position", 3), ("speed", 2))
            }
            for _ in range(4)
        ]
        for _ in range(5)
    ]
    alone = []
    for seed, episode in enumerate(episodes):
        policy = RolloutPolicy(algo)
        policy.start_episode(seed=seed)
        alone.append([policy(obs, reward=float(step)) for step, obs in enumerate(episode)])
    together = RolloutPolicy(algo, batch_size=3)
    for seed in range(5):
        together.start_episode(env=seed, seed=seed)
    for step in range(4):
        obs = {env: episode[step] for env, episode in enumerate(episodes)}
        actions = together.act(obs, reward_by_env=dict.fromkeys(obs, float(step)))
        for env, action in actions.items():
            assert action.shape == (() if algo.is_discrete else (2,))
            torch.testing.assert_close(
                torch.tensor(action), torch.tensor(alone[env][step]), atol=1e-6, rtol=0
            )


STREAMED = {"hdf5_cache_mode": None, "num_data_workers": 2, "frame_stack": 2}


@pytest.mark.parametrize("train", [{"seq_length": 2}, STREAMED], ids=["in_memory", "streamed"])
def test_a_resumed_training_equals_an_uninterrupted_one(small_config, name, overrides, train):
    schedule = {"learning_rate": {"scheduler_type": "cosine", "step_every_batch": True}}
    schedules = dict.fromkeys(config_factory(name).algo.optim_params, schedule)
    algo = fit(overrides, train) | {"optim_params": schedules}
    config = small_config({"algo": algo, "train": train}, name)
    whole = Trainer(config)
    for record in whole():
        if record["type"] == "epoch" and record["epoch"] == 1:
            state = copy.deepcopy(whole.state())
    end = whole.state()["rng"]
    later = Trainer(config)
    later.restore(state)
    list(later())
    assert later.step == whole.step == 15
    assert torch.equal(end["torch"], later.state()["rng"]["torch"])
    assert same(whole.algo.nets.state_dict(), later.algo.nets.state_dict())
    assert same(*(map_leaves(torch.as_tensor, flat(t.algo.serialize())) for t in (whole, later)))


def flat(tree, prefix=""):
    leaves = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            leaves |= flat(value, f"{prefix}{key}/")
        elif isinstance(value, torch.Tensor):
            leaves[f"{prefix}{key}"] = value
    return leaves


def test_a_padded_step_never_enters_the_loss(make, name, overrides):
    several = {"n_step": 3} if "n_step" in config_factory(name).algo else {}
    algo, batches = make(name, overrides | several, {"seq_length": 4})
    batch = next(batches)
    padded = ~batch["pad_mask"].squeeze(-1)
    assert padded.any()
    spoilt = copy.deepcopy(batch)
    spoilt["actions"][padded] = 0.9
    spoilt["rewards"][padded] = 50.0
    losses = []
    for b in (batch, spoilt):
        seed_everything(2)
        ready = algo.process_batch_for_training(b)
        losses.append(algo.train_on_batch(ready, epoch=1, validate=True)["loss"])
    assert torch.equal(*losses)
    assert gather(torch.stack, [batch, spoilt])["actions"].diff(dim=0).any()
