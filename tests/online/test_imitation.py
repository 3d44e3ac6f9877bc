"""Learning from demonstrations while acting: SQIL and GAIL; and the configs of all of imitation."""

from itertools import islice

import pytest
import torch
from conftest import ROOT
from imitated import (
    PLACE,
    POLE,
    RATE,
    SMALL,
    as_row,
    make,
    mean_return,
    record,
    resumed_equals_uninterrupted,
    rounds,
)

from offrl import Trainer as Offline
from offrl import config_factory
from offrl.__main__ import main
from offrl.algos.ppo import PPO
from offrl.config.files import read_config_file
from offrl.online import Learner, Trainer
from offrl.tree import merge


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    return str(record(tmp_path_factory.mktemp("places") / "places.hdf5", PLACE, 10))


@pytest.fixture(scope="module")
def poles(tmp_path_factory):
    return str(record(tmp_path_factory.mktemp("poles") / "poles.hdf5", POLE, 4))


def test_demonstrations_are_rewarded_and_own_steps_are_not(places):
    trainer = make("sqil", train={"data": places})
    rounds(trainer, 40)
    drawn = trainer.buffer.draw(1, 32)
    assert drawn["is_demo"].mean() == 0.5 and (drawn["rewards"] < 0).any()
    ready = trainer.alg.process_batch_for_training(drawn)
    assert torch.equal(ready["rewards"], drawn["is_demo"])


def test_a_demonstration_that_ends_is_rewarded_for_ever(places):
    trainer = make("sqil", train={"data": places}, algo={"discount": 0.9})
    rounds(trainer, 40)
    drawn = trainer.buffer.draw(1, 8)
    drawn["dones"] = torch.ones_like(drawn["dones"])
    ready = trainer.alg.process_batch_for_training(drawn)
    torch.testing.assert_close(ready["rewards"], 10 * drawn["is_demo"])


@pytest.mark.slow
@pytest.mark.parametrize("algo_name", ["sqil", "gail", "dagger"])
def test_one_explorer_gives_the_bits_of_a_trainer(places, algo_name):
    online = {"num_envs": 2, "collect_steps": 30, "random_steps": 0, "warmup_steps": 0}
    train = {"num_steps": 10**5, "batch_size": 32, "data": places, "online": online}
    config = {"experiment": {"env": PLACE}, "train": train}
    expected = list(islice(Trainer(config, algo_name=algo_name)(), 12))
    config["distributed"] = {"explorers": 1, "trajectory_steps": 1}
    for one, other in zip(expected, Learner(config, algo_name=algo_name)(), strict=False):
        assert {**one, "time": 0} == {**other, "time": 0}
    assert {record["type"] for record in expected} == {"collect", "train"}


@pytest.mark.parametrize("kind", ["positive", "negative", "both"])
def test_gails_rewards_are_those_of_its_discriminator(places, kind, monkeypatch):
    trainer = make("gail", train={"data": places}, algo={"reward": kind, "gae_lambda": 1.0})
    next(trainer.round())
    rollout = trainer.buffer.take()
    logits = torch.linspace(-2, 2, rollout["mask"].numel()).view(rollout["mask"].shape)
    trainer.alg._logits_of = lambda steps: logits
    chance = logits.double().sigmoid()
    expected = {
        "positive": -(1 - chance).log(),
        "negative": chance.log(),
        "both": chance.log() - (1 - chance).log(),
    }[kind]
    seen = {}
    monkeypatch.setattr(PPO, "estimates", lambda self, batch, *_: seen.update(batch) or {})
    trainer.alg.process_batch_for_training(rollout)
    torch.testing.assert_close(seen["rewards"].double(), expected)


def test_the_discriminator_sees_what_environments_take(places):
    trainer = make("gail", train={"data": places})
    actions = torch.tensor([[[5.0, 0.3]], [[1.0, 0.3]], [[0.9, 0.3]]])
    steps = {"obs": {"flat": torch.zeros(3, 1, 2)}, "actions": actions}
    beyond, bound, within = trainer.alg._logits_of(steps)
    assert beyond == bound != within


@pytest.mark.slow
@pytest.mark.parametrize("memory", [False, True])
def test_the_discriminator_learns_to_tell_demonstrations(places, memory):
    algo = {"memory": {"enabled": memory, "hidden_dim": 16}}
    trainer = make("gail", train={"data": places, "online": {"num_envs": 2}}, algo=algo)
    logs = rounds(trainer, 3)["logs"]
    assert logs["Discriminator/Own"] < 0.5 < logs["Discriminator/Demos"]


