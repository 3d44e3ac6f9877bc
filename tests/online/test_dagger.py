"""Learning from an expert who is asked: DAgger."""

import imitated
import numpy as np
import pytest
import torch
from imitated import (
    PLACE,
    POLE,
    RATE,
    RNN,
    as_row,
    make,
    mean_return,
    record,
    resumed_equals_uninterrupted,
    rounds,
    write_policy,
)

from offrl import RolloutPolicy, config_factory, policy_from_checkpoint
from offrl import Trainer as Offline
from offrl.online import Trainer
from offrl.tree import merge

VARIANTS = {
    "deterministic": {},
    "gaussian": {"gaussian": {"enabled": True}},
    "gmm": {"gmm": {"enabled": True}},
    "rnn": {"rnn": RNN},
    "transformer": {
        "transformer": {"enabled": True, "embed_dim": 16, "num_heads": 2, "num_layers": 1}
    },
    "vae": {"vae": {"enabled": True}},
}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    return str(record(tmp_path_factory.mktemp("places") / "places.hdf5", PLACE, 10))


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(name, marks=[] if name in ("deterministic", "rnn") else pytest.mark.thorough)
        for name in VARIANTS
    ],
)
def test_any_policy_of_bc_learns_from_an_expert(variant):
    train = {"online": {"num_envs": 2, "num_updates": 40}}
    algo = {"optim_params": {"policy": RATE}} | VARIANTS[variant]
    trainer = make("dagger", train=train, algo=algo)
    rounds(trainer, 1)
    before = mean_return(RolloutPolicy(trainer.alg), PLACE)
    rounds(trainer, 9)
    after = mean_return(RolloutPolicy(trainer.alg), PLACE)
    assert after > -9 and after > before - 1, (before, after)  # the expert has -1.6


def test_what_is_stored_is_what_the_expert_would_do_there():
    trainer = make("dagger", train={"online": {"num_envs": 2}})
    rounds(trainer, 2)
    store = trainer.buffer.store
    rows = store.is_step
    obs, actions = store.arrays["obs/flat"][rows], store.arrays["actions"][rows]
    shown = np.stack([imitated.go_there({"flat": x}) for x in obs])
    np.testing.assert_allclose(actions, shown / 2, atol=1e-6)  # in the units of the policy
    assert len(obs) == 120


@pytest.mark.parametrize(("decay", "shares"), [(0.0, (1, 0, 0)), (0.5, (1, 0.5, 0.25))])
def test_the_expert_acts_the_less_the_later_the_round(decay, shares, monkeypatch):
    trainer = make("dagger", algo={"beta_decay": decay}, train={"online": {"collect_steps": 300}})
    trainer.alg.act = lambda seen: (torch.full((len(seen.obs["flat"]), 2), 0.123), None)
    taken, step = [], trainer.envs.step
    monkeypatch.setattr(trainer.envs, "step", lambda raw: taken.append(raw.copy()) or step(raw))
    trainer.alg.update = lambda batch: {"loss": torch.zeros(())}
    for share in shares:
        taken.clear()
        rounds(trainer, 1)
        is_own = np.isclose(np.concatenate(taken), 0.246).all(axis=1)
        assert 1 - is_own.mean() == pytest.approx(share, abs=0.1 if 0 < share < 1 else 0)


def test_the_expert_may_be_a_policy_with_memory(tmp_path):
    path = write_policy(tmp_path / "expert.pth", algo={"rnn": RNN})
    trainer = make(
        "dagger",
        algo={"expert": str(path)},
        train={"frame_stack": 2, "online": {"num_envs": 2, "collect_steps": 45}},
    )
    rounds(trainer, 1)
    policy, _ = policy_from_checkpoint(path, device="cpu")
    store = trainer.buffer.store
    for row in range(45):
        if store.begins[row] == row:
            policy.start_episode()
        if store.is_step[row]:
            raw = policy({"flat": store.arrays["obs/flat"][row]})
            shown = np.clip(raw, -2, 2) / 2
            np.testing.assert_allclose(store.arrays["actions"][row], shown, atol=1e-5)


def test_demonstrations_are_part_of_what_is_learned_from(places):
    trainer = make("dagger", train={"data": places})
    rounds(trainer, 1)
    num_demos = len(trainer.buffer.demos)
    batch = trainer.buffer.draw(3, 100)
    assert len(batch["actions"]) == 300
    assert batch["is_demo"].mean() == pytest.approx(num_demos / (num_demos + 30), abs=0.01)


