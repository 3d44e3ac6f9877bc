"""Actions that an environment forbids are never taken: at random, exploring, in evaluation, by
scripts."""

from pathlib import Path

import pytest

from offrl import RolloutPolicy
from offrl.acting import EpisodeRequest
from offrl.envs.workers import EnvPool
from offrl.evaluation import evaluate
from offrl.online import Agent, Environment, Trainer
from offrl.tree import merge

ENV = {"env_name": "odd_envs:Masked-v0", "type": "gymnasium", "env_kwargs": {}}
ONLINE = {"collect_steps": 8, "random_steps": 30, "num_updates": 1}
NETWORK = {"critic": {"layer_dims": [8]}}
NETWORKS = {
    "dqn": NETWORK,
    "discrete_sac": merge(NETWORK, {"actor": {"layer_dims": [8]}}),
    "ppo": {"policy_layer_dims": [8], "value_layer_dims": [8]},
}


@pytest.fixture(params=[(name, frames) for name in NETWORKS for frames in (1, 2)], ids=str)
def config(request, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    name, frames = request.param
    train = {"batch_size": 16, "frame_stack": frames, "num_steps": 120, "online": ONLINE}
    experiment = {"env": ENV["env_name"], "rollout": {"horizon": 20, "n": 2}}
    return {
        "algo_name": name,
        "experiment": experiment,
        "train": train,
        "algo": NETWORKS[name],
    }


@pytest.mark.parametrize("num_envs", [1, 2])
def test_no_forbidden_action_is_taken(config, num_envs):
    trainer = Trainer(merge(config, {"train": {"online": {"num_envs": num_envs}}}))
    for record in trainer():
        assert record["step"] <= 140
    assert trainer.step >= 120
    trainer.close()


@pytest.fixture(scope="module")
def pool():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parent)  # where the workers find the environment
        pool = EnvPool(ENV, 2)
    with pool:
        yield pool


def test_none_is_taken_in_evaluation(config, pool):
    trainer = Trainer(config)
    requests = [EpisodeRequest(seed, 20, True) for seed in range(3)]
    results = list(evaluate(RolloutPolicy(trainer.alg), pool, requests))
    assert [result.error for result in results] == [None] * 3
    trainer.close()


@pytest.mark.slow
def test_a_script_takes_none(config):
    agent, env = Agent(config), Environment(config)
    state = agent.append_state(env.reset()[0])
    for step in range(40):
        obs, agent.reward, *_ = env.step(agent.action(state, deterministic=step % 2 == 1))
        state = agent.append_state(obs)
        agent.optimize()
    env.close()
