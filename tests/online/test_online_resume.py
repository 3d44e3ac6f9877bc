"""Online trainings that were killed or stopped end with the bits of those that were not."""

import json
import os
import signal

import gymnasium
import pytest
from conftest import acting_in
from faults.comparison import assert_same_run

from offrl.__main__ import main
from offrl.envs import vector
from offrl.online import Trainer
from offrl.training import launch

ROUND = {"num_envs": 2, "collect_steps": 10}
ON_POLICY = {"policy_layer_dims": [8], "value_layer_dims": [8]}
CRITIC = {"critic": {"layer_dims": [8]}}
ACTOR_CRITIC = {**CRITIC, "actor": {"layer_dims": [8]}}
NORMALIZED = {"normalize_obs": True, "normalize_rewards": True}
MEMORY = {"memory": {"enabled": True, "hidden_dim": 8}}
OFF_POLICY = {"collect_steps": 4, "random_steps": 40}
EXPLORERS = {"explorers": 2, "trajectory_steps": 10}
# Environment, train and algo, and explorers. Of CartPole gymnasium has a vectorised form.
CASES = {
    "reinforce": ("Acrobot-v1", {"online": ROUND}, ON_POLICY),
    "a2c": ("CartPole-v1", {"online": ROUND | NORMALIZED}, ON_POLICY),
    "ppo": ("CartPole-v1", {"online": ROUND, "batch_size": 8}, ON_POLICY),
    "ppo normalized": ("Pendulum-v1", {"online": ROUND | NORMALIZED}, ON_POLICY),
    "ppo memory": ("CartPole-v1", {"online": ROUND}, ON_POLICY | MEMORY),
    "impala": ("CartPole-v1", {"online": ROUND}, ON_POLICY),
    "impala memory": ("Acrobot-v1", {"online": ROUND}, ON_POLICY | MEMORY),
    "dqn": ("CartPole-v1", {"online": OFF_POLICY | {"num_envs": 2}}, CRITIC),
    "dqn prioritized": (
        "CartPole-v1",
        {"online": OFF_POLICY | {"replay": {"prioritized": True, "capacity": 100}}},
        {**CRITIC, "double": True},
    ),
    "dqn n_step": ("CartPole-v1", {"online": OFF_POLICY}, {**CRITIC, "n_step": 3}),
    "dqn frame_stack": ("CartPole-v1", {"online": OFF_POLICY, "frame_stack": 3}, CRITIC),
    "discrete_sac": ("CartPole-v1", {"online": OFF_POLICY}, ACTOR_CRITIC),
    "ddpg": ("Pendulum-v1", {"online": OFF_POLICY}, ACTOR_CRITIC),
    "td3": ("Pendulum-v1", {"online": OFF_POLICY | NORMALIZED}, ACTOR_CRITIC),
    "sac": ("Pendulum-v1", {"online": OFF_POLICY | {"num_envs": 2}}, ACTOR_CRITIC),
    "sac small replay": (
        "Hopper-v5",
        {"online": OFF_POLICY | NORMALIZED | {"replay": {"capacity": 90}}},
        ACTOR_CRITIC,
    ),
    "impala explorers": ("CartPole-v1", {"online": ROUND}, ON_POLICY, EXPLORERS),
    "ppo explorers": (
        "Acrobot-v1",
        {"online": ROUND | NORMALIZED, "frame_stack": 2},
        ON_POLICY | MEMORY,
        EXPLORERS | {"num_trajectories": 2},
    ),
    "td3 explorers": (
        "Pendulum-v1",
        {"online": OFF_POLICY | NORMALIZED, "frame_stack": 2},
        ACTOR_CRITIC,
        EXPLORERS,
    ),
}
SLOW = "dqn prioritized", "a2c", "td3 explorers"  # the others are thorough
NUM_STEPS, EPOCH = 400, 80


@pytest.fixture(autouse=True)
def without_drawings(monkeypatch):
    monkeypatch.setattr(launch, "write_learning_curve", lambda run: None)


def config_of(case, folder):
    env, train, algo, *explorers = CASES[case]
    content = {
        "algo_name": case.split()[0],
        "experiment": acting_in(env, EPOCH),
        "train": {
            "batch_size": 16,
            "num_steps": NUM_STEPS,
            "cuda": False,
            "output_dir": str(folder / "runs"),
            **train,
        },
        "algo": algo,
        **({"distributed": explorers[0]} if explorers else {}),
    }
    path = folder / "config.json"
    path.write_text(json.dumps(content))
    return path


def train(*arguments, number=None, step=None):
    """``offrl train`` in a process of its own, which may get a signal in a round, between acting
    and learning; its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if number is not None:
                _signal_in(step, number)
            status = main(["train", *map(str, arguments)])
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _signal_in(step, number):
    original = Trainer._run_collect

    def collect(trainer):
        record = original(trainer)
        if trainer.step >= step:
            os.kill(os.getpid(), number)
        return record

    Trainer._run_collect = collect


def assert_kills_change_nothing(config, folder):
    runs = folder / "runs"
    assert train("--config", config, "--name", "whole") == 0
    (whole,) = (runs / "whole").glob("2*")
    killed = train("--config", config, "--name", "killed", number=signal.SIGKILL, step=1.6 * EPOCH)
    (run,) = (runs / "killed").glob("2*")
    stopped = train("--resume", run, number=signal.SIGTERM, step=3.6 * EPOCH)
    assert killed == -signal.SIGKILL and stopped == 128 + signal.SIGTERM
    assert train("--resume", run) == 0
    assert_same_run(run, whole)


def marked(case):
    return pytest.param(case, marks=pytest.mark.slow if case in SLOW else pytest.mark.thorough)


@pytest.mark.parametrize("case", [marked(case) for case in CASES])
def test_kills_change_no_bit(case, tmp_path):
    assert_kills_change_nothing(config_of(case, tmp_path), tmp_path)


def in_one_process(monkeypatch):
    monkeypatch.setattr(vector, "MESSAGES", float("inf"))


def in_processes(monkeypatch):
    monkeypatch.setattr(vector, "MESSAGES", -1.0)


@pytest.mark.thorough
@pytest.mark.parametrize("place", [in_one_process, in_processes])
def test_kills_change_no_bit_of_environments_elsewhere(place, tmp_path, monkeypatch):
    spec = gymnasium.spec("CartPole-v1")
    monkeypatch.setattr(spec, "vector_entry_point", None)
    place(monkeypatch)
    assert_kills_change_nothing(config_of("ppo", tmp_path), tmp_path)


def test_what_a_training_without_its_replay_does_first():
    online = {"collect_steps": 10, "random_steps": 30, "replay": {"saved": False}}
    train = {"num_steps": 200, "batch_size": 16, "cuda": False, "online": online}
    config = {"algo_name": "sac", "experiment": {"env": "Pendulum-v1"}, "train": train}
    config["algo"] = ACTOR_CRITIC
    before = Trainer(config)
    while before.step < 100:
        list(before.round())
    after = Trainer(config)
    after.restore(before.state())
    rounds = [[record["type"] for record in after.round()] for _ in range(5)]
    assert rounds[:3] == [["collect"]] * 3  # what it had collected is gone
    assert rounds[3] == rounds[4] == ["collect", "train"]
    again = Trainer(config)
    again.restore(after.state())
    assert [record["type"] for record in again.round()] == ["collect"]