@pytest.mark.slow
def test_dagger_does_better_than_cloning_the_same_demonstrations(tmp_path):
    """The first steps of one episode say little of how a pole is caught."""
    data = str(record(tmp_path / "few.hdf5", POLE, 1, horizon=100))
    algo = {"actor_layer_dims": [32, 32], "optim_params": {"policy": RATE}}
    common = {"train": {"data": data, "batch_size": 64, "cuda": False}, "algo": algo}
    common["experiment"] = {"env": POLE, "epoch_every_n_steps": 1500}
    online = {"num_steps": 1000, "online": {"collect_steps": 100, "num_updates": 150}}
    dagger = Trainer(merge(common, {"train": online}), algo_name="dagger")
    list(dagger())
    observation = {"modalities": {"obs": {"low_dim": ["flat"]}}}
    discrete = {"action_config": {"actions": {"format": "discrete"}}, "num_epochs": 1}
    cloning = {"observation": observation, "train": discrete, "algo_name": "bc"}
    bc = Offline(config_factory("bc", merge(common, cloning)))
    list(bc())
    scores = {}
    for name, alg in {"dagger": dagger.alg, "bc": bc.algo}.items():
        scores[name] = mean_return(lambda obs, a=alg: a.predict(as_row(obs)).numpy()[0], POLE)
    assert scores["dagger"] > 450 and scores["bc"] < 300, scores


@pytest.mark.slow
def test_meta_worlds_experts_are_asked():
    pytest.importorskip("metaworld")
    kind = {"env_meta_update_dict": {"type": "metaworld"}}
    online = {"collect_steps": 150, "num_updates": 1}
    trainer = make("dagger", "reach-v3", experiment=kind, train={"online": online})
    record = next(trainer.round())
    assert record["logs"]["Success_Rate"] == 1.0  # the expert has acted
    assert np.abs(trainer.buffer.store.arrays["actions"]).max() <= 1.0


def test_dagger_goes_on_beside_a_scripted_expert():
    algo = {"beta_decay": 0.7, "gmm": {"enabled": True}}
    resumed_equals_uninterrupted(lambda: make("dagger", algo=algo), 2)


def test_dagger_goes_on_beside_an_expert_with_memory(tmp_path):
    path = write_policy(
        tmp_path / "expert.pth", algo={"rnn": RNN, "gmm": {"enabled": True}}, frame_stack=2
    )
    algo = {"expert": str(path), "beta_decay": 0.7, "rnn": RNN}
    train = {"online": {"num_envs": 2, "collect_steps": 27}}  # in the midst of an episode
    resumed_equals_uninterrupted(lambda: make("dagger", algo=algo, train=train), 2)


def test_a_task_without_a_scripted_expert_is_said():
    with pytest.raises(ValueError, match="algo.expert: Acrobot-v1 .*Lift.*Meta-World"):
        make("dagger", "Acrobot-v1")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"ac_dim": 3}, " 3 .*imitated:Place-v0"),
        ({"obs": ("camera",)}, "'camera'.*flat"),
        ({"shape": 3}, r"'flat'.*\[2\].*\[3\]"),
        ({"name": "dt", "algo": {"embed_dim": 16}}, "rewards"),
        ({"name": "gl"}, r"\bact\b"),
    ],
)
def test_a_checkpoint_that_cannot_be_asked_is_named(made, message, tmp_path):
    path = write_policy(tmp_path / "other.pth", **made)
    with pytest.raises(ValueError, match=f"algo.expert: {path}: .*{message}"):
        make("dagger", algo={"expert": str(path)})


def test_an_expert_that_fails_is_named(monkeypatch):
    trainer = make("dagger")
    trainer.agent.expert._function = lambda obs: obs["gripper"]
    with pytest.raises(ValueError, match="algo.expert: .*imitated:Place-v0 .*'gripper'"):
        next(trainer.round())


def test_cloning_without_acting_is_remarked(places, caplog):
    observation = {"modalities": {"obs": {"low_dim": ["flat"]}}}
    config = config_factory(
        "dagger", {"train": {"data": places, "cuda": False}, "observation": observation}
    )
    Offline(config)
    assert "no expert is asked" in caplog.text
