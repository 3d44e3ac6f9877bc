"""A store of steps that grows and wraps around, and batches from it."""

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offrl.data.computed import COMPUTED
from offrl.data.goals import Goals
from offrl.data.loader import BatchLoader
from offrl.data.sequence import SequenceDataset
from offrl.data.steps import StepStore
from offrl.data.windows import Window, WindowDataset
from offrl.tree import map_leaves

KEYS = ("height", "image", "speed")
DATASET_KEYS = ("actions", "rewards", "dones", "returns", "timesteps")


def make_episode(length, rng, next_obs=False, terminates=True):
    """An episode as an environment gives it: float64, bools, numbers that are no vectors."""
    rewards, dones = rng.random(length), np.arange(length) == length - terminates
    parts = (rewards.astype("f4"), dones, np.array([length]), 0.9)
    episode = {"actions": np.tanh(rng.standard_normal((length, 2))), "rewards": rewards}
    episode |= {"dones": dones} | {key: compute(*parts) for key, compute in COMPUTED.items()}
    for group in ("obs", "next_obs") if next_obs else ("obs",):
        episode[f"{group}/speed"] = rng.standard_normal((length, 3))
        episode[f"{group}/height"] = rng.standard_normal(length)
        episode[f"{group}/image"] = rng.integers(0, 256, (length, 2, 2, 3), dtype=np.uint8)
    return episode


def fresh_store(episodes):
    """A store that is filled at once."""
    one_by_one = [StepStore() for _ in episodes]
    for store, episode in zip(one_by_one, episodes, strict=True):
        store.add(episode)
    store = StepStore([len(episode["actions"]) for episode in episodes])
    for key in episodes[0]:
        store.fill({key: torch.cat([one.values(key) for one in one_by_one]).numpy()})
    return store


def assert_equal(actual, expected):
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, dict):
            assert_equal(actual[key], value)
        else:
            assert actual[key].dtype == value.dtype and torch.equal(actual[key], value), key


windows = st.builds(Window, st.integers(1, 3), st.integers(1, 4), st.booleans(), st.booleans())


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 8), min_size=1, max_size=12),
    num_filled=st.integers(0, 3),
    capacity=st.integers(8, 30),
    window=windows,
    goals=st.sampled_from([None, Goals("last")]),
    next_obs=st.booleans(),
    seed=st.integers(0, 99),
)
def test_batches_do_not_show_that_a_store_has_grown_and_wrapped_around(
    lengths, num_filled, capacity, window, goals, next_obs, seed
):
    rng = np.random.default_rng(seed)
    episodes = [make_episode(n, rng, next_obs, terminates=rng.random() < 0.5) for n in lengths]
    options = (KEYS, DATASET_KEYS, window, True, goals)
    # Some of them from files, more of them later.
    filled = episodes[:num_filled] if sum(lengths[:num_filled]) <= capacity else []
    store = fresh_store(filled) if filled else StepStore()
    store.capacity = capacity
    data = WindowDataset(store, *options)
    for count in range(len(filled) + 1, len(episodes) + 1):
        store.add(episodes[count - 1])
        data.make_windows()
        kept = len(store.lengths)
        assert store.lengths.tolist() == lengths[count - kept : count]
        if kept < count:  # room for any two more there never is
            assert sum(lengths[count - kept : count]) > capacity - 2 * max(lengths)
        else:
            assert store.lengths.sum() <= capacity
        expected = fresh_store(episodes[count - kept : count])
        for key in episodes[0]:
            assert torch.equal(store.values(key), expected.values(key))
            assert len(store.columns[key].array) <= capacity
        fresh = WindowDataset(expected, *options)
        assert len(data) == len(fresh)
        indices = torch.arange(len(fresh))
        assert_equal(data.get_batch(indices), fresh.get_batch(indices))


