"""Several environments at once: every form gives the same transitions, goes on where it was, and
says what is wrong."""

import io
import os
import signal
import threading
import time
from contextlib import closing
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from offrl.envs import make_env
from offrl.envs.vector import GymnasiumVector, episodes, make_vector_env, processes
from offrl.envs.vector.episodes import ListVector, Setup, episode_seed
from offrl.envs.vector.processes import ProcessVector
from offrl.modules import allow

allow(["test_vector"])  # which ``make_vector_env`` does by itself
PUSH = {"env_name": "push-v3", "type": "metaworld", "env_kwargs": {}}
FORMS = {"list": ListVector, "processes": ProcessVector, "native": GymnasiumVector}
CARTPOLE = {"env_name": "CartPole-v1", "type": 2, "env_kwargs": {}}
PENDULUM = {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}


class Walk(gymnasium.Env):
    """Goes where it is pushed, and a bit at random, until it is too far away (terminated), with
    success if that is to the right. ``trouble`` comes at step 2 of the episode of ``seed``."""

    observation_space = gymnasium.spaces.Dict(
        {
            "place": gymnasium.spaces.Box(-9, 9, (2,), np.float32),
            "steps": gymnasium.spaces.Box(0, 99, (1,), np.int64),
        }
    )
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, trouble=None, seed=None, slow=0.0, far=1.0, goes_on=False, render_mode=None):
        self.trouble, self.its_seed, self.slow = trouble, seed, slow
        self.far, self.goes_on = far, goes_on
        if trouble == "made":
            time.sleep(1000)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.steps, self.place = seed, 0, self.np_random.uniform(-0.5, 0.5, 2)
        return self._observe(), {}

    def step(self, action):
        time.sleep(self.slow)
        self.steps += 1
        action *= 0.5  # in place, as some do
        self.place = self.place + action + 0.1 * self.np_random.standard_normal(2)
        obs, reward = self._observe(), float(self.place.sum())
        if self.trouble and self.steps == 2 and self.its_seed in (None, self.seed):
            obs, reward = self._have_trouble(obs, reward)
        is_far = bool(np.abs(self.place).max() > self.far)
        return (
            obs,
            reward,
            is_far and not self.goes_on,
            False,
            {"success": is_far and self.place[0] > 0},
        )

    def _observe(self):
        return {"place": self.place.astype(np.float32), "steps": np.array([self.steps])}

    def _have_trouble(self, obs, reward):
        if self.trouble == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.trouble == "hang":
            time.sleep(1000)
        if self.trouble == "raise":
            raise FloatingPointError("physics exploded")
        wrong = {
            "nan": {"place": np.array([0, np.nan], dtype=np.float32)},
            "shape": {"place": np.zeros(3, dtype=np.float32)},
            "type": {"steps": np.array([0.5])},
            "masked": {"steps": np.ma.array([1], mask=[1])},
            "chaos": {"place": np.random.default_rng().random(2, dtype=np.float32)},
        }
        if self.trouble == "missing":
            del obs["steps"]
        rewards = {"reward": np.inf, "large": 1e39, "hidden": np.ma.masked}
        return obs | wrong.get(self.trouble, {}), rewards.get(self.trouble, reward)


gymnasium.register("Walk-v0", entry_point=Walk, max_episode_steps=6)
gymnasium.register("EndlessWalk-v0", entry_point=Walk)


def walk_args(name="test_vector:Walk-v0", **kwargs):
    return {"env_name": name, "type": 2, "env_kwargs": kwargs}


def of_obs(vector, obs):
    """Actions that look random and are a function of what is observed."""
    first = obs[next(iter(obs))].astype(np.float64)
    digits = np.abs(first[:, :1] * 1e4) % 1
    if isinstance(vector.action_space, gymnasium.spaces.Discrete):
        return (digits[:, 0] * vector.action_space.n).astype(int)
    return np.tile(2 * digits - 1, vector.action_space.shape).astype(np.float32)


def run(vector, obs, steps):
    """What is observed last, and all that came of the steps."""
    results = []
    for _ in range(steps):
        results.append(vector.step(of_obs(vector, obs)))
        obs = results[-1].obs
    return obs, results


