"""Which states become goals, how often, and that nothing but seed and position decides it."""

import copy

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offrl import Trainer, algo_factory, config_factory
from offrl.data.loader import BatchLoader
from offrl.data.sequence import SequenceDataset
from offrl.seeding import seed_everything
from offrl.tree import merge

MODES = ["future_uniform", "future_geometric", "mixture"]
END = 0.5  # added to the number of a last state, for the state that follows it


def write_numbered(path, lengths, next_obs=True):
    """States that say their number among all, as vectors and images."""
    with h5py.File(path, "w") as file:
        first = 0
        for i, length in enumerate(lengths):
            demo, states = file.create_group(f"data/demo_{i}"), first + np.arange(length)
            after = np.append(states[1:], states[-1] + END)
            demo["obs/number"] = np.stack([states, np.full(length, i)], 1).astype(np.float64)
            demo["obs/view"] = np.tile(states[:, None, None, None], (1, 4, 4, 3)).astype(np.uint8)
            if next_obs:
                demo["next_obs/number"] = np.stack([after, np.full(length, i)], 1)
                demo["next_obs/view"] = np.tile(after[:, None, None, None], (1, 4, 4, 3)).astype(
                    np.uint8
                )
            demo["actions"], demo["dones"] = np.zeros((length, 1)), np.eye(length)[-1]
            first += length
    return path


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    mode=st.sampled_from(MODES),
    frame_stack=st.integers(1, 3),
    seq_length=st.integers(1, 3),
    next_obs=st.booleans(),
    streams=st.booleans(),
    seed=st.integers(0, 2**32),
)
@pytest.mark.slow
def test_a_goal_is_a_later_state_or_what_a_mixture_allows(
    tmp_path_factory, lengths, mode, frame_stack, seq_length, next_obs, streams, seed
):
    path = write_numbered(tmp_path_factory.mktemp("goals") / "in.hdf5", lengths, next_obs)
    dataset = SequenceDataset(
        path,
        ["number", "view"],
        frame_stack=frame_stack,
        seq_length=seq_length,
        goal_mode=mode,
        hdf5_cache_mode=None if streams else "all",
    )
    torch.manual_seed(seed)
    indices = torch.randint(len(dataset), (64,))
    batch = dataset.get_batch(indices)
    now, demo = batch["obs"]["number"][:, frame_stack - 1].unbind(-1)
    goal, goal_demo = batch["goal_obs"]["number"].unbind(-1)
    np.testing.assert_array_equal(batch["goal_obs"]["view"][:, 0, 0, 0], goal.int())
    ends = torch.tensor(np.cumsum(lengths) - 1)[demo.long()]
    demo_of = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    assert (demo_of[goal.long()] == goal_demo).all()  # a state that there is
    if mode == "mixture":
        return
    assert (goal_demo == demo).all()
    is_end = now == ends
    assert (goal[~is_end] > now[~is_end]).all()
    assert (goal[is_end] == now[is_end] + (END if next_obs else 0)).all()
    assert (goal <= ends + END).all()


def goals(tmp_path, mode, steps=20, n=40_000, next_obs=True, **options):
    """Goals of the second state of one demonstration of so many steps; another one has 30."""
    path = write_numbered(tmp_path / "in.hdf5", [steps, 30], next_obs)
    dataset = SequenceDataset(path, ["number"], goal_mode=mode, **options)
    torch.manual_seed(0)
    return dataset.get_batch(torch.ones(n, dtype=torch.long))["goal_obs"]["number"][:, 0].numpy()


def shares(values, of):
    return np.array([(values == value).mean() for value in of])


@pytest.mark.parametrize("next_obs", [True, False])
@pytest.mark.parametrize("load_next_obs", [True, False])
def test_every_later_state_is_as_likely(tmp_path, next_obs, load_next_obs):
    found = goals(tmp_path, "future_uniform", next_obs=next_obs, load_next_obs=load_next_obs)
    later = [*range(2, 20), 19 + END] if next_obs else range(2, 20)
    np.testing.assert_allclose(shares(found, later), 1 / len(later), atol=0.006)


def test_near_states_are_more_likely_by_the_discount(tmp_path):
    found = goals(tmp_path, "future_geometric", goal_discount=0.8)
    expected = 0.2 * 0.8 ** np.arange(18)
    np.testing.assert_allclose(shares(found, range(2, 20)), expected, atol=0.008)
    assert (found == 19 + END).mean() == pytest.approx(0.8**18, abs=0.004)


