"""Datasets that the package minari wrote."""

import json
import os
import sys

import gymnasium
import h5py
import minari
import numpy as np
import pytest
import torch
from conftest import train_completely
from minari.data_collector import EpisodeBuffer

from offrl import Trainer
from offrl.data.formats.files import find_data, open_episodes
from offrl.data.sequence import SequenceDataset
from offrl.tree import gather


class Reach(gymnasium.Env):
    """Observations that are a dict; an episode ends within 0.1 of the goal."""

    observation_space = gymnasium.spaces.Dict(
        {key: gymnasium.spaces.Box(-9, 9, (2,)) for key in ("position", "goal")}
    )
    action_space = gymnasium.spaces.Box(-1, 1, (2,))

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.position = np.zeros(2, dtype=np.float32)
        self.goal = self.np_random.uniform(-0.3, 0.3, 2).astype(np.float32)
        return self._observe(), {}

    def step(self, action):
        self.position = self.position + 0.2 * np.asarray(action, dtype=np.float32)
        distance = float(np.abs(self.position - self.goal).max())
        return self._observe(), -distance, distance < 0.1, False, {}

    def _observe(self):
        return {"position": self.position, "goal": self.goal.copy()}


gymnasium.register("MinariReach-v0", entry_point="test_minari:Reach", max_episode_steps=7)

pytestmark = pytest.mark.filterwarnings("ignore:`.*` is set to None")  # authors and the like


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def record(task, name, episodes=8):
    """Random actions, until the environment says that it is over."""
    env = gymnasium.make(task)
    env.action_space.seed(0)
    buffers = []
    for seed in range(episodes):
        rows = {k: [] for k in ("actions", "rewards", "terminations", "truncations")}
        observations = [env.reset(seed=seed)[0]]
        terminated = truncated = False
        while not (terminated or truncated):
            action = env.action_space.sample()
            obs, reward, terminated, truncated, _ = env.step(action)
            observations.append(obs)
            for key, value in zip(rows, (action, reward, terminated, truncated), strict=True):
                rows[key].append(value)
        buffers.append(EpisodeBuffer(seed, observations=gather(np.stack, observations), **rows))
    return minari.create_dataset_from_buffers(name, buffers, env=env)


def test_every_step_has_what_followed_it_and_only_terminations_are_ends(folder):
    dataset = record("MinariReach-v0", "reach/random-v0")
    episodes = list(dataset.iterate_episodes())
    ended = [bool(episode.terminations[-1]) for episode in episodes]
    assert len(set(ended)) == 2  # both kinds
    data = SequenceDataset(folder / "reach/random-v0", ["position", "goal"])
    assert data.lengths.tolist() == [len(e) for e in episodes] and len(data) == data.lengths.sum()
    batch = data.get_batch(torch.arange(len(data)))
    for group, rows in (("obs", slice(None, -1)), ("next_obs", slice(1, None))):
        for key in ("position", "goal"):
            stored = np.concatenate([e.observations[key][rows] for e in episodes])
            np.testing.assert_array_equal(batch[group][key][:, 0], stored)
    assert batch["dones"].flatten()[np.cumsum(data.lengths) - 1].tolist() == ended
    assert batch["dones"].sum() == sum(ended)
    assert data.env_args == {
        "env_name": "MinariReach-v0",
        "type": 2,
        "env_kwargs": {"max_episode_steps": 7},
    }


@pytest.mark.slow
def test_a_name_of_minaris_trains_and_is_evaluated_in_its_environment(folder, small_config):
    record("InvertedPendulum-v5", "mujoco/pendulum/random-v0")
    overrides = {
        "experiment": {"rollout": {"enabled": True, "n": 1, "horizon": 5, "num_workers": 1}},
        "train": {"data": "minari:mujoco/pendulum/random-v0", "num_epochs": 1},
        "observation": {"modalities": {"obs": {"low_dim": ["flat"]}}},
    }
    trainer = Trainer(small_config(overrides, "iql"))
    assert trainer.config.train.data[0].path == str(folder / "mujoco/pendulum/random-v0")
    records = train_completely(trainer)
    (rollout,) = [r["logs"] for r in records if r["type"] == "rollout"]
    assert rollout["Crashed"] == 0 and rollout["Return"] > 0
    first = trainer.config.meta.provenance["dataset_fingerprint"]
    minari.delete_dataset("mujoco/pendulum/random-v0")
    record("InvertedPendulum-v5", "mujoco/pendulum/random-v0", episodes=9)
    assert (
        Trainer(small_config(overrides, "iql")).config.meta.provenance["dataset_fingerprint"]
        != first
    )


