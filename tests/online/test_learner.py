"""A Learner and explorers that act in turn in this process."""

from copy import deepcopy
from itertools import islice

import numpy as np
import pytest
import torch

from offrl.__main__ import main
from offrl.config.files import find_config, read_config_file
from offrl.data.replay import ReplayStore
from offrl.envs.vector import Stepped
from offrl.online import Learner, Trainer
from offrl.online.broker import TRIES, LocalBroker
from offrl.online.explorer import join_rounds
from offrl.seeding import rng_state, set_rng_state
from offrl.tree import merge

ROUND = {"num_envs": 2, "collect_steps": 8}
NORMALIZED = {"normalize_obs": True, "normalize_rewards": True}
SMALL = {"policy_layer_dims": [8], "value_layer_dims": [8]}
MEMORY = {"memory": {"enabled": True, "hidden_dim": 8}}
CRITIC = {"critic": {"layer_dims": [8]}}


def make(kind, algo_name, online=None, algo=None, num_steps=10**6, train=None, **distributed):
    config = {
        "experiment": {"env": "CartPole-v1"},
        "train": {"num_steps": num_steps, "batch_size": 16, "online": online or ROUND}
        | (train or {}),
        "algo": SMALL if algo is None else algo,
        "distributed": distributed,
    }
    return kind(config, algo_name=algo_name)


def weights(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.alg.nets.parameters()])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo_name", "online", "algo"),
    [
        ("ppo", ROUND, SMALL),
        ("a2c", ROUND | NORMALIZED, SMALL),
        ("reinforce", ROUND | NORMALIZED, SMALL | MEMORY),
        ("dqn", {"num_envs": 2, "random_steps": 20, "warmup_steps": 30}, CRITIC),
        ("dqn", {"collect_steps": 4, "num_updates": 2, "random_steps": 9, **NORMALIZED}, CRITIC),
    ],
)
def test_one_explorer_in_turn_gives_the_bits_of_a_trainer(algo_name, online, algo):
    alone = make(Trainer, algo_name, online, algo)
    before = weights(alone)
    expected = list(islice(alone(), 60))
    shared = make(Learner, algo_name, online, algo, explorers=1, trajectory_steps=1)
    for one, other in zip(expected, shared(), strict=False):
        assert {**one, "time": 0} == {**other, "time": 0}
    assert torch.equal(weights(alone), weights(shared)) and not torch.equal(before, weights(alone))


@pytest.mark.slow
@pytest.mark.parametrize("algo_name", ["impala", "ppo", "a2c", "reinforce"])
@pytest.mark.parametrize(
    ("num_trajectories", "memory"),
    [
        (1, {}),
        (3, MEMORY),
        pytest.param(1, MEMORY, marks=pytest.mark.thorough),
        pytest.param(3, {}, marks=pytest.mark.thorough),
    ],
)
def test_each_trajectory_is_learned_from_once(algo_name, memory, num_trajectories):
    options = {"explorers": 2, "num_trajectories": num_trajectories}
    learner = make(Learner, algo_name, algo=SMALL | memory, **options)
    collected = [r for r in islice(learner(), 40) if r["type"] == "collect"]
    given = [explorer._num_given for explorer in learner.broker._explorers.values()]
    assert learner.traffic()["Trajectories"] == sum(given) == num_trajectories * len(collected)
    assert abs(given[0] - given[1]) <= 1
    most = num_trajectories * ROUND["num_envs"] * ROUND["collect_steps"]
    assert 0.7 * most * len(collected) < learner.step <= most * len(collected)


def test_a_round_that_is_too_early_is_forgotten():
    online = ROUND | {"warmup_steps": 40}
    learner = make(Learner, "a2c", online, explorers=1)
    kinds = [record["type"] for record in islice(learner(), 5)]
    assert kinds == ["collect", "collect", "collect", "train", "collect"]
    list(islice(learner(), 1))
    assert len(learner._data) == 1


