"""Any policy in the one loop, in this process and in workers."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from toy_env import WalkHome, toy_args

import offrl.rollout
from offrl import RolloutPolicy, Trainer
from offrl.acting import EpisodeRequest, Policy, rollout, run_episode
from offrl.envs import make_env
from offrl.envs.experts import ExpertPolicy
from offrl.envs.workers import EnvPool
from offrl.evaluation.evaluate import EVALUATION_BATCH, evaluate

GOAL_ENV = toy_args() | {"env_name": "toy_env:GoalToy-v0"}


@pytest.fixture(scope="module")
def goal_pool():
    with EnvPool(GOAL_ENV, 3) as pool:
        yield pool


class Chasing(WalkHome):
    """Walks to the goal, and adds up what it was paid in each environment."""

    needs_goal = True
    counts_rewards = True

    def start_episode(self, env=0, seed=None):
        super().start_episode(env, seed)
        self.paid = getattr(self, "paid", {}) | {env: 0.0}

    def act(self, obs_by_env, goal_by_env=None, reward_by_env=None):
        actions = super().act(obs_by_env)
        for env, reward in reward_by_env.items():
            self.paid[env] += reward
            actions[env] = actions[env] + goal_by_env[env]["position"][:2] + 0.1 * self.paid[env]
        return actions


def trained(small_config, algo_name="bc", algo=None, **train):
    """A policy of the shape that an evaluation has, with a goal."""
    overrides = {
        "train": {"goal_mode": "last", **train},
        "observation": {"modalities": {"goal": {"low_dim": ["position"]}}},
        "algo": algo or {},
    }
    return RolloutPolicy(Trainer(small_config(overrides, algo_name)).algo, EVALUATION_BATCH)


POLICIES = {
    "scripted": lambda _: WalkHome(),
    "with goals and rewards": lambda _: Chasing(),
    "an expert": lambda _: ExpertPolicy(lambda obs: -obs["position"][:2], noise=[0.1, 0.3]),
    "trained": lambda small_config: trained(
        small_config, algo={"gmm": {"enabled": True, "low_noise_eval": False}}, frame_stack=2
    ),
    "recurrent": lambda small_config: trained(
        small_config, algo={"rnn": {"enabled": True, "horizon": 3}}, seq_length=3
    ),
}


@pytest.mark.parametrize("name", POLICIES)
def test_an_episode_in_this_process_equals_a_workers_to_the_bit(small_config, name, goal_pool):
    policy = POLICIES[name](small_config)
    assert isinstance(policy, Policy)
    requests = [EpisodeRequest(seed, 9, frame_every=4, record=True) for seed in range(7)]
    in_workers = {r.request: r for r in evaluate(policy, goal_pool, requests)}
    env = make_env(GOAL_ENV)
    for request in requests:
        policy.start_episode(seed=request.seed)
        here = run_episode(env, request, policy, policy.needs_goal)
        there = in_workers[request]
        assert there.error is None
        for part in ("request", "success", "total_reward", "length"):
            assert getattr(here, part) == getattr(there, part)
        np.testing.assert_array_equal(here.frames, there.frames)
        assert here.trajectory.keys() == there.trajectory.keys()
        for key, values in here.trajectory.items():
            np.testing.assert_array_equal(values, there.trajectory[key], err_msg=key)
        short = rollout(policy, env, horizon=9, seed=request.seed)
        assert (short["Return"], short["Horizon"]) == (here.total_reward, here.length)
    assert len({result.total_reward for result in in_workers.values()}) == 7


class Plain:
    """A policy as scripts had them before there was a class to derive from."""

    def __init__(self, policy):
        self.policy = policy

    def start_episode(self, env=0, seed=None):
        self.policy.start_episode(env, seed)

    def act(self, obs_by_env, goal_by_env=None):
        assert goal_by_env is None
        return self.policy.act(obs_by_env)


class PlainChasing(Plain):
    needs_goal = True
    counts_rewards = True

    def act(self, obs_by_env, goal_by_env=None, reward_by_env=None):
        return self.policy.act(obs_by_env, goal_by_env, reward_by_env)


class PlainRule:
    """It has no memory, and is told of no episode's start."""

    def act(self, obs_by_env):
        return {env: -obs["position"][:2] for env, obs in obs_by_env.items()}


@pytest.mark.parametrize(
    ("plain", "derived"),
    [
        (Plain(WalkHome()), WalkHome()),
        (PlainChasing(Chasing()), Chasing()),
        (PlainRule(), ExpertPolicy(lambda obs: -obs["position"][:2])),
    ],
)
def test_a_policy_that_derives_from_nothing_acts_as_one_that_does(plain, derived, goal_pool):
    requests = [EpisodeRequest(seed, 9) for seed in range(4)]
    env, found = make_env(GOAL_ENV), []
    for policy in (plain, derived):
        goal_pool.check(policy)
        results = evaluate(policy, goal_pool, requests)
        found.append({result.request.seed: result.total_reward for result in results})
        found.append({r.seed: rollout(policy, env, 9, seed=r.seed)["Return"] for r in requests})
    for returns in found[1:]:
        assert returns == pytest.approx(found[0], rel=1e-6) and len(set(returns.values())) == 4


def test_what_is_no_policy_is_told_to_become_one(goal_pool):
    match = "object .*offrl.acting.Policy"
    with pytest.raises(ValueError, match=match):
        rollout(object(), make_env(toy_args()), horizon=1)
    with pytest.raises(ValueError, match=match):
        goal_pool.check(object())


def test_an_environment_without_goals_is_named():
    with pytest.raises(ValueError, match="ToyEnv .*get_goal"):
        rollout(Chasing(), make_env(toy_args()), horizon=1)


def test_what_simulators_import_needs_no_torch():
    script = "import offrl.acting, offrl.envs.workers, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2], check=True)


def test_scripts_may_import_from_where_the_names_were():
    for name in ("RolloutPolicy", "rollout", "evaluate", "summarize", "wilson_interval"):
        assert callable(getattr(offrl.rollout, name))
    assert offrl.rollout.COLLECTION_SEEDS > offrl.rollout.SELECTION_SEEDS > offrl.rollout.TEST_SEEDS


def test_a_recording_keeps_what_a_simulator_overwrites():
    import numpy as np

    from offrl.acting.episode import EpisodeRequest, run_episode

    class Reuses:
        """Returns the same array each time."""

        def __init__(self):
            self.position = np.zeros(1)

        def reset(self, seed=None):
            return {"position": self.position}, {}

        def step(self, action):
            self.position += 1
            return {"position": self.position}, 0.0, False, False, {}

        def is_success(self):
            return {"task": False}

    result = run_episode(Reuses(), EpisodeRequest(0, 3, record=True), lambda *_: np.zeros(1))
    assert result.trajectory["obs/position"].ravel().tolist() == [0, 1, 2]
