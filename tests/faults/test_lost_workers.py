"""Simulators' processes: none is left over, none is lost to a signal that is not for it, and
whatever happens to them, results are those of an undisturbed evaluation or said to be missing."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import programs
import pytest
from conftest import ROOT
from faulty_env import faulty_args
from toy_env import WalkHome, toy_args

from offrl.envs.workers import EnvPool, EpisodeRequest
from offrl.envs.workers.pool import ATTEMPTS, HOPELESS

pytestmark = pytest.mark.slow

FAULTS = Path(__file__).parent
SLEEPER = ["sleep", f"1000.{os.getpid()}"]  # like no other


def run(pool, seeds, policy=None, horizon=30):
    requests = [EpisodeRequest(seed, horizon, terminate_on_success=False) for seed in seeds]
    return sorted(pool.run(requests, policy or WalkHome()), key=lambda r: r.request.seed)


def numbers(results):
    return [(r.error, r.success, r.total_reward, r.length) for r in results]


def pids(pool):
    return [worker._process.pid for worker in pool._workers.values()]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def children():
    """Processes that this one started and that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == os.getpid() and state != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.fixture(scope="module")
def undisturbed():
    with EnvPool(toy_args(), 3) as pool:
        return numbers(run(pool, range(12)))


# A program that evaluates; it says which workers it has as soon as they are in the state asked for.
PROGRAM = """
import json, signal, sys, threading, time
from toy_env import WalkHome, toy_args
from offrl.envs.workers import EnvPool, EpisodeRequest

state, kwargs = sys.argv[1], json.loads(sys.argv[2])
signal.signal(signal.SIGINT, lambda *_: None)  # a handler; what is ignored, children would ignore


def tell():
    print(json.dumps([worker._process.pid for worker in pool._workers.values()]), flush=True)


class Telling(WalkHome):
    calls = 0

    def act(self, obs_by_env, goal_by_env=None, reward_by_env=None):
        self.calls += 1
        if self.calls == 4 and state in ("hanging", "in mid-episode"):
            threading.Timer(0.3, tell).start()  # both have their actions, of step 2 at least
        return super().act(obs_by_env)


def tell_soon():
    while len(pool._workers) < 2:
        time.sleep(0.001)
    tell()


pool = EnvPool(toy_args(**kwargs), 2)
if state == "starting":
    threading.Thread(target=tell_soon).start()
requests = [EpisodeRequest(seed, 8, terminate_on_success=False) for seed in range(4)]
results = sorted(pool.run(requests, Telling()), key=lambda r: r.request.seed)
if state == "idle":
    tell()
    time.sleep(100)
print(json.dumps([[r.error, r.total_reward] for r in results]), flush=True)
pool.close()
"""


def start(state, **kwargs):
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests", FAULTS)))
    program = programs.Popen(
        [sys.executable, "-c", PROGRAM, state, json.dumps(kwargs)],
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return program, json.loads(program.stdout.readline())


@pytest.mark.parametrize(
    ("state", "kwargs"),
    [
        ("hanging", {"trouble": {str(seed): "hang" for seed in range(4)}}),
        ("in mid-episode", {"slow": 0.2}),
        ("idle", {}),
        ("starting", {}),
    ],
)
def test_workers_end_with_a_parent_that_is_killed(state, kwargs):
    program, workers = start(state, **kwargs)
    assert len(workers) == 2 and all(map(is_running, workers))
    program.kill()
    program.communicate()
    wait_until(lambda: not any(map(is_running, workers)), 60)


def test_what_a_simulator_started_itself_ends_with_it():
    args = faulty_args(starts=SLEEPER, trouble={"1": "kill"})
    with EnvPool(args, 2) as pool:
        results = run(pool, range(4))
        assert [r.error is None for r in results] == [True, False, True, True]
        wait_until(lambda: len(sleepers()) == len(pids(pool)), 60)  # those of lost workers end
    wait_until(lambda: not sleepers(), 60)


def sleepers():
    return [path.name for path in Path("/proc").glob("[0-9]*") if is_sleeper(path)]


def is_sleeper(process):
    try:
        return (process / "cmdline").read_text().split("\0")[:2] == SLEEPER
    except OSError:
        return False


def test_ctrl_c_reaches_the_parent_alone():
    program, workers = start("in mid-episode", slow=0.2)
    for _ in range(3):
        os.killpg(program.pid, signal.SIGINT)
        time.sleep(0.1)
    assert all(map(is_running, workers))
    disturbed = json.loads(program.communicate(timeout=300)[0])
    with EnvPool(toy_args(), 2) as pool:
        results = run(pool, range(4), horizon=8)
    assert disturbed == [[None, r.total_reward] for r in results]


def test_what_a_scheduler_sends_to_every_process_ends_no_worker(undisturbed):
    with EnvPool(toy_args(slow=0.01), 3) as pool:
        run(pool, range(3), horizon=2)
        before = pids(pool)
        scheduler = threading.Thread(target=signal_all, args=(before,))
        scheduler.start()
        assert numbers(run(pool, range(12))) == undisturbed
        scheduler.join()
        assert pids(pool) == before
    assert not any(map(is_running, before))


def signal_all(workers):
    for number in 3 * (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        for pid in workers:
            os.kill(pid, number)
        time.sleep(0.03)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2))]
)
def test_workers_that_are_killed_at_random_moments_change_no_result(seed, undisturbed):
    rng = random.Random(seed)
    killed = []
    with EnvPool(toy_args(slow=0.005), 3) as pool:
        stop = threading.Event()

        def kill():
            while not stop.wait(rng.uniform(0.02, 0.3)):
                for slot, worker in list(pool._workers.items()):
                    _, attempt = pool._jobs.get(slot, (None, ATTEMPTS))
                    if rng.random() < 0.5 and attempt < ATTEMPTS:  # the last one is let alone
                        worker._process.kill()
                        killed.append(worker)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            assert numbers(run(pool, range(12))) == undisturbed
        finally:
            stop.set()
            killer.join()
    assert len(set(killed)) >= 3


