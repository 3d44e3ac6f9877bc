"""What every registered algorithm must do. A new algorithm is tested by being registered."""

import math
from functools import partial

import pytest
from conftest import ROOT

from offrl import config_factory
from offrl.registry import ALGOS
from offrl.testing import CHECKS, AlgoCase
from offrl.tree import merge

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
    "flow_matching": {
        "transformer": {
            "unet": {"enabled": False},
            "transformer": {"enabled": True, "embed_dim": 16, "num_heads": 2, "num_layers": 2},
        },
    },
    "vq_bet": {"codes": {}, "policy": {"vq": {"epochs": 0.0}}},
    "td3_bc": {"default": {}, "bounded": {"critic": BOUNDED, "infinite_horizon": True}},
    "bc": {f"{t}-{h}": TRUNKS[t] | HEADS[h] for t in TRUNKS for h in HEADS} | OTHERS,
    "gl": {"regression": {"vae": {"enabled": False}}, "vae": {}},
    "hbc": {
        "separate": {},
        "regression": {"planner": {"vae": {"enabled": False}}, "subgoal_update_interval": 2},
        "cascade": {"mode": "cascade", "actor": {"gmm": {"enabled": True}}},
        "mlp": {"actor": {"rnn": {"enabled": False}}, "actor_use_random_subgoals": True},
        "latent": {
            "latent_subgoal": {"enabled": True},
            "planner": {"vae": {"prior": {"use_categorical": True}}},
        },
        "corrected": {
            "latent_subgoal": {"enabled": True, "prior_correction": {"enabled": True}},
            "planner": {"vae": {"prior": {"learn": True, "is_conditioned": True}}},
        },
    },
    "iris": {"separate": {}, "cascade": {"mode": "cascade", "subgoal_update_interval": 2}},
    "ddqn": {"default": {}, "several_critics": {"critic": {"ensemble": {"n": 3}}}},
    "dqn": {
        "default": {"target_every": 2},
        "double": {"double": True, "dueling": True},
        "distributional": {"critic": BOUNDED | DISTRIBUTIONAL, "dueling": True},
    },
}
GOALS = {
    "train": {"goal_mode": "mixture", "goal_rewards": True},
    "observation": {"modalities": {"goal": {"low_dim": ["position"]}}},
}
DISCRETE = {"train": {"action_config": {"actions": {"format": "discrete"}}}}
PLANNER = {"subgoal_horizon": 2}
ACTOR = {"actor_layer_dims": [16, 16], "rnn": {"hidden_dim": 16, "horizon": 2}}
TINY = {"critic": {"layer_dims": [16, 16]}}
WITHOUT_SCHEDULE = {"policy": {"learning_rate": {"scheduler_type": "constant", "warmup_steps": 0}}}
DENOISING = {
    "optim_params": WITHOUT_SCHEDULE,
    "unet": {"down_dims": [16, 32], "n_groups": 4, "diffusion_step_embed_dim": 16},
}
SMALL = {
    "dqn": TINY,
    **{
        name: TINY | {"actor": {"layer_dims": [16, 16]}}
        for name in ("td3", "ddpg", "sac", "discrete_sac")
    },
    "bc": {"actor_layer_dims": [16, 16]},
    "dagger": {"actor_layer_dims": [16, 16]},
    "gl": PLANNER,
    "hbc": {"planner": PLANNER, "actor": ACTOR},
    "iris": {"value_planner": {"planner": PLANNER, "num_samples": 5}, "actor": ACTOR},
    "hiql": {
        "subgoal_steps": 2,
        "critic": {"layer_dims": [16, 16]},
        "planner": {"layer_dims": [16, 16]},
        "actor": {"layer_dims": [16, 16]},
    },
    "rlpd": {
        "critic": {"layer_dims": [16, 16]},
        "actor": {"layer_dims": [16, 16], "update_freq": 2},
    },
    "act": {
        "transformer": {"embed_dim": 16, "feedforward_dim": 32, "num_heads": 2},
        "latent_dim": 4,
    },
    "flow_matching": DENOISING,
    "vq_bet": {
        "vq": {"num_codes": 4, "latent_dim": 4, "layer_dims": [16]},
        "transformer": {"embed_dim": 16, "num_heads": 2, "num_layers": 1},
    },
    "diffusion_policy": DENOISING
    | {
        "ddpm": {"num_train_timesteps": 10, "num_inference_timesteps": 4},
    },
    "residual": {"critic": {"layer_dims": [16, 16]}, "actor": {"layer_dims": [16, 16]}},
}
# Those that learn from recorded data alone; for the others there are test_policy_gradient.py and
# tests/online/test_imitation.py.
CLASSES = {name: ALGOS[name](config_factory(name).algo)[0] for name in ALGOS.names()}
OFFLINE = [name for name, kind in CLASSES.items() if not (kind.ON_POLICY or kind.NEEDS_DEMOS)]
BASE = {"experiment": {"ckpt_path": str(ROOT / "tests/checkpoints/bc.pth")}}
STARTS = {"residual": BASE}  # of algorithms that are nothing without a checkpoint
THOROUGH = {"hbc-regression", "hbc-corrected", "iris-separate"}  # others are much like them


QUICK = {f"{algo}-{next(iter(variants))}" for algo, variants in VARIANTS.items()}
QUICK |= {f"bc-{trunk}-{next(iter(HEADS))}" for trunk in TRUNKS} | {"bc-mlp-categorical"}


def marks_of(algo, name):
    """Quick tests are of one variant of each algorithm, and of each trunk of cloning."""
    if f"{algo}-{name}" in THOROUGH:
        return [pytest.mark.thorough]
    is_quick = algo not in VARIANTS or f"{algo}-{name}" in QUICK
    return [] if is_quick else [pytest.mark.slow]


CASES = [
    pytest.param(
        algo,
        {"algo": merge(SMALL.get(algo, {}), overrides), **STARTS.get(algo, {})},
        id=f"{algo}-{name}",
        marks=marks_of(algo, name),
    )
    for algo in OFFLINE
    for name, overrides in VARIANTS.get(algo, {"default": {}}).items()
]
CASES += [pytest.param("iql", GOALS, id="iql-goals", marks=pytest.mark.slow)]
# With discrete actions, where an algorithm takes others as well.
CASES += [
    pytest.param(
        "bc",
        DISCRETE | {"algo": SMALL["bc"] | SAMPLING | trunk},
        id=f"bc-{name}-categorical",
        marks=marks_of("bc", f"{name}-categorical"),
    )
    for name, trunk in TRUNKS.items()
]


def check_name(check):
    if isinstance(check, partial):
        return "-".join([check.func.__name__, *map(str, check.keywords)])
    return check.__name__


def floor(name, overrides):
    """Squared errors, divergences and the surprise at discrete actions are not negative."""
    algo = overrides.get("algo", {})
    real_valued = any(head in algo for head in ("gaussian", "gmm"))
    estimated = algo.get("vae", {}).get("prior", {}).get("use_gmm")  # its divergence
    is_bc = name == "bc" and not real_valued and not estimated
    others = (
        "dagger",
        "diffusion_policy",
        "dt",
        "flow_matching",
        "dqn",
        "ddqn",
        "discrete_bcq",
        "discrete_cql",
        "gl",
    )
    return 0.0 if is_bc or name in others else -math.inf


@pytest.mark.parametrize(("name", "overrides"), CASES)
@pytest.mark.parametrize("check", CHECKS, ids=check_name)
def test_an_algorithm(check, name, overrides, tmp_path):
    check(AlgoCase(name, overrides, tmp_path, floor(name, overrides)))
