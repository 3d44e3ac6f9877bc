"""Atari's games, as the Nature paper sees them."""

import cv2
import numpy as np
import pytest

from offrl import config_factory
from offrl.envs import env_args_named, make_env
from offrl.online import Trainer

ale_py = pytest.importorskip("ale_py")

pytestmark = pytest.mark.slow  # a real simulator
PONG = env_args_named("ALE/Pong-v5")


def test_the_name_alone_says_what_it_is():
    assert PONG == {"env_name": "ALE/Pong-v5", "type": "atari", "env_kwargs": {}}
    assert env_args_named("CartPole-v1")["type"] == 2
    env = make_env(PONG)
    assert env.serialize()["type"] == "atari" and make_env(env.serialize()).action_space.n == 6


def test_an_observation_is_the_larger_of_the_last_two_of_four_frames():
    env = make_env(PONG)
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    assert obs["image"].shape == (84, 84, 1) and obs["image"].dtype == np.uint8
    ale, frames, rewards = env.unwrapped.ale, [], []
    act = env.unwrapped.ale.act

    class Noting:
        def __getattr__(self, name):
            return getattr(ale, name)

        def act(self, *arguments):
            rewards.append(act(*arguments))
            frames.append(ale.getScreenGrayscale())
            return rewards[-1]

    env.unwrapped.ale = Noting()
    for _ in range(60):  # the ball goes past, which costs a point
        frames.clear(), rewards.clear()
        obs, reward, *_ = env.step(3)
        assert len(frames) == 4 and reward == sum(rewards)
        seen = cv2.resize(np.maximum(*frames[-2:]), (84, 84), interpolation=cv2.INTER_AREA)
        np.testing.assert_array_equal(obs["image"][..., 0], seen)


@pytest.mark.thorough
def test_the_same_seed_is_the_same_game_and_others_begin_later_or_earlier():
    first, again = make_env(PONG), make_env(PONG)
    again.reset(seed=5)
    again.step(2)
    for _ in range(2):
        begins = [env.reset(seed=3)[0]["image"] for env in (first, again)]
        np.testing.assert_array_equal(*begins)
        for action in (2, 3, 0, 1, 5):
            np.testing.assert_array_equal(*(e.step(action)[0]["image"] for e in (first, again)))
    frames = [make_env(PONG) for _ in range(6)]
    numbers = set()
    for seed, env in enumerate(frames):
        env.reset(seed=seed)
        numbers.add(env.unwrapped.ale.getEpisodeFrameNumber())
    assert len(numbers) > 2


@pytest.mark.thorough
def test_a_life_is_an_episode_if_that_is_asked_for():
    def length(**env_kwargs):
        env = make_env({"env_name": "ALE/Breakout-v5", "type": "atari", "env_kwargs": env_kwargs})
        env.reset(seed=0)
        for step in range(500):
            *_, terminated, _, _ = env.step(1)
            if terminated:
                return step
        return 500

    assert length(terminal_on_life_loss=True) < length()


@pytest.mark.parametrize("name", ["dqn", pytest.param("ppo", marks=pytest.mark.thorough)])
def test_a_policy_sees_four_frames_of_which_each_is_stored_once(name):
    encoder = {"core_class": "NatureCNN", "core_kwargs": {"feature_dimension": 8}}
    config = {
        "observation": {"encoder": {"rgb": encoder}},
        "train": {
            "cuda": False,
            "frame_stack": 4,
            "batch_size": 4,
            "online": {"num_envs": 2, "collect_steps": 8, "random_steps": 8, "clip_rewards": True},
        },
    }
    trainer = Trainer(config_factory(name, config), "ALE/Pong-v5", num_steps=48)
    kinds = {record["type"] for record in trainer()}
    assert kinds == {"collect", "train"} and trainer.env_args["type"] == "atari"
    images = trainer.buffer.store.arrays["obs/image"]
    assert images.shape[1:] == (84, 84, 1) and images.dtype == np.uint8
    convolution = next(p for p in trainer.alg.nets.parameters() if p.ndim == 4)
    assert convolution.shape == (32, 4, 8, 8)
    trainer.close()
