"""A replay holds the most recent steps, and says of each what was seen, done and came of it."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offrl.data.replay import Replay, ReplayStore
from offrl.data.rollout import Rollout
from offrl.data.sampling import Hindsight, Priorities, SumTree
from offrl.data.windows import Window
from offrl.envs.vector import Stepped

COLUMNS = {"obs/x": ((1,), np.float32), "actions": ((1,), np.float32)}


class Player:
    """Environments whose observations, actions and rewards are all different numbers, and episodes
    that end at random, in the form of either kind of autoreset. Remembers all as it was."""

    def __init__(self, num_envs, seed, same_step, end=0.25):
        self.rng = np.random.default_rng(seed)
        self.num_envs, self.same_step, self.end = num_envs, same_step, end
        self.count = 0
        self.episodes = [[] for _ in range(num_envs)]  # lists of (obs, action, reward, done, next)
        self.waits = np.zeros(num_envs, dtype=bool)

    def new(self):
        self.count += 1
        return float(self.count)

    def begin(self):
        self.obs = np.array([[self.new()] for _ in range(self.num_envs)], dtype=np.float32)
        for episodes in self.episodes:
            episodes.append([])
        return {"x": self.obs}

    def play(self):
        n = self.num_envs
        actions = np.array([[self.new()] for _ in range(n)], dtype=np.float32)
        rewards = np.array([self.new() for _ in range(n)])
        after = np.array([[self.new()] for _ in range(n)], dtype=np.float32)
        ends = self.rng.random(n) < self.end
        terminated = ends & (self.rng.random(n) < 0.5)
        is_step, final_obs = ~self.waits, {}
        ends, terminated = ends & is_step, terminated & is_step
        for env in range(n):
            if not is_step[env]:
                self.episodes[env].append([])
                continue
            step = self.obs[env, 0], actions[env, 0], rewards[env], terminated[env], after[env, 0]
            self.episodes[env][-1].append(step)
            if ends[env] and self.same_step:
                final_obs[env] = {"x": after[env].copy()}
                after[env] = self.new()
                self.episodes[env].append([])
        if not self.same_step:
            self.waits = ends
        self.obs = after
        no = np.zeros(n, dtype=bool)
        return actions, Stepped(
            {"x": after}, rewards, terminated, ends & ~terminated, no, is_step, final_obs
        )

    def steps(self, env):
        return [step for episode in self.episodes[env] for step in episode]


def played(num_envs, capacity, num_steps, seed, same_step, num_frames=1, end=0.25):
    player = Player(num_envs, seed, same_step, end)
    store = ReplayStore(num_envs, capacity, COLUMNS, num_frames)
    store.begin(player.begin())
    for _ in range(num_steps):
        store.record(*player.play())
    return player, store


cases = given(
    num_envs=st.integers(1, 3),
    capacity=st.integers(6, 60),
    num_steps=st.integers(1, 60),
    seed=st.integers(0, 999),
    same_step=st.booleans(),
    num_frames=st.integers(1, 3),
)


@cases
@settings(deadline=None, max_examples=60)
def test_each_step_is_held_as_it_was(num_envs, capacity, num_steps, seed, same_step, num_frames):
    player, store = played(num_envs, capacity, num_steps, seed, same_step, num_frames)
    replay = Replay(store, ["x"], Window(num_frames))
    rows = torch.from_numpy(np.flatnonzero(store.is_step))
    batch = replay.get_batch(rows)
    held = {}
    for i, row in enumerate(rows.tolist()):
        held[batch["actions"][i, -1].item()] = (
            row // store.num_rows,
            batch["obs"]["x"][i, :, 0].tolist(),
            batch["rewards"][i, -1].item(),
            batch["dones"][i, -1].item(),
            batch["next_obs"]["x"][i, -1].item(),
        )
    assert len(held) == len(rows) == len(replay)
    num_held = 0
    for env in range(num_envs):
        for episode in player.episodes[env]:
            seen = [step[0] for step in episode]
            for t, (_, action, reward, done, after) in enumerate(episode):
                if action in held:
                    num_held += 1
                    frames = [seen[max(0, t + k)] for k in range(1 - num_frames, 1)]
                    assert held[action] == (env, frames, reward, done, after)
        # The most recent ones are there: of all rows, some are ends, or frames before the others.
        steps = player.steps(env)
        num_ends = len([e for e in player.episodes[env] if e])
        num_recent = max(0, store.num_rows - 1 - 2 * num_ends - 2 * num_frames)
        recent = steps[len(steps) - min(len(steps), num_recent) :]
        assert all(action in held for _, action, *_ in recent)
    assert num_held == len(held)


@cases
@settings(deadline=None, max_examples=40)
def test_windows_end_with_episodes(num_envs, capacity, num_steps, seed, same_step, num_frames):
    player, store = played(num_envs, capacity, num_steps, seed, same_step)
    replay = Replay(store, ["x"], Window(seq_length=3))
    rows = torch.from_numpy(np.flatnonzero(store.is_step))
    batch = replay.get_batch(rows)
    where = {
        step[1]: (env, e, t)
        for env in range(num_envs)
        for e, episode in enumerate(player.episodes[env])
        for t, step in enumerate(episode)
    }
    for i in range(len(rows)):
        mask = batch["pad_mask"][i, :, 0]
        assert mask[0]
        places = [where[a.item()] for a in batch["actions"][i, mask, 0]]
        assert all(b == (a[0], a[1], a[2] + 1) for a, b in pairwise(places))
        env, episode, t = places[-1]
        last = player.episodes[env][episode][t]
        assert batch["next_obs"]["x"][i, -1].item() == last[-1]  # what followed the last of them


@given(
    num_envs=st.integers(1, 3),
    num_steps=st.integers(1, 12),
    seed=st.integers(0, 999),
    same_step=st.booleans(),
    num_frames=st.integers(1, 3),
)
@settings(deadline=None, max_examples=40)
def test_a_rollout_is_taken_once_and_followed_by_the_next(
    num_envs, num_steps, seed, same_step, num_frames
):
    player = Player(num_envs, seed, same_step)
    store = ReplayStore(num_envs, num_envs * (2 * num_steps + 1), COLUMNS, num_frames)
    rollouts = Rollout(store, ["x"], Window(num_frames))
    rollouts.begin(player.begin())
    taken = [[] for _ in range(num_envs)]
    for _ in range(3):
        for _ in range(num_steps):
            rollouts.record(*player.play())
        if not store.is_step.any():
            continue
        rollout = rollouts.take()
        frames, mask = rollout["obs"]["x"], rollout["mask"]
        x = frames[:, :, -1, 0]
        assert not mask[:, -1].any()
        for env, t in mask.nonzero().tolist():
            assert torch.equal(frames[env, t, 1:], frames[env, t + 1, :-1])
            reward, terminated = rollout["rewards"][env, t], rollout["terminated"][env, t]
            action = rollout["actions"][env, t, 0]
            step = x[env, t], action, reward, terminated, x[env, t + 1]
            taken[env].append(tuple(float(part) for part in step))
        assert not (rollout["truncated"] & ~mask).any() and len(rollouts) == 0
        ended = rollout["terminated"] | rollout["truncated"]
        assert not (mask[:, 1:] & ended[:, :-1]).any()  # the row behind an end is no step
    for env in range(num_envs):
        assert taken[env] == [tuple(float(x) for x in step) for step in player.steps(env)]


def test_all_steps_are_drawn_alike():
    _, store = played(2, 40, 100, 0, same_step=True)
    replay = Replay(store, ["x"], Window(), seed=1)
    counts = torch.bincount(replay.steps(40_000), minlength=len(store.is_step))
    drawn = counts[torch.from_numpy(store.is_step)].double()
    assert counts.sum() == drawn.sum()
    expected = 40_000 / len(drawn)
    assert ((drawn - expected).abs() < 5 * expected**0.5).all()


def test_several_batches_are_drawn_as_one():
    _, store = played(1, 500, 300, 0, same_step=True)
    replay = Replay(store, ["x"], Window(), seed=1)
    parts = list(replay.batches(7, 16))
    assert sum(len(part["actions"]) for part in parts) == 7 * 16


@pytest.mark.parametrize("n_step, num_frames", [(1, 1), (3, 2)])
def test_goals_in_hindsight_are_reached_later_in_the_episode(n_step, num_frames):
    player = Player(2, 0, same_step=True, end=0.1)
    columns = {f"obs/{key}": ((1,), np.float32) for key in ("achieved_goal", "desired_goal")}
    store = ReplayStore(2, 1000, {**columns, "actions": ((1,), np.float32)}, num_frames)

    def shown(obs):  # 0 is never reached
        return {"achieved_goal": obs["x"], "desired_goal": 0 * obs["x"]}

    store.begin(shown(player.begin()))
    for _ in range(300):
        actions, stepped = player.play()
        last = {env: shown(obs) for env, obs in stepped.final_obs.items()}
        store.record(actions, stepped._replace(obs=shown(stepped.obs), final_obs=last))

    def judge(achieved, desired):
        return achieved[:, 0] - desired[:, 0], achieved[:, 0] == desired[:, 0]

    window = Window(num_frames, n_step)
    replay = Replay(store, store.obs_keys, window, hindsight=Hindsight(0.8, judge))
    batch = replay.draw(1, 500)
    follows = {}
    for env in range(2):
        for episode in player.episodes[env]:
            for t, step in enumerate(episode):
                follows[step[1]] = [later[-1] for later in episode[t:]]
    now, num_later, num_same = num_frames - 1, 0, 0
    goals = batch["obs"]["desired_goal"][..., 0]
    assert (goals == goals[:, :1]).all()
    assert torch.equal(batch["next_obs"]["desired_goal"][:, -1], goals[:, -1:])
    for i, goal in enumerate(goals[:, 0].tolist()):
        after = follows[batch["actions"][i, now].item()]
        num_same += goal == 0
        if goal:
            assert goal in after
            num_later += goal != after[0]
            held = after[:n_step] + after[-1:] * (n_step - len(after))
            assert batch["rewards"][i, now:].flatten().tolist() == [x - goal for x in held]
            assert batch["dones"][i, now:].flatten().tolist() == [x == goal for x in held]
    assert num_later > 100 and 60 < num_same < 140


@pytest.mark.parametrize("same_step", [True, False])
def test_what_is_saved_comes_back(same_step):
    player, store = played(3, 50, 70, 5, same_step, num_frames=2)
    replay = Replay(store, ["x"], Window(2), seed=3)
    replay.draw(2, 8)
    again = Replay(ReplayStore(3, 50, COLUMNS, 2), ["x"], Window(2), seed=9)
    again.restore(replay.state())
    for _ in range(40):
        step = player.play()
        replay.record(*step)
        again.record(*step)
        one, other = replay.draw(1, 8), again.draw(1, 8)
        for key in ("actions", "rewards", "dones", "pad_mask"):
            assert torch.equal(one[key], other[key])
        assert torch.equal(one["next_obs"]["x"], other["next_obs"]["x"])


def test_nothing_is_drawn_from_nothing():
    replay = Replay(ReplayStore(1, 10, COLUMNS), ["x"], Window())
    with pytest.raises(ValueError):
        replay.draw(1, 4)


# -- priorities -----------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 10), min_size=1, max_size=40), st.integers(0, 999))
@settings(deadline=None)
def test_a_sum_tree_finds_what_a_cumulative_sum_finds(values, seed):
    tree, values = SumTree(len(values)), np.round(np.array(values), 3)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(values))
    for part in np.array_split(order, 3):
        if len(part):
            tree[part] = values[part]
    assert tree.total == pytest.approx(values.sum())
    if values.sum() == 0:
        return
    sums = rng.random(50) * values.sum()
    found = tree.find(sums)
    assert (values[found] > 0).all()
    exact = np.searchsorted(np.cumsum(values), sums, side="right")
    near = np.abs(np.cumsum(values)[:, None] - sums).min(axis=0) < 1e-9
    assert ((found == exact) | near).all()


def test_errors_make_steps_likely_and_weights_make_up_for_it():
    _, store = played(1, 30, 29, 0, same_step=True, end=0.0)
    replay = Replay(store, ["x"], Window(), priorities=Priorities(len(store.is_step), 1.0, 1.0))
    rows = np.flatnonzero(store.is_step)
    replay.priorities.enter(rows, True)
    errors = np.arange(1.0, len(rows) + 1)
    replay.priorities.learn(rows, errors)
    chances = errors / errors.sum()
    counts = np.zeros(len(store.is_step))
    for _ in range(400):
        batch = replay.draw(1, 50)
        drawn = replay._drawn.numpy()
        np.add.at(counts, drawn, 1)
        weights = 1 / chances[np.searchsorted(rows, drawn)]
        np.testing.assert_allclose(batch["weights"], weights / weights.max(), rtol=1e-3)
    shares = counts[rows] / counts.sum()
    assert np.abs(shares - chances).max() < 0.01


def test_steps_that_were_overwritten_are_not_drawn_by_their_priority():
    player = Player(1, 0, same_step=True)
    store = ReplayStore(1, 20, COLUMNS)
    replay = Replay(store, ["x"], Window(), priorities=Priorities(len(store.is_step), 0.6, 0.4))
    replay.begin(player.begin())
    for _ in range(100):
        replay.record(*player.play())
        batch = replay.draw(1, 4)
        replay.learned(torch.rand(4) * 10)
        newest = {step[1] for step in player.steps(0)[-25:]}
        assert set(batch["actions"].flatten().tolist()) <= newest