def transitions(vector, steps):
    """Of each environment, its steps that were steps, as ``next_obs`` with what ended there."""
    obs = vector.reset()
    lists = [[] for _ in range(vector.num_envs)]
    for _ in range(steps):
        actions = of_obs(vector, obs)
        stepped = vector.step(actions)
        for number in np.flatnonzero(stepped.is_step).tolist():
            row = {key: value[number] for key, value in stepped.obs.items()}
            following = stepped.final_obs.get(number, row)
            ends = [x[number] for x in (stepped.terminated, stepped.truncated, stepped.successes)]
            before = {key: value[number] for key, value in obs.items()}
            step = before, actions[number], stepped.rewards[number], *ends, following
            lists[number].append(step)
        obs = stepped.obs
    return lists


def same(one, other):
    """Whether nested results are equal to the last bit and type."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    one, other = np.asarray(one), np.asarray(other)
    return one.dtype == other.dtype and np.array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_args", "horizon", "steps"),
    [
        pytest.param(CARTPOLE, None, 200, marks=pytest.mark.thorough),
        pytest.param(PENDULUM, 20, 90, marks=pytest.mark.thorough),
        (walk_args(), None, 60),
    ],
    ids=["CartPole", "Pendulum", "Walk"],
)
def test_processes_give_the_bits_of_a_list_and_restore_its_state(env_args, horizon, steps):
    with (
        closing(ListVector(Setup(env_args, 3, 5, horizon))) as first,
        closing(ProcessVector(Setup(env_args, 3, 5, horizon), num_processes=2)) as second,
    ):
        obs, again = first.reset(), second.reset()
        assert same(obs, again) and first.observation_space == second.observation_space
        (obs, results), (_, others) = run(first, obs, steps), run(second, again, steps)
        assert sum(len(stepped.final_obs) for stepped in results) >= 3
        assert same(results, others) and same(first.state(), second.state())
        state = first.state()
        expected = run(first, obs, 40)
        run(second, obs, 7)
        assert same(run(second, second.restore(state), 40), expected)


MAKERS = {
    "list": lambda seed: ListVector(Setup(walk_args(), 3, seed)),
    "processes": lambda seed: ProcessVector(Setup(walk_args(), 3, seed), num_processes=2),
    "native": lambda seed: make_vector_env(CARTPOLE, 3, seed),
    "given": lambda seed: GymnasiumVector(CartPoleVectorEnv(num_envs=3), seed),
}


@pytest.mark.parametrize(
    ("form", "steps"),
    [
        *((form, steps) for form in MAKERS if form != "processes" for steps in (0, 2, 43)),
        pytest.param("processes", 43, marks=pytest.mark.slow),
        *(pytest.param("processes", steps, marks=pytest.mark.thorough) for steps in (0, 2)),
    ],
)
def test_a_stored_vector_goes_on_with_the_same_bits(form, steps):
    import torch

    with closing(MAKERS[form](1)) as vector, closing(MAKERS[form](2)) as other:
        obs, _ = run(vector, vector.reset(), steps)
        file = io.BytesIO()
        torch.save(mapped(torch.as_tensor, np.ndarray, vector.state()), file)
        expected = run(vector, obs, 60)
        file.seek(0)
        state = mapped(np.asarray, torch.Tensor, torch.load(file, weights_only=True))
        restored = other.restore(state)
        assert same(restored, obs) and same(run(other, restored, 60), expected)
        # The bits of sums depend on the order in memory.
        assert all(restored[key].strides == obs[key].strides for key in obs)


def mapped(function, kind, tree):
    if isinstance(tree, dict):
        return {key: mapped(function, kind, value) for key, value in tree.items()}
    return function(tree) if isinstance(tree, kind) else tree


def sync(mode):
    """Three walks, whose vector writes into the arrays that it returned before."""
    make = [lambda: gymnasium.make("Walk-v0")] * 3
    return SyncVectorEnv(make, autoreset_mode=mode, copy=False)


def still(vector):
    return np.zeros((vector.num_envs, *vector.action_space.shape), dtype=np.float32)


@pytest.mark.slow
def test_environments_that_hang_begin_new_episodes_in_another_process(caplog):
    args = walk_args(trouble="hang", seed=episode_seed(0, 1, 0))
    with (
        closing(ListVector(Setup(args, 3, 0))) as plain,
        closing(ProcessVector(Setup(args, 3, 0), num_processes=2, timeout=0.5)) as vector,
    ):
        assert same(vector.reset(), plain.reset())
        before = vector.step(still(vector))
        hung = vector.step(still(vector))
        assert hung.is_step.tolist() == [False, False, True] == (~hung.begins).tolist()
        assert not (hung.terminated | hung.truncated).any() and not hung.final_obs
        assert hung.rewards[:2].tolist() == [0, 0] and (hung.obs["steps"][:2] == 0).all()
        assert not same(hung.obs["place"][:2], before.obs["place"][:2])
        assert vector.num_restarts == 1 and "environments 0, 1: no answer" in caplog.text
        stored = vector.state()
        after = [vector.step(still(vector)) for _ in range(4)]
        assert all(x.is_step.all() for x in after)
        vector.restore(stored)
        assert same(after, [vector.step(still(vector)) for _ in range(4)])
        assert vector.num_restarts == 1


@pytest.mark.slow
def test_environments_that_hang_again_and_again_end_it(monkeypatch):
    assert processes.HOPELESS == 5
    monkeypatch.setattr(processes, "HOPELESS", 2)
    args, words = walk_args(trouble="hang"), "environments 0, 1.* 2 times .*train.online.timeout"
    with closing(ProcessVector(Setup(args, 2, 0), num_processes=1, timeout=0.2)) as vector:
        vector.reset()
        with pytest.raises(ChildProcessError, match=words):
            for _ in range(4):
                vector.step(still(vector))
    assert vector.num_restarts == 1


@pytest.mark.parametrize(
    ("trouble", "kind"), [pytest.param("hang", "processes", marks=pytest.mark.slow), ("made", None)]
)
def test_what_hangs_in_its_first_steps_or_when_it_is_made_is_ended(trouble, kind, monkeypatch):
    monkeypatch.setattr("offrl.envs.vector.PATIENCE_S", 0.3)
    monkeypatch.setattr(processes, "START_S", 60 if kind else 0.3)
    make = partial(make_vector_env, walk_args(trouble=trouble), 2, 0, timeout=0.1)
    if kind is None:
        with pytest.raises(ChildProcessError, match="environments 0.*no answer for 0.3 s; "):
            make()
    else:
        with closing(make()) as made:
            assert type(made) is FORMS[kind]


def test_what_a_list_waits_for_is_said(caplog, monkeypatch):
    monkeypatch.setattr(episodes, "SILENT_S", 0.05)
    args = walk_args(trouble="hang", seed=episode_seed(0, 1, 0))
    monkeypatch.setattr(time, "sleep", lambda seconds, sleep=time.sleep: sleep(min(seconds, 0.3)))
    with closing(ListVector(Setup(args, 2, 0))) as vector:
        vector.reset()
        for _ in range(3):
            vector.step(still(vector))
    assert caplog.text.count("Walk-v0, environment 1 has not answered") == 1


def sync_walks(num_envs, max_episode_steps=None, **kwargs):
    """Gymnasium's list of walks as a vectorised form of their own."""
    return SyncVectorEnv([partial(gymnasium.make, "Walk-v0", **kwargs)] * num_envs)