def test_a_mixture_has_its_shares(tmp_path):
    parts = {"current": 0.1, "future": 0.3, "random": 0.6}
    found = goals(tmp_path, "mixture", goal_shares=parts, goal_discount=0.5)
    assert (found == 1).mean() == pytest.approx(0.1 + 0.6 / 50, abs=0.008)
    assert (found >= 20).mean() == pytest.approx(0.6 * 30 / 50, abs=0.01)
    assert (found == 2).mean() == pytest.approx(0.3 * 0.5 + 0.6 / 50, abs=0.008)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_goals_depend_on_seed_and_position_alone(tmp_path, num_workers):
    path = write_numbered(tmp_path / "in.hdf5", [9, 11, 7])
    options = {"goal_mode": "mixture", "hdf5_cache_mode": None if num_workers else "all"}
    dataset = SequenceDataset(path, ["number"], **options)

    def numbers(loader, n):
        torch.manual_seed(n)  # has no say
        batches = [b["goal_obs"]["number"].clone() for _, b in zip(range(n), loader, strict=False)]
        return torch.stack(batches)

    whole = numbers(BatchLoader(SequenceDataset(path, ["number"], goal_mode="mixture"), 4, 3), 20)
    assert torch.equal(numbers(BatchLoader(dataset, 4, 3, num_workers), 20), whole)
    later = BatchLoader(dataset, 4, 3, num_workers)
    later.position = 9
    assert torch.equal(numbers(later, 11), whole[9:])
    assert not torch.equal(numbers(BatchLoader(dataset, 4, 4, num_workers), 20), whole)


def test_an_order_is_the_same_with_and_without_goals(tmp_path):
    path = write_numbered(tmp_path / "in.hdf5", [9, 11, 7])
    orders = []
    for mode in (None, "last", "future_uniform"):
        loader = BatchLoader(SequenceDataset(path, ["number"], goal_mode=mode), 27, 3)
        orders.append(next(iter(loader))["obs"]["number"])
    assert torch.equal(orders[0], orders[1]) and torch.equal(orders[0], orders[2])


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(2, 9), min_size=1, max_size=4),
    frame_stack=st.integers(1, 3),
    seq_length=st.integers(1, 3),
    next_obs=st.booleans(),
    current=st.sampled_from([0.2, 1.0]),
    seed=st.integers(0, 2**32),
)
def test_a_goal_is_reached_at_the_step_that_starts_there(
    tmp_path_factory, lengths, frame_stack, seq_length, next_obs, current, seed
):
    path = write_numbered(tmp_path_factory.mktemp("goals") / "in.hdf5", lengths, next_obs)
    rest = (1 - current) / 2
    dataset = SequenceDataset(
        path,
        ["number"],
        dataset_keys=["rewards", "dones"],
        frame_stack=frame_stack,
        seq_length=seq_length,
        goal_mode="mixture",
        goal_shares={"current": current, "future": rest, "random": rest},
        goal_rewards=True,
    )
    torch.manual_seed(seed)
    batch = dataset.get_batch(torch.randint(len(dataset), (64,)))
    states, goal = batch["obs"]["number"][..., 0], batch["goal_obs"]["number"][:, :1]
    is_goal = (states == goal).float()  # states have numbers of their own
    assert torch.equal(batch["rewards"], is_goal - 1)
    # At an end no step starts, so that the one that leads there is done.
    last = torch.tensor(np.cumsum(lengths)) - 1
    end = last + END if next_obs else last
    is_last = (states[..., None] == (last if next_obs else last - 1)).any(-1)
    leads_there = is_last & (goal == states + (END if next_obs else 1)) & torch.isin(goal, end)
    assert torch.equal(batch["dones"], is_goal.logical_or(leads_there).float())
    if not next_obs:
        assert not torch.isin(states, last).any()  # which nothing is known to follow
    if current == 1.0:
        assert is_goal[:, frame_stack - 1].all()


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    steps=st.integers(1, 12),
    frame_stack=st.integers(1, 3),
    next_obs=st.booleans(),
    load_next_obs=st.booleans(),
    goal_mode=st.sampled_from([None, "mixture"]),
    seed=st.integers(0, 2**32),
)
def test_subgoals_lie_on_the_way(
    tmp_path_factory, lengths, steps, frame_stack, next_obs, load_next_obs, goal_mode, seed
):
    path = write_numbered(tmp_path_factory.mktemp("goals") / "in.hdf5", lengths, next_obs)
    options = {"goal_mode": goal_mode, "frame_stack": frame_stack, "load_next_obs": load_next_obs}
    dataset = SequenceDataset(path, ["number"], subgoal_steps=steps, **options)
    torch.manual_seed(seed)
    batch = dataset.get_batch(torch.randint(len(dataset), (64,)))
    now, demo = batch["obs"]["number"][:, -1].unbind(-1)
    first = torch.tensor(np.cumsum(lengths) - lengths)[demo.long()]
    last = first + torch.tensor(lengths)[demo.long()] - 1
    num_later = (last - now + next_obs).clamp(min=1)  # an end, if it is stored, is one more
    goal, waypoint, subgoal = (
        batch[f"{name}_obs"]["number"] for name in ("high_goal", "waypoint", "subgoal")
    )

    def ahead(state):  # an end has no number of its own
        state = state[..., 0] if state.ndim == 2 else state[:, -1, 0]
        return torch.where(state == last + END, last + 1, state) - now

    at_end = (now == last) & (not next_obs)  # which follows itself
    assert ((ahead(goal) >= 1) | at_end).all() and (ahead(goal) <= num_later).all()
    assert torch.equal(ahead(subgoal)[~at_end], num_later.clamp(max=steps)[~at_end].float())
    assert torch.equal(ahead(waypoint), ahead(goal).clamp(max=steps))
    frames = waypoint[..., 0]
    before = torch.arange(frame_stack - 1, -1, -1)
    expected = torch.maximum((now + ahead(waypoint))[:, None] - before, first[:, None])
    assert torch.equal(frames[~at_end, :-1], expected[~at_end, :-1].float())