@pytest.mark.slow
def test_a_penalty_keeps_the_discriminator_smooth(places):
    gradients = []
    for weight in (0.0, 10.0):
        algo = {
            "discriminator": {"gradient_penalty": weight},
            "optim_params": {"discriminator": RATE},
        }
        trainer = make("gail", train={"data": places}, algo=algo)
        gradients.append(rounds(trainer, 4)["logs"]["Discriminator/Gradient"])
    assert gradients[1] < 0.1 * gradients[0], gradients


@pytest.mark.thorough
def test_sqil_returns_to_what_demonstrations_show(places):
    rates = {"optim_params": {"critic": RATE, "actor": RATE}}
    trainer = make("sqil", num_steps=2000, train={"data": places, "seed": 1}, algo=rates)
    list(trainer())
    score = mean_return(lambda obs: trainer.alg.predict(as_row(obs)).numpy()[0], PLACE)
    assert score > -5, score  # at random -22, the expert -1.6


@pytest.mark.slow
def test_discrete_sqil_balances_a_pole(poles):
    algo = {"optim_params": {"critic": RATE}, "exploration": {"steps": 1000}, "target_every": 100}
    train = {"data": poles, "batch_size": 128, "online": {"random_steps": 200}, "seed": 1}
    trainer = make("discrete_sqil", POLE, 2500, train=train, algo=algo)
    list(trainer())
    score = mean_return(lambda obs: trainer.alg.predict(as_row(obs)).numpy()[0], POLE)
    assert score > 150, score  # at random 22


@pytest.mark.thorough
def test_gail_does_what_demonstrations_show(places):
    rates = {"optim_params": {"policy": RATE, "discriminator": RATE}, "discount": 0.95}
    train = {"data": places, "batch_size": 64, "online": {"collect_steps": 512}, "seed": 1}
    trainer = make("gail", num_steps=7000, train=train, algo=rates)
    list(trainer())
    score = mean_return(lambda obs: trainer.alg.predict(as_row(obs)).numpy()[0], PLACE)
    assert score > -7, score  # at random -22, the expert -1.6


CONFIGS = sorted((ROOT / "configs/online").glob("*.json"))
OURS = [path for path in CONFIGS if path.stem in SMALL]


@pytest.mark.thorough
@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_our_configs_learn(path, tmp_path):
    pytest.importorskip("metaworld")
    content = read_config_file(path)
    assert content["experiment"]["name"] == path.stem == content["algo_name"]
    if "data" in content["train"]:
        data = tmp_path / "demos.hdf5"
        args = ["collect", "--type", "metaworld", "--env", "reach-v3", "--n", "2"]
        assert main([*args, "--workers", "1", "--output", str(data)]) == 0
        content["train"]["data"] = str(data)
    online = {"collect_steps": 20, "num_updates": 2, "random_steps": 5}
    trainer = Trainer(
        merge(content, {"train": {"batch_size": 16, "cuda": False, "online": online}})
    )
    assert [r["type"] for r in trainer.round()][:2] == ["collect", "train"]
    trainer.close()


# -- going on, and what is refused ----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("name", "num"), [("sqil", 40), ("gail", 2)])
def test_imitation_goes_on_with_the_same_bits(name, num, places):
    resumed_equals_uninterrupted(lambda: make(name, train={"data": places}), num)


def test_discrete_sqil_goes_on_with_the_same_bits(poles):
    resumed_equals_uninterrupted(lambda: make("discrete_sqil", POLE, train={"data": poles}), 15)


@pytest.mark.parametrize("name", ["sqil", "gail"])
def test_imitation_needs_demonstrations(name):
    with pytest.raises(ValueError, match=f"train.data: {name}"):
        make(name)


@pytest.mark.parametrize("name", ["sqil", "gail"])
def test_imitation_is_not_learned_from_data_alone(name, places):
    observation = {"modalities": {"obs": {"low_dim": ["flat"]}}}
    train = {"data": places, "cuda": False, "batch_size": 32}
    config = config_factory(name, {"train": train, "observation": observation})
    with pytest.raises(ValueError, match=f"train.num_steps: {name}"):
        Offline(config)