gymnasium.register("Walks-v0", entry_point=Walk, vector_entry_point=sync_walks, max_episode_steps=6)


@pytest.mark.parametrize("asks", [{"horizon": 4}, {"terminate_on_success": True}, {}])
@pytest.mark.parametrize("name", ["Walk-v0", "Walks-v0"])
def test_episodes_end_alike_in_one_environment_and_in_several(name, asks):
    args = walk_args(f"test_vector:{name}", goes_on=True)
    lengths = set()
    for num_envs in (1, 2):
        with closing(make_vector_env(args, num_envs, 0, **asks)) as vector:
            vector.reset()
            right = np.ones((num_envs, 2), dtype=np.float32)
            steps = [vector.step(right) for _ in range(7)]
        ends = [bool(x.terminated[0] or x.truncated[0]) for x in steps]
        lengths.add(ends.index(True))
        assert steps[ends.index(True)].terminated[0] == ("terminate_on_success" in asks)
    assert len(lengths) == 1 and (lengths == {5}) == (not asks)


def test_what_a_given_vector_cannot_do_is_said(caplog):
    with pytest.raises(ValueError, match="train.online.horizon"):
        GymnasiumVector(CartPoleVectorEnv(num_envs=3), 0, horizon=5)
    env = Broken(CartPoleVectorEnv(num_envs=3))
    env.says = {"infos": {"success": np.array([0, 1, 0])}}
    vector = GymnasiumVector(env, 0, terminate_on_success=True)
    vector.reset()
    for _ in range(2):
        vector.step(np.zeros(3, dtype=int))
    assert caplog.text.count("train.online.terminate_on_success") == 1


