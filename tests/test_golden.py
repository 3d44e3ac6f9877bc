"""robomimic's recordings: outputs, training steps and episodes from its checkpoints.

The cases are the folders of ``tests/golden/cases`` and of ``$OFFRL_GOLDEN/cases``, of the
algorithms that offrl has; nothing here knows their names.
"""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import GOLDEN
from recording import GIVEN as SINGLE
from recording import INPUTS as GIVEN
from recording import NOISE, Recording, exported, leaves
from replay import Replay

from offrl.algos.shared.denoising import DenoisingPolicy
from offrl.models.heads import ActionDistribution
from offrl.registry import ALGOS
from offrl.robomimic.weights import weights_from_robomimic, weights_to_robomimic

SHARED = {"bc", "bcq", "cql", "diffusion_policy", "gl", "hbc", "iql", "td3_bc"}  # with robomimic

FORWARD = {"rtol": 1e-5, "atol": 2e-6}
# After training: Adam makes whole steps of gradients that are nothing but rounding errors.
TRAINED = {"rtol": 1e-4, "atol": 5e-6}
# Small differences of large numbers, divided by small scales.
NORMALIZED = {"rtol": 1e-5, "atol": 3e-5}
# The largest network is as far from its float64 (4e-6) here as in the recording.
# Each step of denoising magnifies the rounding errors of those before it.
DENOISED = {"rtol": 1e-4, "atol": 5e-5}

OBS = rf"({GIVEN})(_normalized)?/.+"
BATCH = rf"(obs|next_obs|goal_obs)/.+|actions|rewards|dones|pad_mask|{NOISE}\d+"
INPUTS = [OBS, SINGLE, rf"rollout/((raw_)?{OBS}|{NOISE}(\d+/)?\d+|initial_noise)"]
INFORMATION = ["debug/.+"]  # intermediate results, which help to find a difference
KEYS = {  # of expected.json: what is checked here, what describes the rest, and what tells people
    *("algo", "arrays", "train_losses", "train_loss_key", "train_logs", "train_epoch"),
    *("final_param_norms", "obs_key_order", "goal_key_order", "subgoal_key_order"),
    *("supervise_all_steps", "pred_future_acs"),
    *("actor_goal_key_order", "actor_is_goal_conditioned"),
    *("weights", "state_dict_recipe", "num_parameters"),
    *("case", "origin", "mode", "method", "rollout", "training_is_deterministic_given"),
}


def algo_of(folder):
    return json.loads((folder / "expected.json").read_text())["algo"]


def names_in(folder):
    with np.load(folder / "io.npz") as arrays:
        return list(arrays)


def marks_of(folder):
    """Those that are not stored, but made again, are large."""
    return [] if (folder / "model.pth").exists() else [pytest.mark.slow]


FOLDERS = [GOLDEN, *map(Path, filter(None, [os.environ.get("OFFRL_GOLDEN")]))]
CASES = sorted(p.parent for f in FOLDERS for p in f.glob("cases/*/expected.json"))
CASES = [case for case in CASES if algo_of(case) in ALGOS.names()]
SPLITS = [
    pytest.param(case, split, marks=marks_of(case), id=f"{case.name}-{split}")
    for case in CASES
    for split in ("expected", "expected_eval", "expected_ema")
    if any(name.startswith(f"{split}/") for name in names_in(case))
]
EPISODES = [case for case in CASES if "rollout/action" in names_in(case)]
TRAININGS = [case for case in CASES if "batch0/actions" in names_in(case)]


def each(folders):
    cases = [pytest.param(folder, marks=marks_of(folder), id=folder.name) for folder in folders]
    return pytest.mark.parametrize("folder", cases)


def compare(actual, expected, name, tolerance=FORWARD):
    if isinstance(actual, ActionDistribution):  # a sample of it
        assert_is_sample(expected, actual, name)
        return
    actual, expected = actual.detach().numpy(), expected.numpy()
    assert actual.size == expected.size, (name, actual.shape, expected.shape)
    np.testing.assert_allclose(actual.reshape(expected.shape), expected, **tolerance, err_msg=name)


def assert_is_sample(actions, pi, name):
    """No farther than six standard deviations from the mean of some component."""
    mean, std = (x if hasattr(pi, "logits") else x[..., None, :] for x in (pi.mean, pi.std))
    distance = (actions.reshape(*mean.shape[:-2], 1, -1) - mean).abs() / std
    assert distance.amax(-1).amin(-1).max() < 6, name


def check(recording, prefix, actual, tolerance=None):
    """Every output under ``prefix``; one that offrl does not know is an error."""
    names = recording.outputs_under(prefix)
    assert names and names == actual.keys(), f"{prefix}: unknown {sorted(names - actual.keys())}"
    forward = DENOISED if isinstance(recording.algo, DenoisingPolicy) else FORWARD
    for name, values in actual.items():
        compare(values, recording.arrays[prefix + name], prefix + name, tolerance or forward)


