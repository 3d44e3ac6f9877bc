"""Layers that know training from evaluation (batch norm, dropout) are in training mode in updates
alone; so acting changes no statistics, and an action depends on its own row."""

import gymnasium
import numpy as np
import pytest
import torch
from own_steps import Aim, Recall

from offrl import algo_factory, config_factory
from offrl.online import Trainer
from offrl.testing.state import TwoModes

ENVS = {"sac": Aim, "td3": Aim}
ONLINE = {"random_steps": 4, "collect_steps": 8, "num_envs": 1}
CORE = {"encoder": {"low_dim": {"core_class": "two_modes"}}}


def trainer_of(name, **train):
    config = {
        "observation": CORE,
        "train": {"cuda": False, "batch_size": 16, "online": ONLINE, **train},
    }
    env = ENVS.get(name, Recall)
    return Trainer(config, algo_name=name, num_steps=40, envs=gymnasium.vector.SyncVectorEnv([env]))


def layers_of(alg):
    return [layer for layer in alg.nets.modules() if isinstance(layer, TwoModes)]


@pytest.mark.parametrize("name", ["ppo", "a2c", "impala", "reinforce", "dqn", "sac", "td3"])
def test_networks_are_in_training_mode_in_updates_alone(name):
    """With one environment, where batch norm in training mode has nothing to go by."""
    trainer = trainer_of(name)
    modes, updates = {True: 0, False: 0}, False
    update = trainer.alg.update

    def updating(batch):
        nonlocal updates
        updates = True
        try:
            return update(batch)
        finally:
            updates = False

    def note(layer, *_):
        assert updates or not layer.training
        modes[layer.training] += 1

    trainer.alg.update = updating
    for layer in layers_of(trainer.alg):
        layer.register_forward_hook(note)
    for record in trainer():
        if record["type"] == "train":
            trainer.agent.predict(np.zeros(4, np.float32))  # ends training mode
    assert modes[True] and modes[False]
    slow = [
        layer
        for name in trainer.alg.nets
        if name.endswith("_target")
        for layer in trainer.alg.nets[name].modules()
    ]
    assert not any(layer.training for layer in slow)


@pytest.mark.parametrize("name", ["ppo", "impala"])
def test_what_a_policy_said_of_its_steps_is_what_it_acted_by(name):
    trainer = trainer_of(name)
    alg = trainer.alg
    before = {key: x.clone() for key, x in alg.nets.state_dict().items()}
    trainer._run_collect()
    data = next(iter(alg.minibatches(trainer._take_round())))
    assert alg.nets.training
    assert all(torch.equal(before[key], x) for key, x in alg.nets.state_dict().items())
    with torch.no_grad(), alg.at_rest():
        log_probs = alg.policy(data).log_prob(data["actions"])[:, 0]
    torch.testing.assert_close(log_probs, data["log_probs"])


@pytest.mark.parametrize("name", ["bc", "iql", "sac"])
def test_get_action_and_values_leave_the_mode_and_the_statistics(name):
    seen = {"modalities": {"obs": {"low_dim": ["place"]}}, **CORE}
    config = config_factory(name, {"observation": seen})
    algo = algo_factory(name, config, {"place": (3,)}, 2, "cpu")
    algo.set_train()
    statistics = [buffer.clone() for buffer in algo.nets.buffers()]
    obs = {"place": torch.randn(1, 3)}
    torch.manual_seed(0)
    action = algo.get_action(obs)
    if hasattr(algo, "get_state_value"):
        algo.get_state_value(obs)
    assert algo.nets.training and all(layer.training for layer in layers_of(algo)[:1])
    assert all(torch.equal(*pair) for pair in zip(statistics, algo.nets.buffers(), strict=True))
    algo.reset()
    algo.set_eval()
    torch.manual_seed(0)
    assert torch.equal(algo.get_action(obs), action)


def test_whether_to_sample_is_a_switch_of_its_own():
    """And not the mode of the networks."""
    config = config_factory("sac", {"observation": {"modalities": {"obs": {"low_dim": ["place"]}}}})
    algo = algo_factory("sac", config, {"place": (3,)}, 2, "cpu")
    obs = {"place": torch.zeros(200, 1, 3)}
    for mode in (algo.set_train, algo.set_eval):
        mode()
        with torch.no_grad():
            assert algo.act(obs)[0].std(0).max() < 1e-3 < 0.1 < algo.explore(obs)[0].std(0).min()
    assert not algo.explores
