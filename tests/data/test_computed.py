import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offrl.data.computed import returns_to_go, timesteps, transformed
from offrl.data.sequence import SequenceDataset

NUMBERS = st.floats(-100, 100, width=32)
EPISODES = st.lists(st.lists(NUMBERS, min_size=1, max_size=8), min_size=1, max_size=5)


def flatten(episodes):
    return np.concatenate(episodes).astype(np.float32), np.array([len(e) for e in episodes])


@given(EPISODES, st.floats(0, 1))
def test_returns_and_timesteps_start_anew_with_each_demonstration(episodes, discount):
    rewards, lengths = flatten(episodes)
    dones = np.zeros(len(rewards))
    dones[np.cumsum(lengths) - 1] = 1
    expected = [
        sum(discount**k * r for k, r in enumerate(episode[t:]))
        for episode in episodes
        for t in range(len(episode))
    ]
    np.testing.assert_allclose(
        returns_to_go(rewards, dones, lengths, discount), expected, rtol=1e-5, atol=1e-3
    )
    steps = [t for episode in episodes for t in range(len(episode))]
    assert timesteps(rewards, dones, lengths, discount).tolist() == steps


@pytest.mark.parametrize(
    ("last", "done", "discount", "expected"),
    [
        (-1.0, 0, 0.9, [-10.0, -10.0]),  # a penalty of 1 for ever
        (-1.0, 1, 0.9, [-1.9, -1.0]),
        (2.0, 0, 0.9, [0.8, 2.0]),  # what comes after is not known to be good
        (-1.0, 0, 1.0, [-2.0, -1.0]),
    ],
)
def test_the_return_of_an_unfinished_demonstration(last, done, discount, expected):
    found = returns_to_go(np.array([-1.0, last]), np.array([0, done]), np.array([2]), discount)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@given(EPISODES)
def test_rewards_are_as_stored_unless_asked(episodes):
    rewards, lengths = flatten(episodes)
    np.testing.assert_array_equal(transformed(rewards, lengths, {})[0], rewards)


@given(EPISODES.filter(lambda e: np.ptp(np.concatenate(e)) > 0.1))
def test_normalised_rewards(episodes):
    rewards, lengths = flatten(episodes)
    low_high, _ = transformed(rewards, lengths, {"normalization": "min_max"})
    assert low_high.min() == pytest.approx(0, abs=1e-4)
    assert low_high.max() == pytest.approx(1, abs=1e-4)
    standard, _ = transformed(rewards, lengths, {"normalization": "gaussian"})
    assert standard.mean() == pytest.approx(0, abs=1e-3)
    assert standard.std() == pytest.approx(1, abs=1e-3)


def test_returns_of_normalised_rewards_are_one_apart():
    rewards, lengths = np.array([1.0, 1.0, 1.0, 5.0]), np.array([3, 1])
    rewards, _ = transformed(rewards, lengths, {"normalization": "return", "scale": 1000.0})
    np.testing.assert_allclose(rewards, [500, 500, 500, 2500])


def test_rewards_are_clipped_then_normalised_then_scaled_then_shifted():
    config = {"clip": [0.0, 4.0], "normalization": "min_max", "scale": 10.0, "shift": -1.0}
    rewards, _ = transformed(np.array([-7.0, 1.0, 9.0]), np.array([3]), config)
    np.testing.assert_allclose(rewards, [-1.0, 1.5, 9.0])


@pytest.mark.parametrize("normalization", ["min_max", "gaussian", "return"])
def test_rewards_that_are_all_the_same_cannot_be_normalised(normalization):
    with pytest.raises(ValueError, match="train.rewards.normalization"):
        transformed(np.ones(4), np.array([2, 2]), {"normalization": normalization})


def test_held_out_rewards_are_normalised_as_those_of_the_training(demos):
    options = {"dataset_keys": ["actions", "rewards", "dones", "returns"], "discount": 0.5}
    normal = options | {"rewards": {"normalization": "min_max"}}
    train = SequenceDataset(demos, ["speed"], filter_by_attribute="train", **normal)
    valid = SequenceDataset(
        demos, ["speed"], filter_by_attribute="valid", reward_stats=train.reward_stats, **normal
    )
    with h5py.File(demos) as file:
        stored = {key: file[f"data/{key}/rewards"][()] for key in file["data"]}
    seen = np.concatenate([stored["demo_0"], stored["demo_1"]])
    expected = (stored["demo_2"] - seen.min()) / np.ptp(seen)
    np.testing.assert_allclose(valid.values("rewards"), expected, rtol=1e-5)
    assert valid.values("returns")[-1] == pytest.approx(expected[-1], rel=1e-5)  # of the same
