"""Forward outputs and five training steps equal robomimic's, from its weights and its batches."""

import json

import numpy as np
import pytest
import torch
from conftest import GOLDEN

from offrl import algo_factory, config_factory

CASES = sorted((GOLDEN / "cases").iterdir())
OUTPUTS = {"action": "action", "mean": "mean", "scale": "std", "logits": "logits"}


def rename(key):
    """robomimic's names of an MLP policy's weights to ours."""
    key = key.replace("policy.nets.mlp._model.", "policy.trunk.layers.")
    return key.replace("policy.nets.decoder.nets.", "policy.head.")


def nested(arrays, prefix):
    tree = {}
    for key in arrays:
        if key.startswith(prefix):
            *groups, name = key.removeprefix(prefix).split("/")
            branch = tree
            for group in groups:
                branch = branch.setdefault(group, {})
            branch[name] = torch.tensor(arrays[key])
    return tree


def load(case):
    config = json.loads((case / "config.json").read_text())
    checkpoint = torch.load(case / "model.pth", weights_only=True)
    shapes = checkpoint["shape_metadata"]
    algo = algo_factory(
        config["algo_name"],
        config_factory(config["algo_name"], config),
        shapes["all_shapes"],
        shapes["ac_dim"],
        device="cpu",
    )
    algo.deserialize({rename(k): v for k, v in checkpoint["model"]["nets"].items()})
    return algo, np.load(case / "io.npz"), json.loads((case / "expected.json").read_text())


def check_outputs(algo, arrays, split):
    obs = {key: value[:, None] for key, value in nested(arrays, "obs/").items()}
    pi, _ = algo.nets["policy"](obs, nested(arrays, "goal/"))
    pi = pi.at(-1)
    checked = 0
    for name, attribute in OUTPUTS.items():
        if f"{split}/{name}" in arrays and hasattr(pi, attribute):
            actual = getattr(pi, attribute).detach()
            np.testing.assert_allclose(actual, arrays[f"{split}/{name}"], rtol=1e-5, atol=1e-6)
            checked += 1
    if f"{split}/log_prob" in arrays:
        log_prob = pi.log_prob(torch.tensor(arrays["actions"])).detach()
        np.testing.assert_allclose(log_prob, arrays[f"{split}/log_prob"], rtol=1e-5, atol=1e-4)
    assert checked


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_outputs_and_training_equal_robomimics(case):
    algo, arrays, expected = load(case)
    check_outputs(algo, arrays, "expected")
    algo.set_train()
    for i, logs in enumerate(expected["train_logs"]):
        batch = algo.process_batch_for_training(nested(arrays, f"batch{i}/"))
        actual = algo.log_info(algo.train_on_batch(batch, epoch=expected["train_epoch"]))
        assert actual.keys() == logs.keys()
        for name, value in logs.items():
            assert actual[name] == pytest.approx(value, rel=1e-4), name
    check_outputs(algo, arrays, "expected_after")
    weights = algo.nets.state_dict()
    for name, norm in expected["final_param_norms"].items():
        assert float(weights[rename(name)].norm()) == pytest.approx(norm, rel=1e-4), name


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_acting_in_eval_mode_has_robomimics_noise(case):
    algo, arrays, _ = load(case)
    algo.set_eval()
    action = algo.get_action(nested(arrays, "obs/"), nested(arrays, "goal/") or None).numpy()
    if "expected_eval/mean" in arrays:
        candidates = arrays["expected_eval/mean"].reshape(len(action), -1, action.shape[-1])
    else:
        candidates = arrays["expected/action"][:, None]
    distance = np.abs(action[:, None] - candidates).max(-1).min(-1)
    assert distance.max() < 6e-4  # a standard deviation of 1e-4 at the most