@pytest.mark.parametrize("next_obs", [True, False])
def test_batches_are_those_of_the_same_episodes_in_a_file(tmp_path, next_obs):
    rng = np.random.default_rng(0)
    episodes = [make_episode(n, rng, next_obs, terminates=n != 5) for n in (4, 5, 3)]
    store = StepStore(capacity=14)
    store.add(make_episode(9, rng, next_obs))
    with h5py.File(tmp_path / "demos.hdf5", "w") as file:
        for i, episode in enumerate(episodes):
            store.add(episode)
            for key in episode.keys() - COMPUTED.keys():
                file[f"data/demo_{i}/{key}"] = episode[key]
    window = Window(frame_stack=2, seq_length=3)
    data = WindowDataset(store, KEYS, DATASET_KEYS, window, True, Goals("last"))
    from_file = SequenceDataset(
        tmp_path / "demos.hdf5",
        KEYS,
        dataset_keys=DATASET_KEYS,
        get_pad_mask=True,
        goal_mode="last",
        discount=0.9,
        **window._asdict(),
    )
    assert len(data) == len(from_file) and data.obs_shapes == from_file.obs_shapes
    indices = torch.arange(len(data))
    assert_equal(data.get_batch(indices), from_file.get_batch(indices))
    loaders = [BatchLoader(dataset, 4, seed=1) for dataset in (data, from_file)]
    for _, mine, theirs in zip(range(5), *loaders, strict=False):
        assert_equal(mine, theirs)


def test_memory_doubles_up_to_the_capacity():
    store, rng, sizes = StepStore(capacity=50), np.random.default_rng(0), []
    for _ in range(12):
        store.add({"actions": rng.random((6, 2)), "obs/image": np.zeros((6, 4), np.uint8)})
        sizes.append(store.nbytes // (2 * 4 + 4))
    assert sizes == [6, 12, 24, 24, 48, 48, 48, 48, 48, 48, 48, 48]
    assert len(store.lengths) == 8


def test_what_is_filled_in_is_not_copied():
    actions = np.zeros((5, 2), np.float32)
    store = StepStore([3, 2])
    store.fill({"actions": actions})
    assert store.columns["actions"].array.data_ptr() == actions.ctypes.data
    store.add({"actions": np.ones((2, 2))})
    assert store.values("actions")[:, 0].tolist() == [0] * 5 + [1] * 2 and not actions.any()


def changed(episode, **changes):
    return {k: v for k, v in (episode | changes).items() if v is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actions": np.zeros((9, 2))}, "an episode of 9 steps, but the store has room for 1 to 8"),
        ({"rewards": None}, "rewards: the episode has none, but the store needs torch.float32 "),
        (
            {"states": np.zeros(4)},
            r"states: the episode has torch.float32 \[4\], but .* needs none",
        ),
        ({"dones": np.zeros(3)}, r"dones: the episode has torch.float32 \[3\], .* \[4\]"),
        ({"actions": np.zeros((4, 3))}, r"actions: .* \[4, 3\], but .* \[4, 2\]"),
        ({"obs/image": np.zeros((4, 2, 2, 3))}, "obs/image: .* torch.float32 .* torch.uint8 "),
    ],
)
def test_an_episode_that_does_not_fit_is_refused_and_changes_nothing(changes, message):
    rng = np.random.default_rng(0)
    episode = make_episode(4, rng)
    store = StepStore(capacity=8)
    store.add(episode)
    before = map_leaves(torch.clone, {key: store.values(key) for key in episode})
    with pytest.raises(ValueError, match=message):
        store.add(changed(episode, **changes))
    assert store.lengths.tolist() == [4]
    assert_equal({key: store.values(key) for key in episode}, before)


def test_a_first_episode_that_is_refused_leaves_no_trace():
    rng = np.random.default_rng(0)
    store, empty = StepStore(capacity=8), r"an episode of 0 steps"
    with pytest.raises(ValueError, match=empty):
        store.add({})
    with pytest.raises(ValueError, match=empty):
        store.add({"actions": np.zeros((0, 2))})
    with pytest.raises(ValueError, match=r"rewards: .* \[3\], but the store needs .* \[4\]"):
        store.add({"actions": np.zeros((4, 2)), "rewards": np.zeros(3)})
    store.add(make_episode(4, rng))
    assert "obs/speed" in store.columns


def test_steps_in_files_are_not_added_to(demos):
    store = SequenceDataset(demos, ["speed"], hdf5_cache_mode=None, load_next_obs=False).store
    episode = {key: store.values(key)[:2].numpy() for key in ("actions", "rewards", "dones")}
    with pytest.raises(ValueError, match="obs/speed: .* the store needs what is not in memory"):
        store.add(episode | {"obs/speed": np.zeros((2, 2))})


def test_an_empty_store_has_no_windows():
    data = WindowDataset(StepStore(capacity=8), KEYS, DATASET_KEYS, Window(2, 3))
    assert len(data) == 0 and data.nbytes == 0
