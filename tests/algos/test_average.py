"""Moving averages of weights (``train.ema``): what they are, and where they are used."""

import copy
import pickle

import numpy as np
import pytest
import torch
from conftest import write_demos

from offrl import algo_factory, config_factory, policy_from_checkpoint
from offrl.checkpoint import write_checkpoint
from offrl.seeding import seed_everything
from offrl.testing import AlgoCase, resumed_equals_uninterrupted
from offrl.training.recorded import Trainer
from offrl.tree import leaves

pytestmark = pytest.mark.slow

OBS = {"position": torch.zeros(1, 3), "speed": torch.zeros(1, 2)}
SMALL = {"bc": {"actor_layer_dims": [8]}, "hbc": {"planner": {"subgoal_horizon": 2}}}


def overrides(tmp_path, ema, **train):
    return {
        "experiment": {"epoch_every_n_steps": 4, "rollout": {"enabled": False}},
        "train": {
            "data": str(write_demos(tmp_path / "demos.hdf5")),
            "output_dir": str(tmp_path / "runs"),
            "batch_size": 4,
            "num_epochs": 2,
            "cuda": False,
            "ema": ema,
            **train,
        },
        "algo": SMALL["bc"],
        "observation": {"modalities": {"obs": {"low_dim": list(OBS)}}},
    }


@pytest.mark.parametrize(
    ("ema", "decay"),
    [
        ({"power": 0.75}, lambda step: 1 - max(1, step) ** -0.75),
        ({"power": 1.0, "max_decay": 0.7}, lambda step: min(0.7, 1 - 1 / max(1, step))),
        ({"power": None, "max_decay": 0.9}, lambda step: 0.9 if step else 0.0),
    ],
)
def test_the_average_is_that_of_the_schedule(tmp_path, ema, decay):
    config = config_factory("bc", overrides(tmp_path, {"enabled": True, **ema}))
    shapes = {key: tuple(x.shape[1:]) for key, x in OBS.items()}
    algo = algo_factory("bc", config, shapes, ac_dim=2, device="cpu")
    expected = copy.deepcopy(algo.nets.state_dict())
    batch = {"obs": {k: torch.randn(4, 1, *s) for k, s in shapes.items()}}
    batch["actions"] = torch.rand(4, 1, 2)
    for step in range(5):
        algo.set_train()
        algo.train_on_batch(algo.process_batch_for_training(batch), epoch=1)
        for name, weight in algo.nets.state_dict().items():
            expected[name] += (1 - decay(step)) * (weight - expected[name])
        algo.set_eval()
        for name, weight in algo.nets.state_dict().items():
            torch.testing.assert_close(weight, expected[name])


@pytest.mark.parametrize("name", ["bc", "hbc"])
def test_a_resumed_training_has_the_same_average(tmp_path, name):
    """``hbc``: in each of its parts."""
    ema = {"train": {"ema": {"enabled": True}}, "algo": SMALL[name]}
    resumed_equals_uninterrupted(AlgoCase(name, ema, tmp_path))


def test_validation_and_policies_use_it(tmp_path):
    """With a decay of nearly one, the average is still what the first step made."""
    names = {
        "hdf5_filter_key": "train",
        "hdf5_validation_filter_key": "valid",
        "mask_padded_steps": True,
    }
    ema = {"enabled": True, "power": None, "max_decay": 1 - 1e-9}
    changes = overrides(tmp_path, ema, **names)
    changes["experiment"] |= {"validate": True, "save": {"enabled": False}}
    trainer = Trainer(config_factory("bc", changes))
    records = [r for r in trainer() if r["type"] == "valid"]
    losses = [record["logs"]["Loss"] for record in records]
    assert len(losses) == 2 and losses[0] == pytest.approx(losses[1], abs=1e-7)

    trainer.algo.set_eval()
    average = trainer.algo.get_action(OBS)
    path = tmp_path / "checkpoint.pth"
    write_checkpoint(path, trainer.state())
    policy, _ = policy_from_checkpoint(path, device="cpu")
    policy.start_episode()
    action = policy({key: x[0].numpy() for key, x in OBS.items()})
    np.testing.assert_allclose(action, average[0].numpy(), atol=1e-6)
    trainer.algo.set_train()
    assert (trainer.algo.get_action(OBS) - average).abs().max() > 1e-4


def test_what_does_not_learn_any_more_is_its_average(tmp_path):
    """A policy of codes should learn from the codes that it acts with."""
    changes = overrides(tmp_path, {"enabled": True, "power": None, "max_decay": 0.9})
    changes["train"] |= {"num_epochs": 4}
    horizon = {"observation_horizon": 2, "action_horizon": 2, "prediction_horizon": 4}
    changes["algo"] = {"horizon": horizon, "vq": {"epochs": 0.5}}
    trainer = Trainer(config_factory("vq_bet", changes))
    nets = trainer.algo.nets

    def distance(name):
        trainer.algo.set_train()
        trained = copy.deepcopy(nets[name].state_dict())
        trainer.algo.set_eval()
        shown = nets[name].state_dict()
        return max(float((trained[key] - shown[key]).abs().max()) for key in trained)

    distances = {}
    for record in trainer():
        if record["type"] == "train":
            epoch = trainer.epoch
            distances[epoch] = distance("codes"), distance("policy")
            trainer.algo.set_train()
    assert all(distances[epoch][0] > 0 for epoch in (1, 2))
    assert all(distances[epoch][0] == 0 and distances[epoch][1] > 0 for epoch in (3, 4))


