"""What is learned from own steps in gymnasium's smallest tasks, in seconds."""

from contextlib import closing

import numpy as np
import pytest

from offrl.online import Trainer

RATES = {name: {"learning_rate": {"initial": 1e-3}} for name in ("critic", "actor")}
CLIMBING = {"discount": 0.95, "target_tau": 0.01, "optim_params": RATES}
NETS = {"critic": {"layer_dims": [64, 64]}, "actor": {"layer_dims": [64, 64]}}
NOISY = {**NETS, "actor": {**NETS["actor"], "exploration_std": 0.3}}
# Environment, steps, train, algo, and the least mean return of the last five episodes. Acting at
# random is worth 22 in CartPole, and -1200 in Pendulum; doing the opposite of what is best 9.
TASKS = {
    "ppo": (
        "CartPole-v1",
        12_000,
        {"batch_size": 128, "online": {"num_envs": 8, "collect_steps": 32}},
        {
            "discount": 0.98,
            "gae_lambda": 0.8,
            "num_passes": 8,
            "optim_params": {"policy": {"learning_rate": {"initial": 2e-3}}},
        },
        120,
    ),
    "a2c": (
        "CartPole-v1",
        24_000,
        {"online": {"num_envs": 8, "collect_steps": 8}},
        {"discount": 0.98, "optim_params": {"policy": {"learning_rate": {"initial": 2e-3}}}},
        80,
    ),
    "dqn": (
        "CartPole-v1",
        10_000,
        {"batch_size": 64, "online": {"collect_steps": 4, "num_updates": 2, "random_steps": 500}},
        {
            "critic": {"layer_dims": [64, 64]},
            "exploration": {"steps": 3000},
            "optim_params": {"critic": {"learning_rate": {"initial": 1e-3}}},
            "target_every": 100,
        },
        120,
    ),
    "sac": (
        "Pendulum-v1",
        4000,
        {"batch_size": 128, "online": {"random_steps": 500}},
        CLIMBING | NETS,
        -600,
    ),
    "td3": (
        "Pendulum-v1",
        5000,
        {"batch_size": 128, "online": {"random_steps": 1000}},
        CLIMBING | NOISY,
        -600,
    ),
}


def marked(name):
    """That values are learned too, ``test_hindsight.py`` and ``test_imitation.py`` show."""
    return pytest.param(name, marks=pytest.mark.slow if name == "ppo" else pytest.mark.thorough)


@pytest.mark.parametrize("name", map(marked, TASKS))
def test_it_learns_its_task(name):
    env_id, num_steps, train, algo, least = TASKS[name]
    config = {"train": {"cuda": False, **train}, "algo": algo}
    trainer = Trainer(config, env_id, name, num_steps, seed=1)
    returns = []
    for record in trainer():
        logs = record["logs"]
        if record["type"] == "collect" and logs["Episodes"]:
            returns += [logs["Return"]] * int(logs["Episodes"])
    trainer.close()
    assert np.mean(returns[-5:]) > least, returns[-30:]


@pytest.mark.parametrize("num_envs", [1, 2])
def test_an_episode_succeeded_if_it_did_at_any_step(num_envs):
    """As in evaluations; also if the training is interrupted between that step and the end."""
    online = {"num_envs": num_envs, "collect_steps": 10, "terminate_on_success": False}
    config = {"train": {"cuda": False, "batch_size": 10, "online": online}}
    rates, state = [], None
    for _ in range(2):
        with closing(Trainer(config, "odd_envs:Passing-v0", "ppo", seed=1)) as trainer:
            if state is not None:
                trainer.restore(state)
            record, *_ = trainer.round()
            rates.append((record["logs"]["Episodes"], record["logs"].get("Success_Rate")))
            state = trainer.state()
    assert rates == [(0, None), (num_envs, 1.0)]


@pytest.mark.parametrize("num_envs", [1, 2])  # in a list, and in CartPole's own vectorised form
def test_where_no_success_is_reported_collecting_has_none(num_envs):
    config = {"train": {"cuda": False, "online": {"num_envs": num_envs, "collect_steps": 80}}}
    with closing(Trainer(config, "CartPole-v1", "ppo", seed=1)) as trainer:
        logs = next(trainer.round())["logs"]
    assert logs["Episodes"] and "Success_Rate" not in logs
