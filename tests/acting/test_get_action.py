"""Algorithms of a user's own that keep the state of an episode themselves."""

import logging

import numpy as np
import pytest
import torch
from toy_env import toy_args

from offrl import RolloutPolicy
from offrl.acting import EpisodeRequest, rollout
from offrl.algos.base import Algo, PolicyAlgo
from offrl.envs import make_env, say_once
from offrl.envs.workers import EnvPool
from offrl.evaluation import evaluate
from offrl.evaluation.proxies import proxies
from offrl.specs import ObsSpec

STATS = {"actions": {"scale": torch.full((1, 2), 2.0), "offset": torch.full((1, 2), 0.5)}}


class Remembering:
    """Acts by how often it was asked in this episode, where it is, and chance."""

    asked = None

    def _create_networks(self):
        self.nets["policy"] = torch.nn.Linear(2, 2)

    def get_action(self, obs_dict, goal_dict=None):
        self.asked += 1
        self.seen = obs_dict, goal_dict
        position = obs_dict["position"].float()
        now = position if position.ndim == 2 else position[:, -1]
        return 0.01 * self.asked - 0.1 * now[:, :2] + self.noise()

    def noise(self):
        return torch.randn(1, 2)

    def reset(self):
        self.asked = 0


class OnPolicyAlgo(Remembering, PolicyAlgo): ...


class OnAlgo(Remembering, Algo): ...


@pytest.fixture(params=[OnPolicyAlgo, OnAlgo])
def make(request, small_config):
    def make(goal=(), **train):
        overrides = {"observation": {"modalities": {"goal": {"low_dim": list(goal)}}}}
        config = small_config(overrides | {"train": train})
        spec = ObsSpec.from_config(config.observation, {"position": (3,), "speed": (2,)})
        algo = request.param(config=config, obs_spec=spec, ac_dim=2, device="cpu")
        algo.set_statistics({}, STATS)
        return algo

    return make


def test_it_sees_raw_observations_and_its_actions_are_unnormalised(make):
    obs = {"position": np.array([1.0, -2.0, 3.0]), "speed": np.zeros(2)}
    algo = make(goal=["position"])
    algo.noise = lambda: 0.0
    policy = RolloutPolicy(algo)
    for _ in range(2):  # a new episode forgets
        policy.start_episode()
        first, second = policy(obs, goal=obs), policy(obs, goal=obs)
        np.testing.assert_allclose(first, 2 * (0.01 - 0.1 * obs["position"][:2]) + 0.5, rtol=1e-6)
        np.testing.assert_allclose(second - first, 0.02, rtol=1e-4)
    for part in algo.seen:
        np.testing.assert_array_equal(part["position"], obs["position"][None])

    stacked = make(frame_stack=3, seq_length=1)
    policy = RolloutPolicy(stacked)
    policy.start_episode()
    assert policy(obs).shape == (2,)
    assert stacked.seen[0]["position"].shape == (1, 3, 3) and stacked.seen[1] is None


def test_it_is_evaluated_with_one_worker_which_is_said_once(make, caplog):
    policy = RolloutPolicy(make())
    requests = [EpisodeRequest(seed, 8, terminate_on_success=False) for seed in range(5)]
    state = torch.get_rng_state()
    say_once.cache_clear()
    with caplog.at_level(logging.INFO, "offrl"), EnvPool(toy_args(), 3) as pool:
        pool.check(policy)
        found = [list(evaluate(policy, pool, requests)) for _ in range(2)]
        assert len(pool._workers) == 1
    said = [record.message for record in caplog.records]
    assert said == ["bc: workers reduced to 1; it serves no more environments at a time"]
    assert torch.equal(state, torch.get_rng_state())

    env = make_env(toy_args())
    for results in found:
        assert [r.request.seed for r in results] == list(range(5))
        for result in results:  # what is drawn follows from the seed
            options = {"seed": result.request.seed, "terminate_on_success": False}
            assert rollout(policy, env, 8, **options)["Return"] == result.total_reward


def test_it_serves_one_environment_at_a_time(make):
    policy = RolloutPolicy(make(), batch_size=4)
    policy.start_episode(env=2, seed=3)
    policy.start_episode(env=2, seed=4)
    with pytest.raises(ValueError, match="bc .*get_action.*environment 0"):
        policy.start_episode(env=0)


def test_proxies_need_many_actions_at_once(make):
    with pytest.raises(ValueError, match=r"bc: .*\bact\b.*get_action"):
        proxies(make(), None, None)