def test_all_autoreset_modes_give_the_same_transitions():
    by_mode = {}
    for mode in AutoresetMode:
        with closing(GymnasiumVector(sync(mode), 4)) as vector:
            by_mode[mode] = transitions(vector, 120)
    plain = by_mode.pop(AutoresetMode.SAME_STEP)
    for others in by_mode.values():
        for one, other in zip(plain, others, strict=True):
            assert min(len(one), len(other)) > 60 and same(one[: len(other)], other[: len(one)])
    ends = [step[3:6] for steps in plain for step in steps if step[3] or step[4]]
    assert {(True, False, True), (True, False, False), (False, True, False)} <= {*ends}


class Written(gymnasium.Env):
    """Counts its steps in the one array that it ever shows, to three."""

    observation_space = gymnasium.spaces.Box(0, 9, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    shown = None

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.shown = np.zeros(1, np.float32) if self.shown is None else self.shown
        self.shown[:] = 0
        return self.shown, {}

    def step(self, action):
        self.shown += 1
        return self.shown, 1.0, bool(self.shown[0] == 3), False, {}


def test_an_environment_may_write_to_what_it_showed():
    env = gymnasium.vector.SyncVectorEnv([Written] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    with closing(GymnasiumVector(env, 0)) as vector:
        for steps in transitions(vector, 6):
            assert [step[-1]["flat"].item() for step in steps] == [1, 2, 3, 1, 2, 3]


def test_the_last_observation_of_an_episode_is_its_own_and_the_next_one_has_its_seed():
    with closing(ListVector(Setup(walk_args(), 2, 3))) as vector:
        lists = transitions(vector, 40)
    seen = set()
    for number, steps in enumerate(lists):
        env, episode = make_env(walk_args()), 0
        obs, _ = env.reset(seed=episode_seed(3, number, episode))
        for before, action, reward, terminated, truncated, success, following in steps:
            assert same(before, obs)
            obs, *values, _ = env.step(action.copy())
            assert same(following, obs) and env.is_success()["task"] == success
            assert values == [reward, terminated, truncated]
            if terminated or truncated:
                seen.add((bool(terminated), bool(truncated)))
                episode += 1
                obs, _ = env.reset(seed=episode_seed(3, number, episode))
        assert episode > 3
    assert {(True, False), (False, True)} <= seen


def test_seeds_differ_between_environments_episodes_and_runs():
    seeds = [episode_seed(*which) for which in np.ndindex(3, 4, 5)]
    assert len({*seeds}) == 60 and all(0 <= seed < 2**32 for seed in seeds)
    with closing(ListVector(Setup(walk_args(), 2, 0))) as vector:
        first, second = vector.reset()["place"], vector.reset()["place"]
    assert len(np.unique(np.concatenate([first, second])[:, 0])) == 4


def test_a_horizon_truncates_and_a_success_terminates():
    still = np.zeros((2, 2), dtype=np.float32)
    with closing(ListVector(Setup(walk_args(far=9), 2, 0, 4))) as vector:
        vector.reset()
        ends = [vector.step(still) for _ in range(8)]
    assert [stepped.truncated.tolist() for stepped in ends] == [[i % 4 == 3] * 2 for i in range(8)]
    assert not any(stepped.terminated.any() for stepped in ends)
    assert ends[3].final_obs[1]["steps"] == 4 and ends[3].obs["steps"][1] == 0
    right = np.ones((2, 2), dtype=np.float32)
    for ends in (False, True):
        args = walk_args(goes_on=True)
        with closing(ListVector(Setup(args, 2, 0, None, ["place"], ends))) as vector:
            assert [*vector.reset()] == ["place"] == [*vector.observation_space]
            steps = [vector.step(right) for _ in range(6)]
        assert all((stepped.terminated == (ends & stepped.successes)).all() for stepped in steps)
        assert any((stepped.successes == 1).any() for stepped in steps)


TROUBLES = [
    ("nan", "Walk-v0, environment 1: .*'place'.*NaN"),
    ("shape", r"Walk-v0, environment 1: .*'place'.*\[3\].*\[2\]"),
    ("type", "Walk-v0, environment 1: .*'steps'.*float64.*int64"),
    ("missing", "Walk-v0, environment 1: .*'steps'.*place"),
    ("reward", "Walk-v0, environment 1: .*reward.*NaN"),
    ("large", "Walk-v0, environment 1: .*reward.*infinite"),
    ("hidden", "Walk-v0, environment 1: .*reward is masked"),
    ("masked", "Walk-v0, environment 1: .*'steps' is masked"),
    ("raise", r"Walk-v0, environment 1: FloatingPointError: physics exploded \(.*test_vector"),
]


@pytest.mark.parametrize(
    ("form", "trouble", "words"),
    [
        *((ListVector, *trouble) for trouble in TROUBLES),
        pytest.param(ProcessVector, *TROUBLES[-1], marks=pytest.mark.thorough),
    ],
)
def test_what_is_wrong_in_an_environment_is_named(form, trouble, words):
    args = walk_args(trouble=trouble, seed=episode_seed(0, 1, 0), far=9)
    with closing(form(Setup(args, 3, 0))) as vector:
        vector.step(of_obs(vector, vector.reset()))
        with pytest.raises(ValueError, match=words):
            vector.step(np.zeros((3, 2)))


def test_a_last_observation_is_checked_too():
    with closing(ListVector(Setup(walk_args(trouble="nan", far=9), 2, 0, horizon=2))) as vector:
        vector.reset()
        with pytest.raises(ValueError, match="Walk-v0, environment 0: .*'place'.*NaN"):
            for _ in range(2):
                vector.step(np.zeros((2, 2)))


@pytest.mark.slow
def test_a_process_that_is_killed_is_named():
    args = walk_args(trouble="kill", seed=episode_seed(0, 2, 0), far=9)
    with closing(ProcessVector(Setup(args, 3, 0), num_processes=2)) as vector:
        vector.step(of_obs(vector, vector.reset()))
        with pytest.raises(ChildProcessError, match="Walk-v0, environments 2: .*signal 9"):
            vector.step(np.zeros((3, 2)))


@pytest.mark.parametrize("form", ["list", "native"])
def test_actions_that_do_not_fit_are_refused(form):
    vector = MAKERS[form](0)
    vector.reset()
    shape = (3, 2) if form == "list" else (3,)
    wrong = [
        (np.zeros((2, *shape[1:]), dtype=int), r"actions.*\[2.*\[3"),
        (np.zeros((*shape, 1), dtype=int), r"actions.*\[3.*, 1\].*\[3"),
        (np.full(shape, "left"), "actions.*<U4"),
    ]
    if form == "list":
        nan = np.zeros(shape)
        nan[2] = np.nan
        wrong.append((nan, "environment 2: .*action.*NaN"))
    else:
        wrong.append((np.zeros(3), "actions.*float64.*int64"))
        wrong.append((np.full(3, 7), "CartPole-v1: AssertionError"))
    for actions, words in wrong:
        with pytest.raises(ValueError, match=words):
            vector.step(actions)


class Broken(gymnasium.vector.VectorWrapper):
    """A vector that says what it was told to."""

    says = {}

    def step(self, actions):
        names = ("obs", "rewards", "terminated", "truncated", "infos")
        values = dict(zip(names, self.env.step(actions), strict=True))
        return tuple((values | self.says).values())


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ({"rewards": np.array([0, np.nan, 0])}, "CartPoleVectorEnv, environment 1: .*reward.*NaN"),
        ({"rewards": np.zeros(2)}, r"rewards.*float64.*\[2\].*\[3\]"),
        ({"truncated": np.array([0, 0.5, 0])}, "environment 1: .*truncated.*0.5"),
        ({"terminated": np.array(["False"] * 3)}, r"terminated.*<U5.*\[3\]"),
        ({"obs": np.full((3, 4), np.inf)}, "environment 0: .*'flat'.*NaN"),
        ({"obs": np.zeros((3, 5))}, r"'flat'.*\[3, 5\].*\[3, 4\]"),
        ({"obs": np.zeros((3, 4), int)}, "'flat'.*int64.*float32"),
        ({"infos": {"success": np.array([0, 7, 0])}}, "environment 1: .*success.*7"),
        ({"infos": {"success": True}}, "CartPoleVectorEnv: infos.*'success'.*each"),
        ({"infos": [{}] * 3}, "CartPoleVectorEnv: infos is list"),
        ({"rewards": np.ma.array(np.ones(3), mask=[0, 1, 0])}, r"rewards are masked.*\[3\]"),
    ],
)
def test_what_is_wrong_in_a_given_vector_is_named(says, words):
    env = Broken(CartPoleVectorEnv(num_envs=3))
    vector = GymnasiumVector(env, 0)
    vector.reset()
    env.says = says
    with pytest.raises(ValueError, match=words):
        vector.step(np.zeros(3, dtype=int))