def test_explorers_have_parts_of_the_replay():
    online = ROUND | {"random_steps": 0, "warmup_steps": 0}
    learner = make(Learner, "dqn", online, CRITIC, explorers=3, trajectory_steps=20)
    kinds = [r["type"] for r in islice(learner(), 60)]
    # Three rounds of 8 steps are a trajectory, and one update follows each round.
    assert kinds == ["collect", "train", "train", "train"] * 15
    store = learner.buffer.store
    assert store.num_envs == 6 and len(store) == learner.step
    first = store.arrays["obs/flat"][store.parts[:, None] + np.arange(20)]
    for i in range(6):  # each has episodes of its own
        assert all(not np.array_equal(first[i], first[j]) for j in range(i))


def test_an_episode_that_is_left_is_cut_off():
    store = ReplayStore(2, 100, {"obs/x": ((1,), np.float32), "actions": ((1,), np.float32)})
    no, yes = np.zeros(1, bool), np.ones(1, bool)

    def step(x):
        return Stepped({"x": np.full((1, 1), x, np.float32)}, np.ones(1), no, no, no, yes, {})

    one = np.array([1])
    store.begin({"x": np.zeros((2, 1), np.float32)})
    for x in (1, 2, 3):
        store.record(np.zeros((1, 1)), step(x), one)
    store.begin({"x": np.full((1, 1), 10, np.float32)}, one)
    store.record(np.zeros((1, 1)), step(11), one)
    part = slice(store.parts[1], store.parts[1] + 6)
    assert store.arrays["obs/x"][part, 0].tolist() == [0, 1, 2, 3, 10, 11]
    assert store.is_step[part].tolist() == [True, True, True, False, True, False]
    assert (store.begins[part] - store.parts[1]).tolist() == [0, 0, 0, 0, 4, 4]
    assert (store.ends[part][:3] - store.parts[1]).tolist() == [2, 2, 2]
    assert len(store) == 4 and store.heads[0] == 0


def test_rounds_of_several_lengths_are_joined():
    def segments(num, length, state):
        numbers = torch.arange(num * length).view(num, length)
        return {
            "obs": {"flat": numbers[..., None, None].float()},
            "mask": numbers % length < length - 1,
            "explained": torch.tensor(float(length)),
            "state": state,
        }

    whole = join_rounds([segments(2, 5, torch.ones(2, 3)), segments(1, 3, None)])
    assert whole["mask"].tolist() == [[True] * 4 + [False]] * 2 + [[True] * 2 + [False] * 3]
    assert whole["obs"]["flat"][2, :, 0, 0].tolist() == [0, 1, 2, 0, 0]
    assert whole["state"].tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 0]]
    assert whole["explained"] == 4
    flat = join_rounds([{"actions": torch.ones(3, 1)}, {"actions": torch.zeros(2, 1)}])
    assert flat["actions"].shape == (5, 1)


class Late(LocalBroker):
    """Its explorers act by the weights of some versions ago."""

    def __init__(self, *arguments, behind):
        super().__init__(*arguments)
        self._history, self._behind = [], behind

    def publish(self, weights):
        self._history.append(weights)
        super().publish(
            self._history[max(0, len(self._history) - 1 - self._behind(len(self._history)))]
        )


def test_what_is_too_old_is_refused_and_counted():
    learner = make(Learner, "impala", explorers=1, max_staleness=2)
    # Every tenth version is kept for the next one's steps, which are then three behind.
    make_explorer = learner.broker._make_explorer
    learner.broker = Late(make_explorer, 1, behind=lambda n: min(n - 1, 2))
    list(islice(learner(), 60))
    traffic = learner.traffic()
    assert traffic["Staleness_Max"] == 2 and traffic["Refused"] == 0
    assert 1.5 < traffic["Staleness"] <= 2

    class Once(Late):
        def receive(self):
            trajectory = super().receive()
            return trajectory._replace(
                version=trajectory.version - 3 * (trajectory.number % 4 == 3)
            )

    learner = make(Learner, "impala", explorers=1, max_staleness=2)
    learner.broker = Once(make_explorer, 1, behind=lambda n: 0)
    collected = [r for r in islice(learner(), 60) if r["type"] == "collect"]
    traffic = learner.traffic()
    assert traffic["Refused"] > 0 and traffic["Staleness_Max"] == 3
    assert traffic["Trajectories"] == len(collected) + traffic["Refused"]


