"""Episodes in real processes, some of which are killed, hang or raise."""

from pathlib import Path

import numpy as np
import pytest
from toy_env import WalkHome, toy_args

from offrl.envs import say_once
from offrl.envs.workers import EnvPool, EpisodeRequest
from offrl.evaluation.evaluate import summarize

pytestmark = pytest.mark.slow


def run(pool, seeds, horizon=40, **options):
    requests = [EpisodeRequest(seed, horizon, **options) for seed in seeds]
    return sorted(pool.run(requests, WalkHome()), key=lambda r: r.request.seed)


@pytest.mark.slow
def test_results_do_not_depend_on_the_number_of_workers():
    found = []
    for num_workers in (1, 3):
        with EnvPool(toy_args(), num_workers) as pool:
            found.append([(r.success, r.total_reward, r.length) for r in run(pool, range(12))])
    assert found[0] == found[1]
    assert len({reward for _, reward, _ in found[0]}) == 12


def test_workers_are_reused_and_import_no_torch():
    with EnvPool(toy_args(), 2) as pool:
        run(pool, range(4))
        pids = {worker._process.pid for worker in pool._workers.values()}
        run(pool, range(4))
        assert pids == {worker._process.pid for worker in pool._workers.values()}
        for pid in pids:
            loaded = Path(f"/proc/{pid}/maps").read_text()
            assert "numpy" in loaded and "torch" not in loaded


def test_a_policy_gets_what_it_reads_and_a_recording_has_all():
    seen = set()

    class WalkByPosition(WalkHome):
        obs_keys = ("position",)

        def act(self, obs_by_env, *others):
            seen.update(key for obs in obs_by_env.values() for key in obs)
            return super().act(obs_by_env, *others)

    request = EpisodeRequest(0, 5, terminate_on_success=False, record=True)
    with EnvPool(toy_args(), 1) as pool:
        [result] = pool.run([request], WalkByPosition())
        assert seen == {"position"}
        WalkByPosition.obs_keys = ("position", "weather")
        list(pool.run([request], WalkByPosition()))
    assert seen == {"position", "speed"}  # so that the policy can say what there is instead
    assert {"obs/position", "obs/speed"} <= result.trajectory.keys()


def test_what_is_logged_in_workers_is_said_once(caplog):
    say_once.cache_clear()
    with EnvPool(toy_args(says="it is cold today"), 2) as pool:
        run(pool, range(4))
    assert [r.getMessage() for r in caplog.records] == ["it is cold today"]


def test_workers_start_while_the_first_is_asked():
    with EnvPool(toy_args(), 3) as pool:
        pool.check(WalkHome(), 2)
        first = dict(pool._workers)
        assert sorted(first) == [0, 1]
        assert all(r.error is None for r in run(pool, range(3)))
        assert {slot: pool._workers[slot] for slot in first} == first


@pytest.mark.slow
@pytest.mark.parametrize(
    "trouble",
    [{"3": "kill", "1": "raise"}, pytest.param({"3": "hang"}, marks=pytest.mark.thorough)],
)
def test_an_episode_that_fails_once_is_run_again(trouble, tmp_path):
    with EnvPool(toy_args(), 2) as pool:
        undisturbed = run(pool, range(5))
    args = toy_args(trouble=trouble, scratch=str(tmp_path))
    with EnvPool(args, 2, timeout=8) as pool:
        results = run(pool, range(5))
    assert all((tmp_path / seed).exists() for seed in trouble)
    assert all(r.error is None for r in results)
    assert [r.total_reward for r in results] == [r.total_reward for r in undisturbed]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("kill", "killed by signal 9"),
        ("hang", "silent for 8 s"),
        ("raise", "physics exploded"),
    ],
)
def test_an_episode_that_always_fails_is_counted_apart(kind, words):
    with EnvPool(toy_args(trouble={"1": kind}), 2, timeout=8) as pool:
        results = run(pool, range(4))
        again = run(pool, [5])
    assert [r.error is None for r in results] == [True, False, True, True]
    assert words in results[1].error
    logs = summarize(results)
    assert logs["n"] == 3 and logs["Crashed"] == 1
    assert logs["Success_Rate"] == sum(bool(r.success) for r in results) / 3
    assert again[0].error is None


def test_an_environment_that_cannot_be_made_says_why():
    with EnvPool(toy_args(broken=True), 2) as pool:
        with pytest.raises(ValueError, match="Toy-v0.*simulator is not installed"):
            pool.check(WalkHome())
        assert all("not installed" in r.error for r in run(pool, range(2)))


@pytest.mark.slow
def test_stopping_early_leaves_a_usable_pool():
    with EnvPool(toy_args(), 2) as pool:
        for _ in pool.run([EpisodeRequest(s, 40) for s in range(6)], WalkHome()):
            break
        assert len(run(pool, range(3))) == 3


def test_a_trajectory_holds_what_happened():
    with EnvPool(toy_args(), 1) as pool:
        result = run(pool, [0], horizon=5, terminate_on_success=False, record=True)[0]
    trajectory = result.trajectory
    assert trajectory["actions"].shape == (5, 2)
    assert trajectory["obs/position"].shape == (5, 3)
    moves = 0.1 * trajectory["actions"][:-1]
    np.testing.assert_allclose(np.diff(trajectory["obs/position"][:, :2], axis=0), moves)
    assert result.total_reward == pytest.approx(trajectory["rewards"].sum())


def test_a_camera_that_fails_costs_no_episode():
    with EnvPool(toy_args(blind=True), 1) as pool:
        (result,) = run(pool, [0], frame_every=4)
    assert result.error is None and result.length > 0
    assert result.frames == [] and "no camera" in result.no_video


@pytest.mark.slow
def test_a_hung_worker_is_noticed_while_others_work():
    args = toy_args(trouble={"0": "hang"}, slow=0.05)
    with EnvPool(args, 2, timeout=3) as pool:
        options = {"horizon": 40, "terminate_on_success": False}
        requests = [EpisodeRequest(seed, **options) for seed in range(8)]
        order = [r.request.seed for r in pool.run(requests, WalkHome())]
    # Reported after three timeouts of 3 s; the other seven episodes take 2 s each, one by one.
    assert sorted(order) == list(range(8)) and order[-1] != 0


def test_frames_come_every_so_many_steps_and_at_the_end():
    with EnvPool(toy_args(), 1) as pool:
        result = run(pool, [0], horizon=6, terminate_on_success=False, frame_every=4)[0]
    assert [int(frame[0, 0, 0]) for frame in result.frames] == [0, 4, 6]


class Accountant(WalkHome):
    """Adds up the rewards that it is told, by episode."""

    counts_rewards = True

    def start_episode(self, env=0, seed=None):
        super().start_episode(env, seed)
        self.seeds = getattr(self, "seeds", {}) | {env: seed}
        self.told = getattr(self, "told", {}) | {seed: []}

    def act(self, obs_by_env, goal_by_env=None, reward_by_env=None):
        for env, reward in reward_by_env.items():
            self.told[self.seeds[env]].append(reward)
        return super().act(obs_by_env)


def test_a_policy_that_counts_rewards_is_told_each_of_them():
    policy = Accountant()
    with EnvPool(toy_args(), 2) as pool:
        requests = [EpisodeRequest(seed, 40, record=True) for seed in range(4)]
        for result in pool.run(requests, policy):
            told = policy.told[result.request.seed]
            assert told == [0.0, *result.trajectory["rewards"][:-1]]