def test_vectors_that_do_not_say_when_episodes_begin_or_where_they_ended_are_refused():
    env = sync(AutoresetMode.SAME_STEP)
    env.metadata.pop("autoreset_mode")
    with pytest.raises(ValueError, match="autoreset_mode"):
        GymnasiumVector(env, 0)
    env = Broken(sync(AutoresetMode.SAME_STEP))
    env.says = {"infos": {}}
    vector = GymnasiumVector(env, 0)
    with pytest.raises(ValueError, match="infos.*final_obs"):
        run(vector, vector.reset(), 20)


def test_whole_rewards_are_rewards():
    env = Broken(CartPoleVectorEnv(num_envs=3))
    vector = GymnasiumVector(env, 0)
    vector.reset()
    env.says = {"rewards": np.array([1, 0, 2])}
    rewards = vector.step(np.zeros(3, dtype=int)).rewards
    assert rewards.dtype == np.float64 and rewards.tolist() == [1, 0, 2]


@pytest.mark.slow
def test_processes_that_were_left_in_a_step_are_not_asked_again():
    from conftest import heeding

    with closing(ProcessVector(Setup(walk_args(slow=0.05), 2, 0), num_processes=2)) as vector:
        actions = of_obs(vector, vector.reset())
        with heeding(), pytest.raises(KeyboardInterrupt):
            threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
            vector.step(actions)
        with pytest.raises(ValueError, match="Walk-v0"):
            vector.state()


