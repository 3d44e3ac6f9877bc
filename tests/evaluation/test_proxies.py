"""Evaluation without an environment, on a corridor whose values are known."""

import json
import shutil

import h5py
import numpy as np
import pytest
import torch
from conftest import write_demos

from offrl import Trainer
from offrl.__main__ import main
from offrl.algos.base import PolicyAlgo
from offrl.checkpoint import write_checkpoint
from offrl.data.sequence import SequenceDataset
from offrl.evaluation.proxies import _transitions, fit_fqe, look_through
from offrl.training import Proxies


@pytest.fixture
def trained(small_config):
    """A function: algorithm and overrides -> its records, and the trainer."""

    def run(name="td3_bc", experiment=None, **train):
        experiment = {"proxies": {"enabled": True}} | (experiment or {})
        trainer = Trainer(small_config({"experiment": experiment, "train": train}, name))
        return list(Proxies(trainer)(trainer())), trainer

    return run


def measured(records):
    return [record for record in records if record["type"] == "proxy"]


def test_what_is_measured_is_what_the_algorithm_says_of_each_step(trained, demos):
    records, trainer = trained()
    logs = measured(records)[-1]["logs"]
    algo, data = trainer.algo, SequenceDataset(demos, ["position", "speed"])
    everything = data.get_batch(torch.arange(len(data)))
    obs = {key: x[:, 0] for key, x in everything["obs"].items()}
    actions = everything["actions"][:, 0]
    with torch.no_grad():
        policy, v = algo.get_action(obs), algo.get_state_value(obs)[:, 0]
        q = algo.get_state_action_value(obs, actions)[:, 0]
    done = everything["dones"].flatten()
    after = torch.cat([v[1:], v[:1]]) * (1 - done)
    error = everything["rewards"].flatten() + 0.99 * after - q
    expected = {
        "Action_Difference": (policy - actions).square().sum(1).mean(),
        "TD_Error": error.square().mean(),  # every demonstration terminates
        "Advantage_Mean": (q - v).mean(),
        "Initial_Value": v[[0, 5, 12]].mean(),
    }
    for name, value in expected.items():
        assert logs[name] == pytest.approx(float(value), rel=1e-4, abs=1e-6), name


def test_they_come_when_asked_and_change_nothing(trained):
    records, with_proxies = trained(experiment={"proxies": {"enabled": True, "rate": 2}})
    assert [record["epoch"] for record in measured(records)] == [2, 3]
    records, without = trained(experiment={"proxies": {"enabled": False}})
    assert not measured(records)
    for a, b in zip(
        with_proxies.algo.nets.parameters(), without.algo.nets.parameters(), strict=True
    ):
        assert torch.equal(a, b)


def test_held_out_demonstrations_are_measured_if_there_are_any(trained):
    train = {"hdf5_filter_key": "train", "hdf5_validation_filter_key": "valid"}
    experiment = {"proxies": {"enabled": True, "fqe_steps": 3}}
    on_all, _ = trained(experiment=experiment, **train)
    held_out, _ = trained(experiment=experiment | {"validate": True}, **train)
    assert measured(on_all)[0]["logs"] != measured(held_out)[0]["logs"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "frame_stack"), [("bc", 1), ("dt", 1), ("iql", 3)])
def test_policies_without_values_or_with_memory_or_frames(trained, name, frame_stack):
    experiment = {"proxies": {"enabled": True, "fqe_steps": 2}}
    records, _ = trained(name, experiment, frame_stack=frame_stack)
    logs = measured(records)[-1]["logs"]
    assert ("TD_Error" in logs) == (name == "iql")
    assert np.isfinite(list(logs.values())).all() and "FQE_Initial_Value" in logs
    assert logs == measured(trained(name, experiment, frame_stack=frame_stack)[0])[-1]["logs"]


