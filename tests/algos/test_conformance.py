"""What every registered algorithm must do. A new algorithm is tested by being registered."""

from functools import cache, partial

import pytest
from conftest import ROOT

from offrl import config_factory
from offrl.config import Section
from offrl.registry import ALGOS
from offrl.testing import CHECKS, STREAMED, AlgoCase, resumed_equals_uninterrupted
from offrl.testing.device import updates_do_not_wait_for_the_device
from offrl.testing.graphs import updates_with_one_key_make_the_same_calls
from offrl.testing.learning import it_learns_what_is_right
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
            "kl_weight": 0.01,
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
    "td3_bc": {"default": {}, "bounded": {"critic": BOUNDED}},
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
    "iris": {"cascade": {"mode": "cascade", "subgoal_update_interval": 2}, "separate": {}},
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
ACTOR = {"rnn": {"hidden_dim": 16, "horizon": 2}}
WITHOUT_SCHEDULE = {"policy": {"learning_rate": {"scheduler_type": "constant", "warmup_steps": 0}}}
DENOISING = {
    "optim_params": WITHOUT_SCHEDULE,
    "unet": {"down_dims": [16, 32], "n_groups": 4, "diffusion_step_embed_dim": 16},
}
FEW_CRITICS = {"critic": {"ensemble": {"n": 3}}}
SMALL = {
    "gl": PLANNER,
    "hbc": {"planner": PLANNER, "actor": ACTOR},
    "iris": {"value_planner": {"planner": PLANNER, "num_samples": 5}, "actor": ACTOR},
    "hiql": {"subgoal_steps": 2},
    "rlpd": {"actor": {"update_freq": 2}},
    "sac_n": FEW_CRITICS,
    "edac": FEW_CRITICS,
    "dt": {"embed_dim": 16, "num_layers": 2, "optim_params": WITHOUT_SCHEDULE},
    "act": {
        "transformer": {
            "embed_dim": 16,
            "feedforward_dim": 32,
            "num_heads": 2,
            "num_encoder_layers": 1,
        },
        "latent_dim": 4,
    },
    "flow_matching": DENOISING,
    "vq_bet": {
        "vq": {"num_codes": 4, "latent_dim": 4},
        "transformer": {"embed_dim": 16, "num_heads": 2, "num_layers": 1},
    },
    "diffusion_policy": DENOISING
    | {
        "ddpm": {"num_train_timesteps": 10, "num_inference_timesteps": 4},
    },
}


def narrow(section):
    """The overrides of a section that make all its perceptrons small."""
    found = {key: [16, 16] for key in section.keys() if key.endswith("layer_dims") and section[key]}
    below = {key: section[key] for key in section.keys() if isinstance(section[key], Section)}
    return found | {key: narrower for key, part in below.items() if (narrower := narrow(part))}


# Those that learn from recorded data alone; for the others there are test_policy_gradient.py and
# tests/online/test_imitation.py.
CLASSES = {name: ALGOS[name](config_factory(name).algo)[0] for name in ALGOS.names()}
OFFLINE = [name for name, kind in CLASSES.items() if not (kind.ON_POLICY or kind.NEEDS_DEMOS)]
BASE = {"experiment": {"ckpt_path": str(ROOT / "tests/checkpoints/bc.pth")}}
STARTS = {"residual": BASE}  # of algorithms that are nothing without a checkpoint

CASES = {
    f"{algo}-{name}": (algo, {"algo": overrides, **STARTS.get(algo, {})})
    for algo in OFFLINE
    for name, overrides in VARIANTS.get(algo, {"default": {}}).items()
}
CASES["iql-goals"] = "iql", GOALS
# With discrete actions, where an algorithm takes others as well.
CASES |= {
    f"bc-{name}-categorical": ("bc", DISCRETE | {"algo": SAMPLING | trunk})
    for name, trunk in TRUNKS.items()
}
# Of each algorithm one variant is held to all checks, and so is each trunk of cloning. Others are
# held by ``make test`` to those in which they can differ: another loss falls, and may count padded
# steps; other heads act; other networks and draws have to come back when a training goes on.
FIRST = {f"{algo}-{next(iter(VARIANTS.get(algo, ['default'])))}" for algo in OFFLINE}
FIRST |= {f"bc-{trunk}-{next(iter(HEADS))}" for trunk in TRUNKS} | {"bc-mlp-categorical"}
# What updates ask of the device is another thing with these networks and branches, too.
OF_UPDATES = (updates_do_not_wait_for_the_device, updates_with_one_key_make_the_same_calls)
OTHER_UPDATES = {
    *("bc-mlp-gmm", "bc-vae_gmm", "bc-vae_categorical", "bcq-distributional", "hbc-mlp"),
    *("hbc-latent", "cql-from_cloning", "plas-vae", "vq_bet-policy", "dqn-double"),
}
CAN_DIFFER = {
    "loss_falls_on_one_batch",
    "padded_steps_never_enter_the_loss",
    "acting_in_a_batch_equals_one_by_one",
    "resumed_equals_uninterrupted",
}
# What streams is the loader, so it is enough of one trunk each, and of one that reads next_obs.
STREAMS = ["bc-mlp-deterministic", "bc-rnn-deterministic", "iql-gaussian"]


(STREAMED_CHECK,) = [
    check for check in CHECKS if getattr(check, "keywords", {}).get("train") is STREAMED
]


def check_name(check):
    if isinstance(check, partial):
        return "-".join([check.func.__name__, *map(str, check.keywords)])
    return check.__name__


def marks_of(check, case):
    if check is it_learns_what_is_right:
        return [pytest.mark.slow if case in STREAMS else pytest.mark.thorough]
    if check in OF_UPDATES and case not in STREAMS:
        return [pytest.mark.slow if case in FIRST | OTHER_UPDATES else pytest.mark.thorough]
    if case in FIRST:
        is_quick = check is not resumed_equals_uninterrupted or case in STREAMS
        return [] if is_quick else [pytest.mark.slow]
    return [pytest.mark.slow if check_name(check) in CAN_DIFFER else pytest.mark.thorough]


@pytest.fixture(scope="module")
def case_of(tmp_path_factory):
    """A function: name of a case -> the case, with data and datasets that its tests share."""

    @cache
    def make(name):
        algo, overrides = CASES[name]
        own = {"algo": merge(narrow(config_factory(algo).algo), SMALL.get(algo, {}))}
        folder = tmp_path_factory.mktemp(name)
        return AlgoCase(algo, merge(own, overrides), folder)

    return make


@pytest.mark.parametrize(
    ("check", "case"),
    [
        pytest.param(check, case, id=f"{check_name(check)}-{case}", marks=marks_of(check, case))
        for check in CHECKS
        if check is not STREAMED_CHECK
        for case in CASES
        if check is not it_learns_what_is_right or case != "plas-vae"  # its critic begins later
    ],
)
def test_an_algorithm(case_of, check, case, caplog):
    check(case_of(case))
    assert "check_algo" not in caplog.text  # which says what could not be checked


@pytest.mark.slow
@pytest.mark.parametrize("case", STREAMS)
def test_streamed_data_goes_on_where_it_was(case_of, case):
    STREAMED_CHECK(case_of(case))