def test_a_checkpoint_with_averages_is_refused_where_there_are_none(tmp_path):
    path = tmp_path / "checkpoint.pth"
    write_checkpoint(
        path, Trainer(config_factory("bc", overrides(tmp_path, {"enabled": True}))).state()
    )
    changes = overrides(tmp_path, {"enabled": False})
    changes["experiment"]["ckpt_path"] = str(path)
    with pytest.raises(ValueError, match=r"checkpoint\.pth: train\.ema\.enabled"):
        Trainer(config_factory("bc", changes))
    changes["train"]["ema"]["enabled"] = True
    Trainer(config_factory("bc", changes))


def test_an_average_can_begin_with_weights_that_had_none(tmp_path):
    path = tmp_path / "checkpoint.pth"
    source = Trainer(config_factory("bc", overrides(tmp_path, {"enabled": False})))
    write_checkpoint(path, source.state())
    changes = overrides(tmp_path, {"enabled": True})
    changes["experiment"]["ckpt_path"] = str(path)
    algo = Trainer(config_factory("bc", changes)).algo
    algo.set_eval()
    source.algo.set_eval()
    assert torch.equal(algo.get_action(OBS), source.algo.get_action(OBS))


def trained(tmp_path, name, ema):
    changes = overrides(tmp_path, ema) | {"algo": SMALL[name]}
    if name == "hbc":
        changes["observation"] = {"planner": changes["observation"]}
    trainer = Trainer(config_factory(name, changes))
    list(trainer())
    return trainer


@pytest.mark.parametrize("name", ["bc", "hbc"])
def test_a_policy_that_acts_has_averages_alone_until_it_learns(tmp_path, name):
    trainer = trained(tmp_path, name, {"enabled": True, "power": None, "max_decay": 0.9})
    content = copy.deepcopy(trainer.state())
    batch = next(iter(trainer.experiment.loader))
    loaded, _ = policy_from_checkpoint(ckpt_dict=copy.deepcopy(content), device="cpu")
    elsewhere = pickle.loads(pickle.dumps(loaded))
    trainer.algo.set_eval()  # so that its networks have the averages
    for algo in (loaded.policy, elsewhere.policy):
        parts = [algo, *getattr(algo, "parts", {}).values()]
        assert not any("_learning" in vars(part) or part._average._averages for part in parts)
        assert_same(algo.nets, trainer.algo.nets)
    for policy in (loaded, elsewhere):  # which may be validated
        ready = policy.policy.process_batch_for_training(batch)
        info = policy.policy.train_on_batch(ready, epoch=1, validate=True)
    assert "Loss" in loaded.policy.log_info(info)
    for forbidden in (elsewhere.policy.serialize, lambda: elsewhere.policy.learn(batch)):
        with pytest.raises(ValueError, match=f"{name} .*deserialize"):
            forbidden()
    elsewhere.policy.deserialize(content["model"])
    for algo in (loaded.policy, elsewhere.policy, trainer.algo):
        seed_everything(1)
        algo.set_train()
        algo.learn(batch)
    assert_same(loaded.policy.nets, trainer.algo.nets)
    assert_same(elsewhere.policy.nets, trainer.algo.nets)


@pytest.mark.parametrize("ema", [False, True])
@pytest.mark.parametrize("name", ["bc", "hbc"])
def test_what_is_changed_in_a_policy_that_acts_stays_when_it_learns(tmp_path, name, ema):
    trainer = trained(tmp_path, name, {"enabled": ema})
    content = trainer.state()
    before = copy.deepcopy(content["model"])
    algo = policy_from_checkpoint(ckpt_dict=content, device="cpu")[0].policy
    weight = next(algo.nets.parameters())
    weight.data.mul_(0.5)
    halved = weight.detach().clone()
    for part in getattr(algo, "parts", {}).values():  # each by itself
        assert part.serialize()["optimizers"]
    algo.set_statistics(obs={}, actions={})
    state = algo.serialize()
    assert torch.equal(weight, halved) and not state["normalization"]["actions"]
    algo.learn(next(iter(trainer.experiment.loader)))
    now = leaves(content["model"])  # which is the user's
    for path, leaf in leaves(before).items():
        assert not isinstance(leaf, torch.Tensor) or torch.equal(now[path], leaf), path


def assert_same(first, second):
    first, second = first.state_dict(), second.state_dict()
    assert first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)