def test_a_worker_that_ends_while_idle_costs_no_attempt(undisturbed, caplog):
    with EnvPool(toy_args(), 3) as pool:
        run(pool, range(3))
        for pid in pids(pool):
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: not is_running(pid))
        assert numbers(run(pool, range(12))) == undisturbed
    assert not caplog.records


class Stop(KeyboardInterrupt):
    """As a signal's handler raises it, wherever the program is."""


@pytest.mark.parametrize("times", [4, pytest.param(15, marks=pytest.mark.thorough)])
def test_an_evaluation_that_is_stopped_at_any_moment_leaves_a_usable_pool(undisturbed, times):
    rng = random.Random(0)
    stopped, others = 0, set(children())  # such as a browser of other tests

    def stop(*_):
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with EnvPool(toy_args(slow=0.002), 3) as pool:
            for _ in range(times):
                try:
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.001, 0.6))
                    run(pool, range(12))
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except Stop:
                    stopped += 1
            assert numbers(run(pool, range(12))) == undisturbed
            workers = pids(pool)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert stopped > times // 3
    wait_until(lambda: set(children()) <= others, 60)
    assert not any(map(is_running, workers))


@pytest.mark.parametrize("fails", [1, pytest.param(2, marks=pytest.mark.thorough), 3])
def test_an_episode_has_three_attempts_each_in_a_new_process(fails, tmp_path, undisturbed, caplog):
    args = faulty_args(diary=str(tmp_path), fails=0)
    with EnvPool(args, 1) as pool:
        whole = run(pool, range(2))
    for file in tmp_path.iterdir():
        file.unlink()
    with EnvPool(faulty_args(diary=str(tmp_path), fails=fails), 1) as pool:
        results = run(pool, range(2))
    for seed, result in enumerate(results):
        tried = (tmp_path / str(seed)).read_text().split()
        assert len(set(tried)) == len(tried) == min(fails + 1, ATTEMPTS)
        assert (result.error is None) == (fails < ATTEMPTS)
        assert result.error is None or "RuntimeError: the table is gone (" in result.error
    if fails < ATTEMPTS:
        assert numbers(results) == numbers(whole)
    assert "seed 0: RuntimeError: the table is gone" in caplog.text
    assert "attempt 2 of 3" in caplog.text


@pytest.mark.thorough
def test_simulators_that_always_crash_do_not_take_hours(tmp_path):
    args = faulty_args(diary=str(tmp_path), fails=99)
    with EnvPool(args, 2) as pool:
        results = run(pool, range(50))
    assert len(results) == 50 and all("table is gone" in r.error for r in results)
    tried = [file.read_text().split() for file in tmp_path.iterdir()]
    assert sum(map(len, tried)) <= ATTEMPTS * (HOPELESS + 1)
    given_up = [r for r in results if r.error.startswith("not tried, as 5 in a row were lost: ")]
    assert len(given_up) >= 50 - HOPELESS - 1


def test_what_a_worker_prints_is_forgotten_after_its_episode():
    with EnvPool(faulty_args(chatty=1000), 1) as pool:
        sizes = []
        for seed in range(3):
            run(pool, [seed])
            sizes.append(os.fstat(pool._workers[0]._log.fileno()).st_size)
    assert sizes[0] > 30_000 and max(sizes) < 1.2 * sizes[0]
