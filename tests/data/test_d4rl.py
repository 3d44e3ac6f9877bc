"""Flat files in D4RL's layout, made of episodes whose ends are known."""

import h5py
import numpy as np
import pytest
import torch

from offrl.data.sequence import SequenceDataset

# Length, whether it terminated, whether a time limit cut it off. The file ends in the midst of one.
EPISODES = [
    (4, True, False),
    (5, False, True),
    (1, False, True),
    (3, True, False),
    (3, False, False),
]


def write_d4rl(path, next_observations=False, timeouts=True, episodes=EPISODES):
    """The observation is ``[episode, step]``, so that a step across a reset shows."""
    columns = {
        key: []
        for key in (
            "observations",
            "next_observations",
            "actions",
            "rewards",
            "terminals",
            "timeouts",
        )
    }
    rng = np.random.default_rng(0)
    for episode, (length, terminated, timed_out) in enumerate(episodes):
        steps = np.stack([np.full(length + 1, episode), np.arange(length + 1)], axis=1)
        columns["observations"].append(steps[:-1].astype(np.float32))
        columns["next_observations"].append(steps[1:].astype(np.float32))
        columns["actions"].append(rng.uniform(-1, 1, (length, 3)).astype(np.float32))
        columns["rewards"].append(np.full(length, episode, dtype=np.float32))
        last = np.arange(length) == length - 1
        columns["terminals"].append(last & terminated)
        columns["timeouts"].append(last & timed_out)
    with h5py.File(path, "w") as file:
        for key, parts in columns.items():
            file[key] = np.concatenate(parts)
        file["infos/qpos"] = np.zeros((len(file["actions"]), 2))
        file["metadata/algorithm"] = "none"
        if not next_observations:
            del file["next_observations"]
        if not timeouts:
            del file["timeouts"]
    return path


def transitions(dataset):
    batch = dataset.get_batch(torch.arange(len(dataset)))
    return (
        batch["obs"]["flat"][:, 0].numpy(),
        batch["next_obs"]["flat"][:, 0].numpy(),
        batch["dones"].flatten().numpy(),
    )


@pytest.mark.parametrize("cache_mode", ["all", None])
def test_no_transition_leads_across_a_reset_and_no_timeout_is_an_end(tmp_path, cache_mode):
    path = write_d4rl(tmp_path / "old.hdf5")
    dataset = SequenceDataset(path, ["flat"], hdf5_cache_mode=cache_mode)
    assert dataset.lengths.tolist() == [4, 5, 1, 3, 3] and dataset.env_args is None
    obs, next_obs, dones = transitions(dataset)
    # What follows the last step of an episode that did not terminate is unknown: no transition.
    assert obs[:, 0].tolist() == [0] * 4 + [1] * 4 + [3] * 3 + [4] * 2
    ends = dones == 1
    assert obs[ends].tolist() == [[0, 3], [3, 2]]
    np.testing.assert_array_equal(next_obs[~ends], obs[~ends] + [0, 1])


@pytest.mark.parametrize("timeouts", [True, False])
def test_stored_next_observations_keep_every_transition_and_show_the_resets(tmp_path, timeouts):
    path = write_d4rl(tmp_path / "new.hdf5", next_observations=True, timeouts=timeouts)
    dataset = SequenceDataset(path, ["flat"])
    assert dataset.lengths.tolist() == [4, 5, 1, 3, 3]
    obs, next_obs, dones = transitions(dataset)
    assert len(obs) == 16 and dones.sum() == 2
    np.testing.assert_array_equal(next_obs, obs + [0, 1])


def test_rewards_do_not_sum_across_episodes(tmp_path):
    path = write_d4rl(tmp_path / "d4rl.hdf5")
    dataset = SequenceDataset(
        path, ["flat"], dataset_keys=("actions", "rewards", "dones", "returns")
    )
    returns = dataset.values("returns").numpy()
    assert returns[[0, 3, 4, 8]].tolist() == [0, 0, 5, 1]


def test_filters_by_return_and_number(tmp_path):
    path = write_d4rl(tmp_path / "d4rl.hdf5")
    best = SequenceDataset(path, ["flat"], top_share=0.4, load_next_obs=False)
    assert best.demos == ["demo_3", "demo_4"] and best[0]["obs"]["flat"][0].tolist() == [3, 0]
    first = SequenceDataset(path, ["flat"], demo_limit=2, load_next_obs=False)
    assert len(first) == 9
    with pytest.raises(ValueError, match="'train'.*train.hdf5_filter_key"):
        SequenceDataset(path, ["flat"], filter_by_attribute="train")


def edit(path, change):
    with h5py.File(path, "a") as file:
        change(file)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f.pop("terminals"), "observations.*terminals"),
        (lambda f: f.pop("timeouts"), "timeouts"),
        (lambda f: f["observations"].__setitem__((6, 1), np.nan), "demo_1/obs/flat .*step 2"),
        (
            lambda f: (f.pop("rewards"), f.create_dataset("rewards", data=[0.0])),
            r"rewards .*\[1\].* observations \[16, 2\]",
        ),
        (
            lambda f: (f.pop("terminals"), f.create_dataset("terminals", data=np.zeros((16, 2)))),
            r"terminals .*\[16, 2\]",
        ),
        (
            lambda f: f.create_dataset("next_observations", data=np.zeros((16, 3))),
            r"next_observations .*\[16, 3\]",
        ),
        (
            lambda f: (
                f.pop("observations"),
                f.create_dataset("observations", data=np.zeros((0, 2))),
            ),
            "broken.hdf5: observations",
        ),
    ],
)
def test_broken_files_are_refused(tmp_path, change, words):
    path = write_d4rl(tmp_path / "broken.hdf5")
    edit(path, change)
    with pytest.raises(ValueError, match=words) as error:
        SequenceDataset(path, ["flat"])
    assert str(path) in str(error.value)


def test_another_observation_is_answered_by_the_name_of_the_one_there_is(tmp_path):
    path = write_d4rl(tmp_path / "d4rl.hdf5")
    with pytest.raises(ValueError, match=r"modalities.obs.low_dim .*\[\"flat\"\]"):
        SequenceDataset(path, ["object"])
