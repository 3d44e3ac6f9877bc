"""The golden tests themselves: recordings with more in them, and with errors."""

import json
import shutil

import numpy as np
import pytest
import test_golden
import torch
from conftest import GOLDEN
from recording import Recording


@pytest.fixture
def altered(tmp_path):
    """A function: name of a case, arrays to add or to leave out (``None``), entries of
    ``expected.json`` and of the checkpoint -> the folder of the altered case."""

    def make(case, arrays=None, entries=None, checkpoint=None):
        folder = shutil.copytree(GOLDEN / "cases" / case, tmp_path / "case")
        with np.load(folder / "io.npz") as file:
            content = dict(file) | (arrays or {})
        np.savez(folder / "io.npz", **{k: x for k, x in content.items() if x is not None})
        expected = json.loads((folder / "expected.json").read_text()) | (entries or {})
        (folder / "expected.json").write_text(json.dumps(expected))
        model = torch.load(folder / "model.pth", weights_only=True) | (checkpoint or {})
        torch.save(model, folder / "model.pth")
        return folder

    return make


@pytest.mark.parametrize("name", ["expected_surprise/x", "batch0/surprise", "surprise", "obs"])
def test_an_unknown_array_fails(altered, name):
    with pytest.raises(AssertionError):
        test_golden.test_every_entry_of_a_recording_is_known(altered("bc", {name: np.zeros(1)}))


def test_an_unknown_entry_fails(altered):
    with pytest.raises(AssertionError):
        test_golden.test_every_entry_of_a_recording_is_known(altered("bc", entries={"new": 1}))


@pytest.mark.parametrize(
    ("case", "name"),
    [("bc", "mean"), ("bc_vae", "prior_mean"), ("iql", "candidates"), ("bc_gmm", "final_state_h")],
)
def test_an_unknown_output_fails(altered, case, name):
    with pytest.raises(AssertionError, match=name):
        test_golden.test_outputs(altered(case, {f"expected/{name}": np.zeros(1)}), "expected")


@pytest.mark.parametrize("case", ["bc_rnn", "v030_bc_rnn_gmm_normalized", "v030_bc_gmm_draws"])
def test_another_action_in_an_episode_fails(altered, case):
    with np.load(GOLDEN / "cases" / case / "io.npz") as file:
        action = file["rollout/action"] + 1e-3
    with pytest.raises(AssertionError):
        test_golden.test_episodes(altered(case, {"rollout/action": action}))


@pytest.mark.parametrize(
    ("case", "draw"),
    [("v030_bcq_gmm", 0), ("v030_bcq_gmm", 1), ("v030_bc_vae_categorical", 0), ("cql", 0)],
)
def test_other_random_numbers_in_training_fail(altered, case, draw):
    name = f"batch0/noise/{draw}"
    with np.load(GOLDEN / "cases" / case / "io.npz") as file:
        other = file[name][::-1]
    with pytest.raises(AssertionError):
        test_golden.test_training_steps(altered(case, {name: other}))


def test_actions_are_told_from_the_networks(altered):
    stats = {"actions": {"scale": [[2.0] * 7], "offset": [[0.1] * 7]}}
    with np.load(GOLDEN / "cases/td3_bc/io.npz") as file:
        before = dict(file)
    arrays = {
        "expected/network_action": before["expected/action"],
        "expected/action": 2 * before["expected/action"] + 0.1,
        "expected/action_from_unnormalised_obs": 2 * before["expected/rollout_policy_action"] + 0.1,
        "expected/rollout_policy_action": None,
    }
    folder = altered("td3_bc", arrays, checkpoint={"action_normalization_stats": stats})
    test_golden.test_outputs(folder, "expected")


def test_normalised_observations_are_what_networks_see(altered):
    model = torch.load(GOLDEN / "cases/td3_bc/model.pth", weights_only=True)
    stats = model["obs_normalization_stats"]
    with np.load(GOLDEN / "cases/td3_bc/io.npz") as file:
        seen = {k.removeprefix("obs/"): file[k] for k in file if k.startswith("obs/")}
    arrays = {f"obs_normalized/{k}": x for k, x in seen.items()}
    for key, x in seen.items():
        scale, offset = (np.float32(stats[key][name]) for name in ("scale", "offset"))
        arrays[f"obs/{key}"] = x * scale + offset
    arrays["expected/rollout_policy_action"] = None
    folder = altered("td3_bc", arrays)
    test_golden.test_outputs(folder, "expected")
    test_golden.test_observations_are_normalised_as_recorded(folder)


def test_an_episode_has_one_goal_or_one_for_every_step(altered):
    with np.load(GOLDEN / "cases/v030_bc_rnn_open_loop/io.npz") as file:
        goal = {k: file[k] for k in file if k.startswith("rollout/goal/")}
        steps = len(file["rollout/action"])
    goals = {k: np.repeat(x[None], steps, axis=0) for k, x in goal.items()}
    folder = altered("v030_bc_rnn_open_loop", goals)
    test_golden.test_episodes(folder)
    recording = Recording(folder)
    recording.arrays[next(iter(goals))] += 1
    with pytest.raises(AssertionError):
        test_golden.check(recording, "rollout/", recording.episode())
