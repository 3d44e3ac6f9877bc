"""Classes of a user's own that are nearly environments."""

import gymnasium
import numpy as np
import pytest

from offrl.envs.wrappers import Adapted, adapted
from offrl.online import Agent, Environment

CARTPOLE = {
    "algo_name": "ppo",
    "experiment": {"env": "CartPole-v1"},
    "train": {"num_steps": 64, "batch_size": 16, "online": {"collect_steps": 32}},
}


class Wraps:
    env_solution = 2.0

    def __init__(self):
        self.env = gymnasium.make("CartPole-v1", max_episode_steps=8)

    def reset(self):
        return self.env.reset()[0]

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or truncated, info | {"TimeLimit.truncated": truncated}

    def close(self):
        self.env.close()


class FiveValues(Wraps):
    def reset(self, seed=None):
        return self.env.reset(seed=seed)

    def step(self, action):
        return self.env.step(action)


class OwnSpaces:
    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Discrete(2)
    num = 0

    def reset(self):
        return [0.0] * 4

    def step(self, action):
        self.num += 1
        return self.reset(), 1, self.num % 8 == 0, None


@pytest.mark.parametrize("make", [Wraps, FiveValues, OwnSpaces])
def test_an_agent_trains_in_a_plain_class(make):
    own = make()
    told = Agent(CARTPOLE, log_level="warning").train(own)
    assert told["Steps"] == 64 and told["Return"] <= 8
    played = Agent(CARTPOLE, log_level="warning").play(own, {"n": 2})
    assert played["Horizon"] <= 8 and played["Crashed"] == 0


@pytest.mark.parametrize("make", [Wraps, FiveValues])
def test_a_plain_class_is_the_environment_that_it_wraps(make):
    ours, theirs = adapted(make()), gymnasium.make("CartPole-v1", max_episode_steps=8)
    assert ours.action_space == theirs.action_space and ours.spec.max_episode_steps == 8
    for seed in (3, 4):
        np.testing.assert_array_equal(ours.reset(seed=seed)[0]["flat"], theirs.reset(seed=seed)[0])
        for action in (0, 1) * 4:
            (obs, *ended), (own_obs, *own_ended) = ours.step(action), theirs.step(action)
            np.testing.assert_array_equal(obs["flat"], own_obs)
            assert ended[:3] == own_ended[:3]
    assert own_ended[2] is True  # cut off


def changed(**methods):
    return type("Mine", (OwnSpaces,), {key: staticmethod(x) for key, x in methods.items()})()


@pytest.mark.parametrize(
    "own, says",
    [
        (changed(observation_space=None), "Mine: .*observation_space.*self.env"),
        (changed(action_space=None), "Mine: .*action_space.*self.env"),
        (OwnSpaces, "reset and step"),
        ("CartPole-v1", "'CartPole-v1' .*reset and step"),
        (changed(step=lambda action: (np.zeros(4), 1.0, "no", {})), "Mine.*done.*'no'"),
        (changed(step=lambda action: (np.zeros(4), 1.0, 2, {})), "Mine.*done.*2"),
        (
            changed(step=lambda action: (np.zeros(4), 1.0, True, {"truncated": "x"})),
            "truncated.*'x'",
        ),
        (changed(step=lambda action: (np.zeros(4), 1.0, True, "info")), "Mine.*mapping"),
        (changed(step=lambda action: (np.zeros(4), 1.0, True)), "Mine.*3 values"),
        (changed(step=lambda action: (np.zeros(4), float("nan"), False, {})), "Mine.*reward.*NaN"),
        (changed(reset=lambda: np.zeros(3)), r"Mine.*'flat'.*\[3\]"),
    ],
)
def test_what_a_plain_class_lacks_is_named(own, says):
    with pytest.raises(ValueError, match=says):
        Agent(CARTPOLE, log_level="warning").train(own)


def test_an_episode_that_was_cut_off_is_over():
    own = changed(step=lambda action: (np.zeros(4), 1, False, {"truncated": True}))
    assert Adapted(own).step(0)[1:4] == (1, False, True)


def test_an_environment_knows_its_seed_and_its_name():
    env = Environment(CARTPOLE)
    assert (env.seed, env.env_name) == (env.config.train.seed, "CartPole-v1")


def test_what_says_how_it_is_solved_is_heard():
    few = CARTPOLE | {"train": {"num_steps": 320, "online": {"solved_episodes": 2}}}
    agent = Agent(few | {"algo": {}}, log_level="warning")
    assert agent.train(Wraps(), {"online": {"collect_steps": 32}})["Solved"] == 1.0
    assert Adapted(Wraps()).render_mode is None
