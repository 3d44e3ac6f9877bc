"""The execution of chunks, against a reference that does the same one environment after the other
and keeps every chunk."""

import math
import threading
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offrl.acting.executor import Executor, RealTime

LENGTH = 12


@dataclass
class Reference:
    """One environment: lists of chunks, each with the number of actions that had been played when
    it was asked for."""

    executor: Executor
    horizon: int
    played: int = 0
    until: int = 0  # so many actions may be played before a chunk is due
    coming: tuple | None = None  # when it comes, when it was asked for, the chunk
    chunks: list = field(default_factory=list)
    asked: list = field(default_factory=list)

    def step(self, time, chunk_at):
        e = self.executor
        self._take(time)
        lead = e.latency if e.asynchronous and e.latency < self.horizon else 0
        if self.coming is None and self.until - self.played <= lead:
            self.coming = time + e.latency, self.played, chunk_at(time)
            self.asked.append(time)
        self._take(time)
        covering = [
            c[self.played - begun] for begun, c in self.chunks if self.played < begun + self.horizon
        ]
        if e.ensemble is None:
            covering = covering[-1:] if self._newest_covers() else []
        if not covering or not (e.asynchronous or self.played < self.until):
            return None
        self.played += 1
        weights = np.array([math.exp(-(e.ensemble or 0) * i) for i in range(len(covering))])
        return (weights[:, None] * covering).sum(0) / weights.sum()

    def _newest_covers(self):
        return bool(self.chunks) and self.played < self.chunks[-1][0] + self.horizon

    def _take(self, time):
        if self.coming is not None and time >= self.coming[0]:
            _, begun, chunk = self.coming
            self.coming = None
            self.chunks.append((begun, chunk))
            left = begun + self.horizon - self.played
            self.until = self.played + max(0, min(left, self.executor.action_horizon))


@st.composite
def executors(draw):
    horizon = draw(st.integers(1, 6))
    return horizon, Executor(
        action_horizon=draw(st.integers(1, horizon)),
        ensemble=draw(st.none() | st.sampled_from([0.0, 0.01, 0.7])),
        latency=draw(st.integers(0, 7)),
        asynchronous=draw(st.booleans()),
    )


def one_step(executor, playing, states, predict):
    """A step of those environments that play, and the states of all after it."""
    rows = [states[env] for env in playing]
    blank = next((row for row in rows if row), None)
    joined = None
    if blank:
        rows = [row or {k: torch.zeros_like(x) for k, x in blank.items()} for row in rows]
        joined = {k: torch.cat([row[k] for row in rows]) for k in blank}
    actions, plays, joined = executor.step(len(playing), joined, predict)
    after = dict(enumerate(states))
    after |= {env: {k: x[i : i + 1] for k, x in joined.items()} for i, env in enumerate(playing)}
    return actions, plays, list(after.values())


