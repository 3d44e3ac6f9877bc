"""Models that do not fit in memory are refused before they are made, with their size."""

import math

import pytest
import torch

from offrl import algo_factory, config_factory
from offrl.__main__ import main
from offrl.algos.shared import memory
from offrl.algos.shared.memory import free_bytes
from offrl.memory import resident_bytes


def make(algo, name="bc"):
    modalities = {"modalities": {"obs": {"low_dim": ["x"]}}}
    config = config_factory(name, {"algo": algo, "observation": modalities})
    return algo_factory(name, config, {"x": (10,)}, ac_dim=4, device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo", "name"),
    [
        ({"actor_layer_dims": [10**6, 10**6]}, "bc"),
        ({"actor_layer_dims": [2**62, 2**62]}, "bc"),
        ({"rnn": {"enabled": True, "hidden_dim": 10**7}}, "bc"),
        ({"gmm": {"enabled": True, "num_modes": 10**12}}, "bc"),
        ({"max_timestep": 10**12}, "dt"),
        ({"critic": {"layer_dims": [10**6, 10**6]}}, "iql"),
    ],
    ids=range(6),
)
def test_a_network_that_cannot_fit_is_refused_before_it_is_made(algo, name):
    before = resident_bytes()
    with pytest.raises(ValueError, match=f"{name}: .*observation.encoder"):
        make(algo, name)
    assert resident_bytes() - before < 2**30


def test_several_networks_that_only_together_do_not_fit_are_refused():
    before = resident_bytes()
    layer = math.isqrt(int(free_bytes("cpu") / 4 / 3))  # a third of the memory
    with pytest.raises(ValueError, match="bc: .*observation.encoder"):
        make({"actor_layer_dims": [layer] * 6})
    assert resident_bytes() - before < 2**30


def test_weights_do_not_depend_on_whether_they_were_counted(monkeypatch):
    for name in ("bc", "iql", "dt"):
        torch.manual_seed(0)
        plain = make({}, name).nets.state_dict()
        size = sum(value.nbytes for value in plain.values())
        with monkeypatch.context() as patch:
            patch.setattr(memory, "free_bytes", lambda device, size=size: 8 * size)
            torch.manual_seed(0)
            counted = make({}, name).nets.state_dict()
        assert all(torch.equal(counted[key], value) for key, value in plain.items())


def test_training_needs_four_times_the_weights(monkeypatch):
    algo = make({"actor_layer_dims": [100, 100]})
    weights = sum(parameter.nbytes for parameter in algo.nets.parameters())
    monkeypatch.setattr(memory, "free_bytes", lambda device: 3 * weights)
    what = "bc", algo.optimizers.values(), algo.device
    memory.check_training_fits(*what)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 3 * weights - 1)
    with pytest.raises(ValueError, match="bc: .*observation.encoder"):
        memory.check_training_fits(*what)


def test_the_program_says_that_a_model_does_not_fit(demos, tmp_path, capsys):
    low_dim = 'observation.modalities.obs.low_dim=["position", "speed"]'
    layers = "algo.actor_layer_dims=[1000000, 1000000]"
    (tmp_path / "bc.json").write_text('{"algo_name": "bc", "train": {"batch_size": 7}}')
    options = ["--config", tmp_path / "bc.json", "--dataset", demos, "--output", tmp_path / "runs"]
    assert main(["train", *map(str, options), "--set", low_dim, "--set", layers]) == 1
    assert "bc: its networks take at least 4 TB" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