class Failing:
    """Makes explorers of which some fail."""

    def __init__(self, make_explorer, fails):
        self._make, self._fails = make_explorer, fails

    def __call__(self, number, life):
        explorer = self._make(number, life)
        if self._fails(number, life):
            explorer.envs.step = self._raise
        return explorer

    def _raise(self, actions):
        raise ValueError("CartPole-v1, environment 0: the pole broke")


def failing(fails, num=3):
    learner = make(Learner, "impala", explorers=num)
    learner.broker = LocalBroker(Failing(learner.broker._make_explorer, fails), num)
    return learner


def test_an_explorer_that_fails_is_replaced(caplog):
    learner = failing(lambda number, life: number == 1 and life == 0)
    list(islice(learner(), 40))
    assert "explorer 1 failed: CartPole-v1, environment 0: the pole broke" in caplog.text
    assert learner.traffic()["Lost_Explorers"] == 0 and learner.problems == []
    assert learner.broker._explorers[1].life == 1
    assert learner.broker._explorers[1]._num_given > 3


def test_an_explorer_that_goes_on_failing_is_given_up(caplog):
    learner = failing(lambda number, life: number == 1)
    list(islice(learner(), 40))
    assert learner.problems == [
        "explorer 1 was given up: CartPole-v1, environment 0: the pole broke"
    ]
    assert learner.traffic()["Lost_Explorers"] == 1
    assert f"it is given up after {TRIES} tries, and the others go on" in caplog.text
    assert sorted(learner.broker._explorers) == [0, 2]


def test_a_training_that_lost_an_explorer_says_so_in_its_exit_status(tmp_path, monkeypatch, capsys):
    def failing_broker(address, make_explorer, num_explorers, timeout):
        return LocalBroker(Failing(make_explorer, lambda number, life: number == 1), num_explorers)

    monkeypatch.setattr("offrl.online.learner.broker_at", failing_broker)
    words = ["distributed.explorers=2", "train.num_steps=1000", "experiment.rollout.enabled=false"]
    words = [word for setting in words for word in ("--set", setting)]
    command = ["train", "--config", "cartpole_impala.json", "--output", str(tmp_path), *words]
    assert main(command) == 1
    assert "problems:       explorer 1 was given up: CartPole-v1" in capsys.readouterr().out


def test_when_all_are_lost_the_training_ends():
    learner = failing(lambda number, life: True)
    with pytest.raises(ChildProcessError, match="the pole broke.*--resume"):
        list(islice(learner(), 40))


def test_weights_of_another_shape_are_refused():
    one, other = (
        make(Learner, "ppo", algo={**SMALL, "policy_layer_dims": [size]}, explorers=1)
        for size in (8, 9)
    )
    next(iter(one()))
    explorer = other.broker._explorers[0]
    with pytest.raises(ValueError, match=r"ppo.*\[8, 4\].*\[9, 4\]"):
        explorer.load(one.broker._weights)


def test_acting_in_a_training_is_explored_by_its_steps_in_all():
    """Random steps end for all explorers together, and exploration goes down by all their steps."""
    online = {"collect_steps": 4, "random_steps": 60}
    learner = make(Learner, "dqn", online, CRITIC, explorers=3, trajectory_steps=20)
    counts = {}
    for record in islice(learner(), 30):
        if record["type"] == "train":  # and the weights are published anew
            counts = {i: x.agent.num_steps for i, x in learner.broker._explorers.items()}
    assert learner.agent.num_steps >= learner.step > 100
    assert max(counts.values()) > learner.agent.num_steps - 60  # they know of each other's steps