def test_what_cannot_be_stored_or_is_of_another_form_says_so():
    vector = GymnasiumVector(sync(AutoresetMode.NEXT_STEP), 0)
    vector.reset()
    with pytest.raises(ValueError, match="SyncVectorEnv: .*make_vector_env"):
        vector.state()
    state = MAKERS["native"](0)
    state.reset()
    with pytest.raises(ValueError, match="'gymnasium'.*'episodes'"):
        MAKERS["list"](0).restore(state.state())
    with pytest.raises(ValueError, match="CartPole-v1: 3 .*2"):
        make_vector_env(CARTPOLE, 2, 0).restore(state.state())


def test_arrays_that_are_parts_of_others_are_not_stored():
    env = CartPoleVectorEnv(num_envs=3)
    vector = GymnasiumVector(env, 0)
    vector.reset()
    env.angles = env.state[2]
    with pytest.raises(ValueError, match="CartPoleVectorEnv: .*state.*angles"):
        vector.state()


def test_a_simulator_that_is_not_deterministic_is_named(caplog):
    args = walk_args(trouble="chaos", seed=episode_seed(0, 1, 0), far=9)
    with closing(ListVector(Setup(args, 2, 0))) as vector:
        run(vector, vector.reset(), 2)
        vector.restore(vector.state())
    assert "Walk-v0, environment 1: the simulator is not deterministic" in caplog.text
    assert "environment 0" not in caplog.text