class Walker(PolicyAlgo):
    """Goes one way always."""

    direction = 1.0

    def act(self, obs, goal=None, state=None, generators=None):
        return torch.full((len(obs["place"]), 1), self.direction), state

    def _create_networks(self):
        self.nets["actor"] = self.nets["critic"] = torch.nn.Linear(1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("direction", [1.0, pytest.param(-1.0, marks=pytest.mark.thorough)])
def test_fitted_q_evaluation_finds_the_value_of_the_policy(tmp_path, small_config, direction):
    """Four places; the reward of one waits behind the right end. Going right from place p is worth
    ``gamma ** (3 - p)``, whatever the data did; going left nothing."""
    path, rng = tmp_path / "corridor.hdf5", np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for i in range(200):
            places, actions = [int(rng.integers(4))], []
            while len(actions) < 8 and places[-1] < 4:
                actions.append(rng.choice([-1.0, 1.0]))
                places.append(max(0, places[-1] + int(actions[-1])))
            demo = file.create_group(f"data/demo_{i}")
            demo["obs/place"] = np.eye(5)[places[:-1], :4]
            demo["actions"] = np.array(actions)[:, None]
            demo["dones"] = demo["rewards"] = (np.array(places[1:]) == 4).astype(float)
    overrides = {
        "train": {"data": str(path)},
        "algo": {"discount": 0.7},
        "observation": {"modalities": {"obs": {"low_dim": ["place"]}}},
    }
    trainer = Trainer(small_config(overrides, "td3_bc"))
    data = trainer.dataset.single_steps()
    spec = trainer.algo.obs_spec
    policy = Walker(config=trainer.config, obs_spec=spec, ac_dim=1, device="cpu")
    policy.direction = direction
    torch.manual_seed(0)
    fqe = fit_fqe(policy, data, look_through(policy, data)["policy"], num_steps=1200)
    with torch.no_grad():
        actions = torch.full((4, 1), direction)
        values = fqe.get_state_action_value({"place": torch.eye(4)}, actions)[:, 0]
    exact = 0.7 ** np.arange(3, -1, -1.0) if direction > 0 else np.zeros(4)
    np.testing.assert_allclose(values, exact, atol=0.1)


def test_an_unfinished_demonstration_has_no_transition_at_its_end(tmp_path):
    path = write_demos(tmp_path / "demos.hdf5", lengths=(3, 2, 4))
    with h5py.File(path, "a") as file:
        file["data/demo_1/dones"][...] = 0
    data = SequenceDataset(path, ["speed"], load_next_obs=False)
    rows, following, dones = _transitions(data)
    assert rows.tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert dones.tolist() == [0, 0, 1, 0, 0, 0, 0, 1]
    assert following[dones == 0].tolist() == [1, 2, 4, 6, 7, 8]


@pytest.mark.slow
def test_a_policy_remembers_each_demonstration(small_config, demos):
    overrides = {"algo": {"rnn": {"enabled": True, "hidden_dim": 16, "horizon": 3}}}
    trainer = Trainer(small_config(overrides))
    data = trainer.dataset.single_steps()
    trainer.algo.set_eval()
    seen = look_through(trainer.algo, data)["policy"]
    row = 0
    for length in data.lengths:
        trainer.algo.reset()
        for _ in range(length):
            batch = data.get_batch(torch.tensor([row]))
            alone = trainer.algo.get_action({k: x[:, 0] for k, x in batch["obs"].items()})
            torch.testing.assert_close(seen[row], alone[0], atol=1e-6, rtol=0)
            row += 1


@pytest.mark.slow
def test_the_command_measures_what_training_measured(small_config, demos, tmp_path, capsys):
    train = {
        "rewards": {"normalization": "min_max"},
        "action_config": {"actions": {"normalization": "gaussian"}},
        "hdf5_filter_key": "train",
        "hdf5_validation_filter_key": "valid",
    }
    experiment = {"validate": True, "proxies": {"enabled": True, "fqe_steps": 3}}
    trainer = Trainer(small_config({"experiment": experiment, "train": train}, "iql"))
    records = list(Proxies(trainer)(trainer()))
    checkpoint, answer = tmp_path / "model.pth", tmp_path / "proxies.json"
    write_checkpoint(checkpoint, trainer.state())
    arguments = ["--checkpoint", str(checkpoint), "--json", str(answer), "--filter-key", "valid"]
    assert main(["proxies", *arguments]) == 0
    found, expected = json.loads(answer.read_text()), measured(records)[-1]["logs"]
    del expected["FQE_Initial_Value"]  # fitted on the training's demonstrations
    assert found == pytest.approx(expected, rel=1e-5)
    assert "not a success rate" in capsys.readouterr().out
    assert main(["proxies", *arguments]) == 1  # nothing is overwritten
    with h5py.File(demos, "a") as file:  # data from elsewhere has no filter keys
        del file["mask"]
    other = ["--dataset", str(demos), "--fqe-steps", "2"]
    outputs = []
    for _ in range(2):
        assert main(["proxies", "--checkpoint", str(checkpoint), *other]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] and "FQE_Initial_Value" in outputs[0]


@pytest.mark.thorough
def test_a_policy_that_counts_rewards_remembers_what_was_done(small_config, tmp_path):
    """Each action is the last one's negative: with its own actions in its memory, which are none at
    first, a policy could not know."""
    path, rng = tmp_path / "turns.hdf5", np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for i in range(60):
            demo = file.create_group(f"data/demo_{i}")
            signs = rng.choice([-0.8, 0.8]) * (-1.0) ** np.arange(6)
            demo["obs/x"], demo["actions"] = np.ones((6, 1)), signs[:, None]
            demo["rewards"], demo["dones"] = np.eye(6)[5], np.eye(6)[5]
    overrides = {
        "experiment": {"epoch_every_n_steps": 150},
        "train": {"data": str(path), "num_epochs": 2, "batch_size": 32, "seq_length": 6},
        "algo": {
            "context_length": 6,
            "embed_dim": 32,
            "dropout": 0.0,
            "optim_params": {"policy": {"learning_rate": {"initial": 3e-3, "warmup_steps": 1}}},
        },
        "observation": {"modalities": {"obs": {"low_dim": ["x"]}}},
    }
    trainer = Trainer(small_config(overrides, "dt"))
    list(trainer())
    data = trainer.dataset.single_steps()
    trainer.algo.set_eval()
    error = (look_through(trainer.algo, data)["policy"] - data.values("actions")).abs()
    by_step = error.view(60, 6).mean(0)
    assert by_step[0] > 0.5 and (by_step[1:] < 0.2).all(), by_step


@pytest.mark.parametrize(
    ("key", "message"),
    [("obs/speed", "observation 'speed': of shape"), ("actions", "numbers, but those that")],
)
def test_data_of_other_shapes_is_refused(trained, demos, tmp_path, capsys, key, message):
    _, trainer = trained()
    checkpoint, wide = tmp_path / "model.pth", tmp_path / "wide.hdf5"
    write_checkpoint(checkpoint, trainer.state())
    shutil.copy(demos, wide)
    with h5py.File(wide, "a") as file:
        for demo in file["data"].values():
            rows = demo[key][()].reshape(len(demo[key]), -1)
            del demo[key]
            demo[key] = np.repeat(rows, 2, axis=1)
    assert main(["proxies", "--checkpoint", str(checkpoint), "--dataset", str(wide)]) == 1
    assert message in capsys.readouterr().err
