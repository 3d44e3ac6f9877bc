"""Checkpoints and run folders of the version before the house was rearranged (commit 4405b1e).

``tests/checkpoints`` holds one small checkpoint per algorithm, written after the first of two
epochs, and what that version's policies did and its second epoch ended with.
"""

import json
import shutil

import numpy as np
import pytest
import torch
from conftest import ROOT

from offrl import Trainer, policy_from_checkpoint
from offrl.checkpoint import brought_up_to_date, read_checkpoint
from offrl.registry import ALGOS
from offrl.training import RunFolder

FOLDER = ROOT / "tests/checkpoints"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
# They acted with a noise of 1e-4; of these all but the mixture act by their means now.
NOISY = {"bc_gmm", "bc_transformer_gaussian", "awac", "cal_ql", "cql", "crr", "edac", "iql"}
NOISY |= {"sac_n", "xql"}


# That version did not have them.
LATER = {"gl", "hbc", "iris", "hiql", "new_algorithm", "new_chunk_policy"}
LATER |= {"reinforce", "a2c", "ppo", "impala", "td3", "ddpg", "sac", "dqn", "discrete_sac"}
LATER |= {"rlpd", "residual"}
LATER |= {"diffusion_policy", "flow_matching", "act", "vq_bet"}
LATER |= {"dagger", "sqil", "discrete_sqil", "gail"}


def test_there_is_one_of_every_algorithm():
    stored = {read_checkpoint(path)["algo_name"] for path in FOLDER.glob("*.pth")}
    assert stored == set(ALGOS.names()) - LATER
    assert {path.stem for path in FOLDER.glob("*.pth")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_policy_acts_as_it_did(name):
    policy, ckpt = policy_from_checkpoint(FOLDER / f"{name}.pth", device="cpu")
    rng = np.random.default_rng(0)
    policy.start_episode(seed=7)
    tolerance = 1e-3 if name in NOISY else 1e-5
    for i, expected in enumerate(EXPECTED[name]["actions"]):
        obs = {"position": rng.standard_normal(3), "speed": rng.standard_normal(2)}
        action = policy(obs, reward=float(i))
        np.testing.assert_allclose(action, expected, atol=tolerance, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPECTED)
def test_a_run_goes_on_as_it_would_have(name, tmp_path):
    """From the run folder, to the weights that the second epoch ended with."""
    state = read_checkpoint(FOLDER / f"{name}.pth")
    content = json.loads(state["config"])
    data = FOLDER / content["train"]["data"][0]["path"]
    content["train"]["data"][0]["path"] = str(data)
    run = tmp_path / "run"
    for folder in ("models", "logs", "videos"):
        (run / folder).mkdir(parents=True)
    (run / "config-4405b1e0.json").write_text(json.dumps(content))
    shutil.copy(FOLDER / f"{name}.pth", run / "last.pth")
    run, config = RunFolder.open(run)
    trainer = Trainer(config, run)
    trainer.restore(read_checkpoint(run.last_checkpoint))
    assert (trainer.epoch, trainer.step) == (1, 3)
    assert [r["type"] for r in trainer()] == ["train", "epoch"]
    weights = trainer.algo.nets.state_dict()
    norms = EXPECTED[name]["norms_after"]
    assert weights.keys() == norms.keys()
    for key, norm in norms.items():
        assert float(weights[key].double().norm()) == pytest.approx(norm, rel=1e-5), key
    assert torch.isfinite(torch.stack([w.float().sum() for w in weights.values()])).all()


def test_half_an_epoch_is_logged_by_the_names_of_today():
    counts = {"loss": 2, "planner.kl_loss": 2, "actor.nll": 2, "actor.policy_grad_norm": 1}
    averages = {"counts": counts, "total": torch.arange(4.0), "rows": torch.ones(1, 4)}
    content = {"algo_name": "hbc", "provenance": {}, "averages": averages}
    for _ in range(2):
        averages = brought_up_to_date(content)["averages"]
        assert averages["counts"] == {
            "loss": 2,
            "planner.kl_loss": 2,
            "planner.KL_Loss": 2,
            "actor.Log_Likelihood": 2,
            "actor.Policy_Grad_Norms": 1,
        }
        assert averages["total"].tolist() == [0, 1, 1, -2, 3]
        assert averages["rows"].tolist() == [[1, 1, 1, -1, 1]]