@pytest.mark.thorough
def test_impala_learns_from_explorers():
    config = find_config("online/cartpole_impala.json")
    said = {"train": {"num_steps": 60_000, "seed": 1}, "distributed": {"explorers": 2}}
    learner = Learner(merge(read_config_file(config), said))
    for _ in learner():
        pass
    assert learner.smoothed_return > 150  # at random it is 22


class Locked(Failing):
    """Makes an explorer that fails, and cannot make those that are to replace it."""

    def __call__(self, number, life):
        if number == 1 and life > 0:
            raise ValueError("the door is locked")
        return super().__call__(number, life)


def test_an_explorer_that_cannot_be_made_again_is_given_up():
    learner = make(Learner, "impala", explorers=2)
    broken = Locked(learner.broker._make_explorer, lambda number, life: number == 1)
    learner.broker = LocalBroker(broken, 2)
    list(islice(learner(), 40))
    assert learner.problems == ["explorer 1 was given up: the door is locked"]


class Vanishing(Failing):
    def _raise(self, actions):
        raise ChildProcessError("the process of environment 0 ended (killed)")


def test_an_environment_whose_process_is_killed_costs_an_explorer_only():
    learner = make(Learner, "impala", explorers=2)
    broken = Vanishing(learner.broker._make_explorer, lambda number, life: (number, life) == (1, 0))
    learner.broker = LocalBroker(broken, 2)
    list(islice(learner(), 40))
    assert learner.problems == [] and learner.broker._explorers[1].life == 1


def after_a_resume(learner, make_again, num):
    """The next records, and those of another Learner that goes on from its state."""
    state = deepcopy((learner.state(), learner.alg.serialize(), rng_state()))
    expected = list(islice(learner(), num))
    other = make_again()
    other.restore(state[0])
    other.alg.deserialize(state[1])
    set_rng_state(state[2])
    found = list(islice(other(), num))
    return [[record | {"time": 0} for record in records] for records in (found, expected)]


def test_a_resume_goes_on_with_the_explorers_that_replaced_others():
    def make_again():
        learner = make(Learner, "impala", explorers=2)
        maker = Failing(
            learner.broker._make_explorer, lambda number, life: number == 1 and life == 0
        )
        learner.broker = LocalBroker(maker, 2)
        return learner

    learner = make_again()
    for _ in range(5):
        list(learner.round())
    assert learner.broker._explorers[1].life == 1
    found, expected = after_a_resume(learner, make_again, 30)
    assert found == expected


def test_a_resume_before_learning_begins_changes_nothing():
    online = ROUND | {"collect_steps": 1, "random_steps": 30, "warmup_steps": 60}

    def make_again():
        return make(Learner, "dqn", online, CRITIC, explorers=2, trajectory_steps=1)

    learner = make_again()
    while learner.step < 20:
        list(learner.round())
    found, expected = after_a_resume(learner, make_again, 60)
    assert found == expected and expected[-1]["type"] == "train"


def test_explorers_begin_anew_with_a_replay_that_was_not_saved(caplog):
    online = ROUND | {"random_steps": 0, "warmup_steps": 10, "replay": {"saved": False}}
    learner = make(Learner, "dqn", online, CRITIC, explorers=2)
    for _ in range(4):
        list(learner.round())
    other = make(Learner, "dqn", online, CRITIC, explorers=2)
    other.restore(learner.state())
    assert "the replay begins empty" in caplog.text
    list(other.round()), list(other.round())
    assert [x.life for x in other.broker._explorers.values()] == [1, 1]
    store = other.buffer.store
    for part in range(store.num_envs):  # nothing but what was taken in since
        rows = slice(store.parts[part], store.heads[part] + 1)
        assert np.abs(store.arrays["obs/flat"][rows]).sum(axis=1).min() > 0
    assert len(store) == other.step - learner.step
