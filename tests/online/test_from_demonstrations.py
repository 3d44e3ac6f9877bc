"""RLPD, and corrections of a policy that stays as it is."""

import copy

import numpy as np
import pytest
import torch
from conftest import ROOT

from offrl import Trainer, algo_factory, config_factory, policy_from_checkpoint
from offrl.checkpoint import describe_policy, read_checkpoint, write_checkpoint
from offrl.seeding import seed_everything

BC = ROOT / "tests/checkpoints/bc.pth"
SHAPES = {"position": (3,), "speed": (2,)}
SEEN = {"modalities": {"obs": {"low_dim": list(SHAPES)}}}


def make(name, algo=None, shapes=SHAPES):
    seed_everything(0)
    small = {"critic": {"layer_dims": [16, 16]}, "actor": {"layer_dims": [16, 16]}}
    content = {"algo": small | (algo or {}), "observation": SEEN}
    config = config_factory(name, content)
    return algo_factory(name, config, shapes, ac_dim=2, device="cpu"), config


def batch(size=16):
    torch.manual_seed(1)
    seen = {key: torch.randn(size, 1, *shape) for key, shape in SHAPES.items()}
    later = {key: torch.randn(size, 1, *shape) for key, shape in SHAPES.items()}
    return {
        "obs": seen,
        "next_obs": later,
        "actions": torch.rand(size, 1, 2) * 2 - 1,
        "rewards": torch.rand(size, 1),
        "dones": torch.zeros(size, 1),
    }


def test_rlpd_has_many_normalised_critics_and_demonstrations_in_half_of_a_batch():
    config = config_factory("rlpd")
    assert config.algo.critic.ensemble.n == 10
    assert config.algo.critic.num_in_target == 2
    assert config.train.online.replay.demo_share == 0.5
    algo, _ = make("rlpd")
    assert any("Norm" in type(layer).__name__ for layer in algo.nets["critic"].modules())
    assert algo.target_entropy({}) == -1.0  # of two dimensions


def test_rlpd_believes_the_least_of_two_critics_drawn_at_random():
    algo, _ = make("rlpd")
    q = torch.arange(10.0).view(10, 1, 1)
    torch.manual_seed(0)
    values = [algo.least_of_few(q).item() for _ in range(2000)]
    # Of pairs out of ten, k is the least in (9 - k) / 45.
    expected = np.array([(9 - k) / 45 for k in range(10)])
    counts = np.bincount(np.array(values, dtype=int), minlength=10) / len(values)
    np.testing.assert_allclose(counts, expected, atol=0.04)


def test_the_actor_of_rlpd_climbs_the_mean_of_all_critics():
    algo, _ = make("rlpd")
    ready = algo.process_batch_for_training(batch())
    pi, _ = algo.policy(ready["obs"])
    torch.manual_seed(0)
    value, _ = algo.q_and_log_pi("critic", ready["obs"], pi)
    torch.manual_seed(0)
    actions, _ = pi.rsample(1)
    torch.testing.assert_close(value, algo.nets["critic"](ready["obs"], actions, None).mean(0))


def test_rlpd_trains_the_actor_after_some_updates_of_the_critics():
    algo, _ = make("rlpd", {"actor": {"layer_dims": [16, 16], "update_freq": 3}})
    ready = algo.process_batch_for_training(batch())
    changes = []
    for _ in range(7):
        before = copy.deepcopy(algo.nets.state_dict())
        algo.train_on_batch(ready, epoch=1)
        after = algo.nets.state_dict()
        changed = {k.split(".")[0] for k in after if not torch.equal(before[k], after[k])}
        changes.append("actor" in changed)
        assert {"critic", "critic_target"} <= changed
    assert changes == [False, False, True, False, False, True, False]


@pytest.fixture
def residual():
    algo, config = make("residual", {"scale": 0.3})
    algo.start_from(read_checkpoint(BC))
    return algo, config


def test_a_correction_is_added_to_a_policy_that_stays(residual):
    algo, _ = residual
    policy, _ = policy_from_checkpoint(BC, device="cpu")
    raw = batch(4)["obs"]
    algo.set_eval()
    base = policy.policy.predict({k: x[:, 0] for k, x in raw.items()})
    weights = copy.deepcopy(algo.base.nets.state_dict())
    torch.testing.assert_close(algo._base_actions(algo.base, raw)[:, 0], base)
    ready = algo.process_batch_for_training(batch())
    for _ in range(30):
        algo.train_on_batch(ready, epoch=1)
    assert all(torch.equal(x, weights[k]) for k, x in algo.base.nets.state_dict().items())
    algo.set_train()
    actions = torch.stack([algo.explore(raw)[0] for _ in range(300)])
    apart = (actions - base.clamp(-1, 1)).abs()
    assert 0.05 < apart.max() <= 0.3 + 1e-5  # algo.scale
    assert actions.abs().max() <= 1


def test_the_critics_of_a_residual_policy_see_the_sum(residual, monkeypatch):
    algo, _ = residual
    ready = algo.process_batch_for_training(batch())
    seen = []
    critic = algo.nets["critic"]
    forward = critic.forward
    monkeypatch.setattr(critic, "forward", lambda o, a, g=None: seen.append(a) or forward(o, a, g))
    algo.train_on_batch(ready, epoch=1)
    actions = seen[0].detach()[:, :1]  # the actor's, of which there is one
    base = ready["obs"]["base_actions"]
    assert (actions - base).abs().max() <= 0.3 + 1e-5
    assert not torch.equal(actions, base)


def test_a_checkpoint_of_a_residual_policy_holds_its_base(residual, tmp_path):
    algo, config = residual
    path = tmp_path / "residual.pth"
    config.experiment.ckpt_path = "gone.pth"
    write_checkpoint(path, describe_policy(algo, config, None, SHAPES, 2, {}, {}))
    loaded, _ = policy_from_checkpoint(path, device="cpu")
    raw = {key: x[0, 0].numpy() for key, x in batch(1)["obs"].items()}
    loaded.start_episode()
    expected = algo.predict({key: torch.from_numpy(x)[None] for key, x in raw.items()})[0]
    np.testing.assert_allclose(loaded(raw), expected.numpy(), atol=1e-6)
    again, _ = make("residual")
    again.start_from(read_checkpoint(path))  # it goes on
    assert again.base is not None


def test_a_correction_does_not_begin_by_cloning():
    with pytest.raises(ValueError, match="algo.actor.bc_start_steps"):
        make("residual", {"actor": {"bc_start_steps": 5}})


def test_a_residual_policy_needs_a_base_that_fits(residual, small_config):
    algo, _ = make("residual")
    with pytest.raises(ValueError, match="residual: .*experiment.ckpt_path"):
        algo.process_batch_for_training(batch())
        algo.act({key: x for key, x in batch()["obs"].items()})
    with pytest.raises(ValueError, match="residual: bc"):
        algo.start_from(read_checkpoint(ROOT / "tests/checkpoints/bc_rnn.pth"))
        algo.act({key: x for key, x in batch()["obs"].items()})
    with pytest.raises(ValueError, match="^vq_bet"):
        algo.start_from(Trainer(small_config({"algo": {}}, "vq_bet")).state())
    content = read_checkpoint(BC)
    content["shape_metadata"] = content["shape_metadata"] | {"ac_dim": 3}
    with pytest.raises(ValueError, match=r"\bbc\b.*\[2\].*\[3\]"):
        algo.start_from(content)