def test_every_algorithm_shared_with_robomimic_is_recorded():
    assert {algo_of(case.parent) for case in GOLDEN.glob("cases/*/model.pth")} >= SHARED


@each(CASES)
def test_every_entry_of_a_recording_is_known(folder):
    recording = Recording(folder)
    expected, train = recording.expected, recording.config["train"]
    keys = *train.get("dataset_keys", []), *train.get("action_keys", [])
    keys = "|".join(re.escape(key.replace("/", ".")) for key in keys)
    known = [*INPUTS, *INFORMATION, rf"batch\d+/({BATCH}|{keys})"]
    # Outputs, and the numbers drawn for them, are looked at by the tests below.
    known += [r"expected(_after)?(_eval|_ema)?/.+", "rollout/.+"]
    unknown = [x for x in recording.arrays if not any(re.fullmatch(k, x) for k in known)]
    notes = re.compile(r"(\w+_)?notes?|(\w+_)?noise")
    assert not unknown
    assert not [key for key in expected if key not in KEYS and not notes.fullmatch(key)]

    for name, described in expected["arrays"].items():
        array = recording.arrays[name]
        assert described == f"{str(array.dtype).partition('.')[2]}{list(array.shape)}", name
    for group in ("obs", "goal", "subgoal"):
        order = expected.get(f"{group}_key_order", [])
        assert not order or order == recording.algo.obs_spec.keys(group)
    if "actor_goal_key_order" in expected:
        goals = recording.algo.parts["actor"].obs_spec.keys("goal")
        assert goals == expected["actor_goal_key_order"]
        assert bool(goals) == expected["actor_is_goal_conditioned"]
    for key in ("supervise_all_steps", "pred_future_acs"):
        if key in expected:
            assert expected[key] == recording.config["algo"]["transformer"][key]


@each(CASES)
def test_observations_are_normalised_as_recorded(folder):
    recording = Recording(folder)
    for prefix in ("", "rollout/"):
        for group in ("obs", "goal"):
            raw = recording.nested(f"{prefix}{group}/")
            for key, expected in recording.nested(f"{prefix}{group}_normalized/").items():
                actual = recording.algo.prepare_obs(raw, group)[key] if raw else expected
                compare(actual, expected, f"{prefix}{group}_normalized/{key}", NORMALIZED)


@pytest.mark.parametrize(("folder", "split"), SPLITS)
def test_outputs(folder, split):
    recording = Recording(folder)
    check(recording, f"{split}/", recording.outputs(split))


@each(TRAININGS)
def test_training_steps(folder):
    recording = Recording(folder)
    algo, expected = recording.algo, recording.expected
    largest = {name: 0.0 for name, p in algo.nets.named_parameters() if p.requires_grad}
    algo.set_train()
    for step, logs in enumerate(expected["train_logs"]):
        batch = recording.nested(f"batch{step}/")
        batch.pop("noise", None)
        with Replay(recording.draws(f"batch{step}/")):
            info = algo.train_on_batch(
                algo.process_batch_for_training(batch), epoch=expected["train_epoch"]
            )
        actual = algo.log_info(info)
        assert actual.keys() >= logs.keys()  # IQL's have no Loss there
        assert logs[expected["train_loss_key"]] == expected["train_losses"][step]
        for name, value in logs.items():
            assert actual[name] == pytest.approx(value, rel=1e-4, abs=2e-6), (step, name)
        for name in largest:
            gradient = algo.nets.get_parameter(name).grad
            if gradient is not None:
                largest[name] = max(largest[name], float(gradient.abs().max()))
    for split in ("expected_after", "expected_after_eval", "expected_after_ema"):
        if recording.under(f"{split}/"):
            check(recording, f"{split}/", recording.outputs(split), TRAINED)
    weights = exported(algo)
    names = {value.data_ptr(): name for name, value in algo.nets.state_dict().items()}
    for name, norm in expected["final_param_norms"].items():
        ours = names.get(weights[name].data_ptr())
        # Where the exact gradient is zero (a bias before a softmax), Adam follows rounding errors.
        rounding = largest.get(ours, 1.0) < 1e-7
        tolerance = {"abs": 5e-3} if rounding else {"rel": 1e-4}
        assert float(weights[name].norm()) == pytest.approx(norm, **tolerance), name


@each(EPISODES)
def test_episodes(folder):
    """From a fresh start, as ``RolloutPolicy`` takes their steps; or with observations and actions
    left as they are, as robomimic's ``get_action`` does."""
    recording = Recording(folder)
    try:
        check(recording, "rollout/", recording.episode())
    except AssertionError:
        with recording.unnormalized():
            check(recording, "rollout/", recording.episode())


@each(CASES)
def test_weights_come_back_under_robomimics_names(folder):
    recording = Recording(folder)
    weights = exported(recording.algo)
    assert weights.keys() == recording.weights.keys()
    assert all(torch.equal(weights[key], recording.weights[key]) for key in weights)
    for algo in leaves(recording.algo):
        again = weights_from_robomimic(weights_to_robomimic(algo.nets))
        assert again.keys() == algo.nets.state_dict().keys()