GOALS = {"observation": {"modalities": {"goal": {"low_dim": ["position"]}}}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mode", "rewards"),
    [*((name, mode, False) for name in ("bc", "iql") for mode in MODES), ("iql", "mixture", True)],
)
def test_a_training_with_drawn_goals_resumes_to_the_same_bits(small_config, name, mode, rewards):
    train = {"goal_mode": mode, "goal_rewards": rewards}
    config = small_config(merge(GOALS, {"train": train}), name)
    whole, state = Trainer(config), {}
    for record in whole():
        if record["type"] == "epoch" and record["epoch"] == 1:
            state = copy.deepcopy(whole.state())
    later = Trainer(config)
    later.restore(state)
    list(later())
    assert later.step == whole.step
    for key, value in whole.algo.nets.state_dict().items():
        assert torch.equal(value, later.algo.nets.state_dict()[key]), key


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"goal_mode": "first"}, "train.goal_mode: .*'last'.*'mixture'"),
        (
            {"goal_mode": "mixture", "goal_shares": {"random": 0.9}},
            "train.goal_shares: .*1.6",
        ),
        ({"goal_discount": 1.0}, "train.goal_discount"),
        ({"goal_rewards": True}, "train.goal_rewards: .*train.goal_mode"),
        (
            {
                "goal_rewards": True,
                "goal_mode": "mixture",
                "goal_shares": {"current": 0.0, "future": 1.0, "random": 0.0},
            },
            "train.goal_rewards: .*goal_shares.current",
        ),
        (
            {"goal_rewards": True, "goal_mode": "mixture", "rewards": {"scale": 2.0}},
            "train.rewards: .*train.goal_rewards",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(small_config, train, words):
    with pytest.raises(ValueError, match=words):
        small_config({"train": train})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"goal_mode": "first"}, "goal_mode: 'first'.*last, future_uniform"),
        ({"goal_mode": "mixture", "goal_shares": {"current": 1.0}}, "goal_shares.*current, future"),
        ({"goal_mode": "future_geometric", "goal_discount": 1.0}, "goal_discount: 1"),
        ({"goal_mode": "last", "goal_rewards": True}, 'goal_rewards: .*goal_mode "mixture"'),
        (
            {"goal_mode": "mixture", "goal_rewards": True, "dataset_keys": ["returns"]},
            "train.goal_rewards: .*train.dataset_keys",
        ),
    ],
)
def test_a_dataset_says_what_it_cannot_draw(demos, options, words):
    with pytest.raises(ValueError, match=words):
        SequenceDataset(demos, ["position"], **options)


@pytest.mark.slow
def test_demonstrations_without_a_task_teach_to_reach_goals(tmp_path):
    """Walks on a line, each with a direction of its own: cloned without goals they go nowhere,
    with goals in hindsight (GCBC) they go where they are told."""
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "walks.hdf5", "w") as file:
        for i in range(100):
            way, start = rng.choice([-1, 1]), rng.uniform(-5, 5)
            demo = file.create_group(f"data/demo_{i}")
            demo["obs/x"] = (start + way * np.arange(10))[:, None]
            demo["actions"] = np.full((10, 1), way * 0.9)
            demo["dones"] = np.zeros(10)
    dataset = SequenceDataset(tmp_path / "walks.hdf5", ["x"], goal_mode="future_uniform")
    group = {"low_dim": ["x"]}
    config = config_factory(
        "bc",
        {
            "algo": {
                "actor_layer_dims": [64, 64],
                "optim_params": {"policy": {"learning_rate": {"initial": 1e-3}}},
            },
            "train": {"goal_mode": "future_uniform"},
            "observation": {"modalities": {"obs": group, "goal": group}},
        },
    )
    seed_everything(0)
    algo = algo_factory("bc", config, dataset.obs_shapes, 1, "cpu")
    for _, batch in zip(range(600), BatchLoader(dataset, 64, 0), strict=False):
        algo.train_on_batch(algo.process_batch_for_training(batch), epoch=1)
    x, goal = torch.meshgrid(torch.linspace(-4, 4, 9), torch.linspace(-4, 4, 9), indexing="ij")
    apart = (goal - x).abs().flatten() > 1
    actions = algo.get_action({"x": x.reshape(-1, 1)}, {"x": goal.reshape(-1, 1)}).flatten()
    toward = actions * (goal - x).sign().flatten()
    assert toward[apart].min() > 0.5