def test_episodes_that_do_not_end_are_warned_of_and_refused(caplog, monkeypatch):
    monkeypatch.setattr("offrl.envs.vector.form.LONGEST_EPISODE", 30)
    args = walk_args("test_vector:EndlessWalk-v0", far=1e9)
    words = "environment 0: .*train.online.horizon"
    env = SyncVectorEnv([lambda: Walk(far=1e9)] * 2)
    for vector in (make_vector_env(args, 2, 0), GymnasiumVector(env, 0)):
        with closing(vector):
            obs, _ = run(vector, vector.reset(), 30)
            with pytest.raises(ValueError, match=words):
                run(vector, obs, 1)
    assert "knows no time limit of test_vector:EndlessWalk-v0" in caplog.text
    caplog.clear()
    with closing(make_vector_env(args, 2, 0, horizon=40)) as vector:
        run(vector, vector.reset(), 41)
    assert "time limit" not in caplog.text


@pytest.mark.parametrize(
    ("args", "num_envs", "options", "kind"),
    [
        (CARTPOLE, 3, {}, "native"),
        (CARTPOLE | {"env_kwargs": {"sutton_barto_reward": True}}, 3, {}, "native"),
        (CARTPOLE, 3, {"horizon": 500}, "native"),
        (CARTPOLE, 3, {"horizon": 50}, "list"),
        (CARTPOLE, 3, {"terminate_on_success": True}, "native"),
        (CARTPOLE, 1, {}, "list"),
        (CARTPOLE | {"env_kwargs": {"disable_env_checker": True}}, 3, {}, "list"),
        (walk_args(), 3, {}, "list"),
        (walk_args(slow=0.002), 1, {}, "list"),
        # No module registers it elsewhere.
        pytest.param(walk_args("Walk-v0", slow=0.002), 2, {}, "list", marks=pytest.mark.thorough),
        pytest.param(walk_args(slow=0.002), 2, {}, "processes", marks=pytest.mark.slow),
    ],
)
def test_the_form_that_is_fastest_is_taken_and_logged(args, num_envs, options, kind, caplog):
    caplog.set_level("INFO", "offrl")
    is_alone = len(os.sched_getaffinity(0)) == 1
    with closing(make_vector_env(args, num_envs, 0, **options)) as vector:
        assert type(vector) is FORMS["list" if is_alone and kind == "processes" else kind]
        assert vector.env_args == args and vector.num_envs == num_envs
        assert len(vector.step(of_obs(vector, vector.reset())).rewards) == num_envs
    said = [record.getMessage() for record in caplog.records if record.levelname == "INFO"]
    many = "s" if num_envs > 1 else ""
    assert f"{num_envs} environment{many} {args['env_name']}" in said[-1]
    if kind != "native" and num_envs > 1:
        assert "us a step" in said[-1]


def test_what_makes_no_vector_says_what_to_mend():
    with pytest.raises(ValueError, match="'CartPole-v1'"):
        make_vector_env({"env_name": "CartPol-v1"}, 2, 0)
    with pytest.raises(ValueError, match="'Walk-v0'"):
        make_env({"env_name": "test_vector:Wolk-v0"})
    with pytest.raises(ValueError, match="'image'.*place, steps"):
        make_vector_env(walk_args(), 2, 0, obs_keys=["image"])
    with pytest.raises(ValueError, match="num_envs"):
        make_vector_env(CARTPOLE, 0, 0)
    with pytest.raises(ValueError, match="env_args"):
        make_vector_env(None, 2, 0)


@pytest.mark.thorough
def test_meta_world_in_two_processes_is_meta_world_in_a_list():
    with (
        closing(ListVector(Setup(PUSH, 2, 0))) as first,
        closing(ProcessVector(Setup(PUSH, 2, 0), num_processes=2)) as second,
    ):
        results = [run(vector, vector.reset(), 8) for vector in (first, second)]
        assert same(*results) and results[0][0]["flat"].shape == (2, 39)
        assert same(second.restore(first.state()), results[0][0])
