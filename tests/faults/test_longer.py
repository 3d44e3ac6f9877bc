"""A run that is made longer becomes the run that was begun so; all else is refused."""

import json

import pytest
from comparison import records, same, weights
from conftest import SMALL, acting_in, write_demos

from offrl import register_algo
from offrl.__main__ import main
from offrl.algos import BC
from offrl.algos.bc import BCConfig
from offrl.checkpoint import read_checkpoint
from offrl.config.files import nested
from offrl.tree import merge

pytestmark = pytest.mark.slow

ONLINE = {
    "algo_name": "td3",
    "experiment": acting_in("Pendulum-v1", 40),
    "train": {
        "batch_size": 8,
        "cuda": False,
        "online": {"num_envs": 2, "collect_steps": 5, "random_steps": 10, "horizon": 15},
    },
    "algo": {"actor": {"layer_dims": [8]}, "critic": {"layer_dims": [8]}},
}
OFFLINE = merge(SMALL, {"algo_name": "bc", "algo": {"actor_layer_dims": [8]}})
OFFLINE = merge(OFFLINE, {"experiment": {"logging": {"log_tb": False}}})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return str(write_demos(tmp_path_factory.mktemp("data") / "demos.hdf5"))


@pytest.fixture
def train(tmp_path, monkeypatch, data):
    """``offrl train`` on a config with settings, in a folder of its own; the run folder."""
    monkeypatch.setattr("offrl.training.launch.write_learning_curve", lambda run: None)

    def train(content, name, **settings):
        own = {"train": {"output_dir": str(tmp_path)}, "experiment": {"name": name}}
        if "num_steps" not in content["train"] and "env" not in content["experiment"]:
            own["train"]["data"] = data
        content = merge(content, own)
        for key, value in settings.items():
            content = merge(content, nested(key.replace("__", "."), value))
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(content))
        assert main(["train", "--config", str(path)]) == 0
        (run,) = (tmp_path / name).glob("2*")
        return run

    return train


def resume(run, *settings):
    return main(["train", "--resume", str(run), *(x for s in settings for x in ("--set", s))])


def assert_same(run, whole):
    equal, different = same(weights(run), weights(whole))
    assert equal, different
    assert records(run) == records(whole)


def test_more_epochs_are_those_of_a_training_begun_with_them(train):
    whole = train(OFFLINE, "whole", train__num_epochs=4)
    run = train(OFFLINE, "half", train__num_epochs=2)
    also = ("experiment.save.every_n_epochs=2", "train.hdf5_cache_mode=null")
    assert resume(run, "train.num_epochs=3", *also) == 0
    assert resume(run, "train.num_epochs=4") == 0
    assert_same(run, whole)
    (config,) = run.glob("config-*.json")
    told = json.loads(config.read_text())["meta"]["provenance"]["changes"]
    assert told == read_checkpoint(run / "last.pth")["provenance"]["changes"]
    assert [change["step"] for change in told] == [10, 15]
    assert told[1]["keys"] == {"train.num_epochs": {"was": 3, "now": 4}}
    keys = {"train.num_epochs", "experiment.save.every_n_epochs", "train.hdf5_cache_mode"}
    assert set(told[0]["keys"]) == keys


@pytest.mark.slow
@pytest.mark.parametrize("algo", [{"algo_name": "td3"}, {"algo_name": "ppo", "algo": {}}])
def test_more_steps_are_those_of_a_training_begun_with_them(train, algo):
    """Also where the end of the shorter one had cut an epoch off, and the replay was smaller."""
    online = {**ONLINE, **algo}
    whole = train(online, "whole", train__num_steps=130)
    run = train(online, "half", train__num_steps=60)
    assert resume(run, "train.num_steps=70") == 0  # within the epoch that was cut off
    assert resume(run, "train.num_steps=130") == 0
    assert_same(run, whole)


REFUSED = {
    "batch size": ("train.batch_size=8", "train.batch_size"),
    "network": ("algo.actor_layer_dims=[9]", "algo.actor_layer_dims"),
    "seed": ("train.seed=2", "train.seed"),
    "steps of an epoch": ("experiment.epoch_every_n_steps=7", "experiment.epoch_every_n_steps"),
    "other data": ("train.data=x.hdf5", "train.data"),
    "to act": ("train.num_steps=100", "train.num_steps"),
    "no such key": ("train.num_epoch=4", "train.num_epoch"),
    "fewer than are done": ("train.num_epochs=1", "train.num_epochs"),
}


@pytest.fixture(scope="module")
def short(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("short")
    own = {"train": {"data": data, "output_dir": str(folder / "runs"), "num_epochs": 2}}
    (folder / "config.json").write_text(json.dumps(merge(OFFLINE, own)))
    assert main(["train", "--config", str(folder / "config.json")]) == 0
    (run,) = folder.glob("runs/test/2*")
    return run


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_another_training_is_refused_with_its_key(short, case, capsys):
    setting, key = REFUSED[case]
    before = {p: p.read_bytes() for p in short.rglob("*") if p.is_file()}
    assert resume(short, setting) == 1
    said = capsys.readouterr().err
    assert key in said.splitlines()[-1] and "Traceback" not in said
    assert {p: p.read_bytes() for p in short.rglob("*") if p.is_file()} == before


class OfLengthConfig(BCConfig):
    ALGO_NAME = "of_length"


class OfLength(BC):
    """A user's own algorithm, whose loss fades until the end of the training."""

    def update(self, batch):
        info = super().update(batch)
        fades = self.epoch / self.global_config.train.num_epochs
        return info | {"loss": info["loss"] * fades}


COSINE = {"optim_params": {"policy": {"learning_rate": {"scheduler_type": "cosine"}}}}
VQ_BET = {
    "horizon": {"observation_horizon": 2, "action_horizon": 2, "prediction_horizon": 3},
    "transformer": {"embed_dim": 8, "num_layers": 1, "num_heads": 1},
    "vq": {"epochs": 0.5, "latent_dim": 8, "layer_dims": [8]},
}
DECIDED = {
    "cosine": (merge(OFFLINE, {"algo": COSINE}), "train.num_epochs"),
    "VQ-BeT": ({**OFFLINE, "algo_name": "vq_bet", "algo": VQ_BET}, "train.num_epochs"),
    "own algorithm": ({**OFFLINE, "algo_name": "of_length"}, "train.num_epochs"),
    "priorities": (
        merge(ONLINE, {"train": {"online": {"replay": {"prioritized": True}}}}),
        "train.online.replay.prioritized",
    ),
    "random steps": (
        merge(ONLINE, {"train": {"online": {"random_steps": 20}}}),
        "train.online.random_steps",
    ),
    "one epoch": (
        merge(ONLINE, {"experiment": {"epoch_every_n_steps": None}}),
        "experiment.epoch_every_n_steps",
    ),
    "online cosine": (
        merge(ONLINE, {"algo": {"optim_params": {"actor": COSINE["optim_params"]["policy"]}}}),
        "train.num_epochs",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", DECIDED)
def test_a_length_that_decided_what_was_learned_stays(train, case, capsys):
    content, key = DECIDED[case]
    register_algo(OfLengthConfig)(OfLength)
    acts = "env" in content["experiment"]
    name, short, long = ("num_steps", 60, 130) if acts else ("num_epochs", 2, 4)
    run = train(content, "short", **{f"train__{name}": short})
    before = weights(run)
    assert resume(run, f"train.{name}={long}") == 1
    said = capsys.readouterr().err
    assert key in said.splitlines()[-1] and "Traceback" not in said
    assert same(weights(run), before)[0]