@settings(max_examples=100)
@given(executors(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_it_plays_what_the_reference_plays(case, num_envs, random):
    """Environments begin at different times, and take their turns in any order."""
    horizon, executor = case

    def chunk(env, time):  # each number says where it is from
        steps = torch.arange(horizon)
        return torch.stack([steps + 1.0, steps * 0 + time, steps * 0 + env], dim=1)

    begins = [random.randrange(4) for _ in range(num_envs)]
    references = [Reference(executor, horizon) for _ in range(num_envs)]
    states = [None] * num_envs
    for time in range(LENGTH):
        playing = [env for env in range(num_envs) if begins[env] <= time]
        random.shuffle(playing)
        if not playing:
            continue
        asked = []

        def predict(rows, playing=playing, time=time, asked=asked):
            asked += [playing[row] for row in rows]
            chunks = [chunk(playing[row], time - begins[playing[row]]) for row in rows]
            return lambda: torch.stack(chunks)

        actions, plays, states = one_step(executor, playing, states, predict)
        for row, env in enumerate(playing):
            age = time - begins[env]
            expected = references[env].step(age, lambda t, env=env: chunk(env, t).numpy())
            assert (references[env].asked[-1:] == [age]) == (env in asked)
            assert bool(plays[row]) == (expected is not None), (env, age)
            if expected is not None:
                np.testing.assert_allclose(actions[row], expected, rtol=1e-5)


def test_in_real_time_a_chunk_is_inferred_while_the_last_one_is_played():
    """The n-th action of all is n, whenever chunks come: what is past is left out."""
    executor = RealTime(Executor(action_horizon=4))
    inferring, done = threading.Event(), threading.Semaphore(0)
    played = 0

    def predict(rows):
        first = float(played)

        def infer():
            if first:  # the robot waits for the first one
                inferring.set()
                done.acquire()
            return first + torch.arange(10.0).view(1, 10, 1)

        return infer

    state, due = None, []
    for step in range(40):
        if step in (7, 12, 20, 21, 30):  # inferences end at these steps, or when they must
            done.release()
            while executor._coming is not None and not executor._coming.done():
                pass
        before = executor._coming
        nothing_left = state is not None and not state["counts"][0, 0]
        if nothing_left:
            done.release()
        actions, plays, state = executor.step(1, state, predict)
        assert bool(plays) and float(actions) == played, (step, float(actions))
        played += 1
        if executor._coming is not before and executor._coming is not None:
            due.append(step)
    done.release(10)
    assert inferring.is_set() and len(due) >= 4
    assert 1 <= executor.latency <= 10


@pytest.mark.slow
@settings(max_examples=40)
@given(st.integers(1, 12), st.integers(1, 16), st.data())
def test_whoever_acts_while_it_infers_stands_still_no_longer(horizon, latency, data):
    """Also where a chunk takes as long as it lasts, or longer."""
    still = {}
    action_horizon = data.draw(st.integers(1, horizon))
    for asynchronous in (False, True):
        executor, state, still[asynchronous] = Executor(action_horizon, None, latency), None, 0
        executor = replace(executor, asynchronous=asynchronous)
        for _ in range(150):
            _, plays, state = executor.step(1, state, lambda _: lambda: torch.ones(1, horizon, 1))
            still[asynchronous] += not plays
    assert still[True] <= still[False] + latency + horizon  # the last round is cut off


def test_in_real_time_it_asks_earlier_for_what_it_had_to_wait_for():
    """Chunks that are played whole leave no time but what is asked for before their end."""
    executor = RealTime(Executor(action_horizon=5))
    done = threading.Semaphore(1)

    def predict(rows):
        def infer():
            assert done.acquire(timeout=10)
            return torch.ones(1, 5, 1)

        return infer

    _, _, state = executor.step(1, None, predict)
    leads = []
    for _ in range(3):
        while state["counts"][0, 0]:
            _, _, state = executor.step(1, state, predict)
        leads.append(executor.latency)
        threading.Timer(0.1, done.release).start()
        _, plays, state = executor.step(1, state, predict)
        assert plays
    assert leads == [1, 2, 3]


def test_in_real_time_an_episode_begins_behind_what_is_inferred_still():
    """A policy infers one chunk at a time, and an episode plays none of the one before."""
    executor = RealTime(Executor(action_horizon=2))
    begun, go_on = threading.Event(), threading.Event()
    now, most = [], []

    def predict(episode, waits):
        def infer():
            now.append(episode)
            most.append(len(now))
            if waits:
                begun.set()
                go_on.wait(10)
            now.pop()
            return torch.full((1, 4, 1), float(episode))

        return lambda rows: infer

    _, _, state = executor.step(1, None, predict(1, waits=False))
    executor.step(1, state, predict(1, waits=True))
    assert begun.wait(10)
    threading.Timer(0.1, go_on.set).start()
    actions, plays, _ = executor.step(1, None, predict(2, waits=False))
    assert bool(plays) and float(actions) == 2
    assert most == [1, 1, 1]


def test_one_robot_alone_acts_in_real_time():
    with pytest.raises(ValueError, match="^2 "):
        RealTime(Executor(1)).step(2, None, lambda rows: None)