def test_what_is_not_there_is_said(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="minari download mujoco/hopper/medium-v0"):
        find_data("minari:mujoco/hopper/medium-v0")
    with pytest.raises(ValueError, match="meta/info.json"):
        SequenceDataset(tmp_path, ["flat"])
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ImportError, match=r"offrl\[minari\]"):
        find_data("minari:mujoco/hopper/medium-v0")


def spaces_dataset(folder, observation, action):
    """A dataset without offrl's notes, of two episodes of what the spaces hold."""
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    (folder / "data").mkdir(parents=True)
    storage = MinariStorage.new(
        folder / "data", observation_space=observation, action_space=action, env_spec=None
    )
    storage.update_metadata({"dataset_id": "own/spaces-v0", "minari_version": minari.__version__})

    def drawn(space, num):
        rows = [space.sample() for _ in range(num)]
        if isinstance(space, gymnasium.spaces.Dict):
            return {key: np.stack([row[key] for row in rows]) for key in space}
        return np.stack(rows)

    flags = np.arange(4) == 3
    episode = EpisodeBuffer(
        observations=drawn(observation, 5),
        actions=drawn(action, 4),
        rewards=np.zeros(4),
        terminations=flags,
        truncations=~flags & False,
    )
    storage.update_episodes([episode])
    return folder


BOX, VECTOR = gymnasium.spaces.Box(-1, 1, (3,)), gymnasium.spaces.Box(-1, 1, (2,))
MULTIPLE, BITS = gymnasium.spaces.MultiDiscrete([3, 4]), gymnasium.spaces.MultiBinary(3)
COUNTED = gymnasium.spaces.Discrete(3, start=1)
INTEGERS = gymnasium.spaces.Box(0, 4, (2,), np.int64)
NUMBERED = {"format": "discrete", "num_actions": 9}


@pytest.mark.parametrize(
    ("observation", "action", "options", "words"),
    [
        (BOX, MULTIPLE, None, "MultiDiscrete"),
        (BOX, BITS, None, "MultiBinary"),
        (BOX, COUNTED, {"format": "discrete"}, "start=1"),
        (BOX, INTEGERS, None, "int64"),
        (BOX, gymnasium.spaces.Box(-1, 1, (2, 2)), None, r"\(2, 2\)"),
        (BOX, gymnasium.spaces.Discrete(7), NUMBERED, "num_actions: 9 .* 7"),
        (gymnasium.spaces.Discrete(16), VECTOR, None, "obs/flat.*Discrete"),
        (MULTIPLE, VECTOR, None, "obs/flat.*MultiDiscrete"),
    ],
)
def test_a_space_that_is_not_obeyed_is_refused(tmp_path, observation, action, options, words):
    path = spaces_dataset(tmp_path / "spaces", observation, action)
    with pytest.raises(ValueError, match=words):
        SequenceDataset(path, ["flat"], action_config={"actions": options or {}})


def test_spaces_are_obeyed(tmp_path):
    """All actions of the space count; categories are left out; bits are numbers."""
    parts = {"place": BOX, "kind": gymnasium.spaces.Discrete(4), "bits": BITS}
    action = gymnasium.spaces.Discrete(50)
    path = spaces_dataset(tmp_path / "spaces", gymnasium.spaces.Dict(parts), action)
    config = {"actions": {"format": "discrete"}}
    assert SequenceDataset(path, ["place", "bits"], action_config=config).ac_dim == 50
    with pytest.raises(ValueError, match="obs/kind is Discrete"):
        SequenceDataset(path, ["place", "kind"], action_config=config)


@pytest.mark.parametrize(
    "said",
    [
        {"env_spec": 5},
        {"env_spec": "[1]"},
        {"total_episodes": 10**9},
        {"total_episodes": 0},
        {"offrl": "[]"},
    ],
)
def test_odd_metadata_are_said_with_their_place(tmp_path, said):
    spaces_dataset(tmp_path, BOX, VECTOR)
    path = tmp_path / "data/metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | said))
    with pytest.raises(ValueError, match=f"^{tmp_path}: "):
        open_episodes(tmp_path)


def test_pipes_and_values_for_steps_are_said(tmp_path):
    path = spaces_dataset(tmp_path / "spaces", BOX, VECTOR) / "data"
    with h5py.File(path / "main_data.hdf5", "r+") as file:
        file.pop("episode_0/rewards")
        file["episode_0/rewards"] = 1.0
    with pytest.raises(ValueError, match="spaces: episode 0"):
        SequenceDataset(path.parent, ["flat"])
    os.mkfifo(path / "more.hdf5")
    with pytest.raises(ValueError, match=r"data/more.hdf5 .* no regular file"):
        SequenceDataset(path.parent, ["flat"])
