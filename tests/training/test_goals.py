"""Policies with goals, evaluated in environments that give them."""

import json

import numpy as np
import pytest
import torch
from conftest import train_completely, write_demos
from toy_env import toy_args

from offrl import RolloutPolicy, Trainer
from offrl.acting.episode import rollout
from offrl.envs import make_env
from offrl.envs.workers import EnvPool, EpisodeRequest
from offrl.evaluation.evaluate import evaluate
from offrl.training import Evaluator
from offrl.tree import merge

GOAL_ENV = toy_args() | {"env_name": "toy_env:GoalToy-v0"}


@pytest.fixture
def trainer(small_config, demos):
    def make(env_args, overrides=None):
        write_demos(demos, env_args=json.dumps(env_args))
        goals = {
            "train": {"goal_mode": "last"},
            "observation": {"modalities": {"goal": {"low_dim": ["position"]}}},
            "experiment": {
                "rollout": {"enabled": True, "n": 4, "horizon": 6, "rate": 3},
                "render_video": False,
            },
        }
        return Trainer(small_config(merge(goals, overrides or {})))

    return make


MEMORIES = {
    "none": {},
    "rnn": {"algo": {"rnn": {"enabled": True, "hidden_dim": 16, "horizon": 3}}},
    "transformer": {
        "algo": {
            "transformer": {"enabled": True, "embed_dim": 16, "num_heads": 2, "context_length": 3}
        }
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES)
def test_the_environment_gives_the_goal_of_each_episode(trainer, memory):
    trainer = trainer(GOAL_ENV, memory)
    policy = RolloutPolicy(trainer.algo)
    requests = [EpisodeRequest(seed, horizon=6) for seed in range(4)]
    with EnvPool(GOAL_ENV, 2) as pool:
        results = sorted(evaluate(policy, pool, requests), key=lambda r: r.request.seed)
    assert all(r.error is None for r in results)
    alone = [rollout(policy, make_env(GOAL_ENV), horizon=6, seed=s)["Return"] for s in range(4)]
    np.testing.assert_allclose([r.total_reward for r in results], alone, rtol=1e-5)

    other = {0: {"position": np.full(3, 5.0)}}
    obs = {0: {"position": np.zeros(3), "speed": np.zeros(2)}}
    with pytest.raises(ValueError, match="environment 0"):
        policy.act(obs, {1: {"position": np.zeros(3)}})
    actions = []
    for goal in ({0: {"position": np.zeros(3)}}, other):
        policy.start_episode(seed=0)
        actions.append(policy.act(obs, goal)[0])
    assert not np.allclose(*actions)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GoalToy-v0", "WrappedGoalToy-v0"])
def test_training_evaluates_with_goals(trainer, name):
    trainer = trainer(toy_args() | {"env_name": f"toy_env:{name}"})
    (logs,) = (r["logs"] for r in train_completely(trainer) if r["type"] == "rollout")
    assert logs["n"] == 4 and logs["Crashed"] == 0
    assert all(torch.isfinite(p).all() for p in trainer.algo.nets.parameters())


def test_an_environment_without_goals_stops_before_training(trainer):
    with pytest.raises(ValueError, match="get_goal.*rollout.enabled=false"):
        Evaluator(trainer(toy_args()))


def test_an_environment_without_an_observation_stops_before_training(small_config, demos):
    write_demos(demos, obs={"touch": (3,)}, env_args=json.dumps(toy_args()))
    config = small_config(
        {
            "observation": {"modalities": {"obs": {"low_dim": ["touch"]}}},
            "experiment": {"rollout": {"enabled": True}, "render_video": False},
        }
    )
    with pytest.raises(ValueError, match="touch"):
        Evaluator(Trainer(config))


def test_a_goal_mode_without_goals_is_remarked_upon(small_config, caplog):
    Trainer(small_config({"train": {"goal_mode": "last"}}))
    assert "train.goal_mode: the policy sees no goals; name the observations" in caplog.text
