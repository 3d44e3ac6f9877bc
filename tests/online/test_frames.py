"""Observations that travel once, as they were observed."""

import pickle
from itertools import islice

import gymnasium as gym
import numpy as np
import pytest
import torch

from offrl.algos.ppo import PPO
from offrl.online import Learner, Trainer
from offrl.online.frames import packed, unpacked
from offrl.tree import as_tensors


class Pictures(gym.Env):
    """Images of the time, and a number; its episodes have three to nine steps."""

    metadata = {"render_modes": ["rgb_array"]}
    observation_space = gym.spaces.Dict(
        image=gym.spaces.Box(0, 255, (36, 36, 1), np.uint8),
        number=gym.spaces.Box(-9, 9, (2,), np.float32),
    )
    action_space = gym.spaces.Discrete(3)

    def _obs(self):
        image = self.np_random.integers(0, 255, (36, 36, 1), np.uint8)
        return {"image": image, "number": np.array([self._time, self._end], np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._time, self._end = 0, self.np_random.integers(3, 9)
        return self._obs(), {}

    def step(self, action):
        self._time += 1
        return self._obs(), float(action), self._time >= self._end, False, {}


gym.register("Pictures-v0", Pictures, max_episode_steps=8)
MEMORY = {"memory": {"enabled": True, "hidden_dim": 8}}
CONVOLUTION = {"core_class": "NatureCNN", "core_kwargs": {"feature_dimension": 8}}


def make(kind, algo_name, env="Pictures-v0", algo=None, num_frames=4, **distributed):
    train = {"frame_stack": num_frames, "batch_size": 64, "num_steps": 10**6}
    online = {"num_envs": 3, "collect_steps": 20}
    small = {"policy_layer_dims": [8], "value_layer_dims": [8]}
    config = {
        "experiment": {"env": env},
        "train": train | {"online": online},
        "algo": small | (algo or {}),
        "distributed": distributed,
    }
    if env == "Pictures-v0":
        config["observation"] = {"encoder": {"rgb": CONVOLUTION}}
    return kind(config, algo_name=algo_name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo_name", "env", "num_frames", "algo"),
    [
        ("ppo", "Pictures-v0", 4, {}),
        ("impala", "Pictures-v0", 1, MEMORY),
        ("a2c", "CartPole-v1", 3, MEMORY),
        pytest.param("ppo", "Pictures-v0", 4, MEMORY, marks=pytest.mark.thorough),
        pytest.param("impala", "Pictures-v0", 1, {}, marks=pytest.mark.thorough),
        pytest.param("a2c", "CartPole-v1", 3, {}, marks=pytest.mark.thorough),
    ],
)
def test_a_round_is_learned_from_as_if_it_had_not_travelled(algo_name, env, num_frames, algo):
    expected = list(islice(make(Trainer, algo_name, env, algo, num_frames)(), 30))
    shared = make(Learner, algo_name, env, algo, num_frames, explorers=1)
    travelled = []
    receive = shared.broker.receive
    shared.broker.receive = lambda: travelled.append(receive()) or travelled[-1]
    for one, other in zip(expected, shared(), strict=False):
        assert {**one, "time": 0} == {**other, "time": 0}
    assert len(travelled) > 1 and all("obs" not in x.data for x in travelled)


def test_each_frame_travels_once():
    learner = make(Learner, "ppo", explorers=1)
    list(islice(learner(), 1))
    trajectory = learner.broker.receive()
    shown = trajectory.data["frames"]["shown"]
    num = len(shown["image"])
    assert shown["image"].dtype == np.uint8 and shown["image"].shape == (num, 36, 36, 1)
    # Twenty steps and the last observation of each episode, in three environments, and four frames
    # of each that is running.
    assert 3 * 20 < num <= 3 * (20 + 20 // 3 + 4)
    size = len(pickle.dumps(trajectory))
    assert size < 1.2 * num * 36 * 36 + 30_000


def test_small_observations_travel_as_they_are():
    learner = make(Learner, "impala", "CartPole-v1", num_frames=1, explorers=1)
    list(islice(learner(), 1))
    assert "obs" in learner.broker.receive().data


class Dimmed(PPO):
    """Learns from something else than it was shown."""

    def process_batch_for_training(self, batch):
        ready = super().process_batch_for_training(batch)
        return ready | {"obs": {key: x / 2 for key, x in ready["obs"].items()}}


def test_what_an_algorithm_has_changed_travels_as_it_is():
    learner = make(Learner, "ppo", explorers=1)
    list(islice(learner(), 1))
    explorer = learner.broker._explorers[0]
    explorer.make_steps(20)
    rollout = explorer.take_rollout()
    own = explorer.alg.process_batch_for_training(rollout)
    there = packed(explorer.alg, rollout, own)
    assert "frames" in there
    back = unpacked(explorer.alg, as_tensors(there))
    assert back.keys() == own.keys()
    assert torch.equal(back["obs"]["image"], own["obs"]["image"])
    explorer.alg.__class__ = Dimmed
    dimmed = explorer.alg.process_batch_for_training(rollout)
    assert torch.equal(dimmed["obs"]["image"], own["obs"]["image"] / 2)
    assert packed(explorer.alg, rollout, dimmed) == dimmed
