"""Explorers on a real Ray, which are really killed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import programs
import pytest
from conftest import acting_in, heeding
from test_learner import CRITIC, ROUND, SMALL, make

pytest.importorskip("ray", reason="no Ray")

from offrl.cluster import connected
from offrl.online import Learner

MARK = "OFFRL_TEST"  # an environment variable
PATIENCE = 240  # seconds, on a machine that is busy


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with connected("local", num_cpus=4):
        yield


@pytest.fixture
def learner():
    made = make(Learner, "impala", ROUND, SMALL, explorers=2, address="local")
    yield made
    made.close()


def process_of(learner, number):
    """Where an explorer acts."""
    import ray

    actor = learner.broker._actors[number]
    return ray.get(actor.__ray_call__.remote(lambda self: os.getpid()))


def collected(learner, until):
    """The records until something is true of the learner."""
    begun, records = time.monotonic(), []
    for record in learner():
        records.append(record)
        if record["type"] == "collect" and until():
            return records
        assert time.monotonic() - begun < PATIENCE, learner._received


@pytest.mark.thorough
def test_each_trajectory_comes_once_though_an_explorer_is_killed(learner, caplog):
    collected(learner, lambda: {(0, 0), (1, 0)} <= {*learner._received})
    os.kill(process_of(learner, 1), signal.SIGKILL)
    collected(learner, lambda: learner._received.get((1, 1), 0) >= 3)
    assert re.search(
        r"explorer 1 failed: its process on the node \S+ ended .*; another one takes its place",
        caplog.text,
    )
    assert "Traceback" not in caplog.text
    # Of each explorer and life all numbers from 0 on came, in order, or _check_order had refused.
    assert sum(learner._received.values()) == learner.traffic()["Trajectories"]
    assert learner._received[0, 0] > 3 and learner.problems == []
    waits = learner.waits()
    assert 0 < waits["Transport_Time"] < waits["Wait_Time"]


@pytest.mark.thorough
def test_a_slow_explorer_does_not_stall_the_others(learner):
    import ray

    collected(learner, lambda: {(0, 0), (1, 0)} <= {*learner._received})

    def slow_down(actor):
        explore = actor._explorer.explore
        actor._explorer.explore = lambda: time.sleep(3) or explore()

    ray.get(learner.broker._actors[1].__ray_call__.remote(slow_down))
    before = dict(learner._received)
    learner.traffic()
    collected(learner, lambda: learner._received[1, 0] >= before[1, 0] + 4)
    fast = learner._received[0, 0] - before[0, 0]
    assert fast > 40
    traffic = learner.traffic()
    # What the slow one made is too old to learn from, and it is said how much of it there was.
    assert 0 < traffic["Refused"] <= 4 and traffic["Staleness_Max"] > 20


@pytest.mark.thorough
def test_a_replay_is_filled_by_explorers():
    online = ROUND | {"random_steps": 0, "warmup_steps": 0}
    learner = make(Learner, "dqn", online, CRITIC, explorers=2, address="local")
    collected(learner, lambda: {(0, 0), (1, 0)} <= {*learner._received})
    os.kill(process_of(learner, 0), signal.SIGKILL)
    collected(learner, lambda: learner._received.get((0, 1), 0) >= 2)
    store = learner.buffer.store
    assert len(store) == learner.step
    assert (store.filled > 0).all()
    learner.close()


@pytest.mark.thorough
def test_an_explorer_that_goes_on_failing_is_given_up(learner, caplog):
    import ray

    collected(learner, lambda: {(0, 0), (1, 0)} <= {*learner._received})
    make_explorer = learner.broker._make_explorer
    learner.broker._make = ray.put(_Broken(make_explorer))
    os.kill(process_of(learner, 1), signal.SIGKILL)
    collected(learner, lambda: learner.broker.lost)
    assert learner.problems == ["explorer 1 was given up: the door is locked"]
    assert re.search("explorer 1 failed: the door is locked; it is given up", caplog.text)
    before = learner._received[0, 0]
    collected(learner, lambda: learner._received[0, 0] > before + 2)


@pytest.mark.thorough
def test_an_explorer_that_failed_gives_no_more(learner):
    import ray

    collected(learner, lambda: {(0, 0), (1, 0)} <= {*learner._received})

    def fail_once(actor):
        explore, calls = actor._explorer.explore, []

        def failing():
            calls.append(None)
            if len(calls) == 1:
                raise ValueError("the pole broke")
            return explore()

        actor._explorer.explore = failing
        return actor._explorer._num_given

    given = learner.broker._actors[1].__ray_call__.remote(fail_once)
    collected(learner, lambda: learner._received.get((1, 1), 0) >= 3)
    # The next trajectory was asked for already, and made by what was left of it.
    assert learner._received[1, 0] == ray.get(given)


class _Broken:
    def __init__(self, make_explorer):
        pass

    def __call__(self, number, life):
        raise ValueError("the door is locked")


# -- whole programs -------------------------------------------------------------------------------

CONFIG = {
    "algo_name": "impala",
    "experiment": acting_in("CartPole-v1", 2000),
    "train": {"num_steps": 10**7, "cuda": False, "online": {"num_envs": 4, "collect_steps": 25}},
    "algo": SMALL,
    "distributed": {"explorers": 2, "address": "local"},
}


@pytest.fixture
def start(tmp_path):
    """Starts ``offrl train`` in a session of its own. What is left of it ends with the test."""
    started = []

    def start(*arguments, popen=subprocess.Popen, **environ):
        command = [sys.executable, "-m", "offrl", "train", *map(str, arguments)]
        with open(tmp_path / "log.txt", "a") as log, heeding():
            started.append(
                popen(
                    command,
                    stdout=log,
                    stderr=log,
                    cwd=tmp_path,
                    env=os.environ | {MARK: str(tmp_path)} | environ,
                    start_new_session=True,
                )
            )
        return started[-1]

    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    yield start
    for program in started:
        program.kill()
        program.wait()


def wait_for(condition, folder, what):
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < PATIENCE, (what, (folder / "log.txt").read_text())
        time.sleep(0.2)


def started_in(folder):
    """The processes that were started for a test, those of Ray among them, and their commands."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={folder}".encode() in (path / "environ").read_bytes().split(b"\0"):
                found[int(path.name)] = (path / "cmdline").read_bytes()[:80]
        except OSError:  # it has ended
            continue
    return found


def records_of(run):
    log = run / "metrics.jsonl"  # which follows the folder; its last line may not be whole
    lines = log.read_text().rpartition("\n")[0] if log.exists() else ""
    return [json.loads(line) for line in lines.splitlines()]


@pytest.mark.thorough
def test_a_killed_learner_goes_on_from_its_checkpoint_and_an_interrupt_ends_all(start, tmp_path):
    def epochs():
        runs = (tmp_path / "run").glob("2*")
        return max((r["epoch"] for run in runs for r in records_of(run)), default=0)

    program = start("--config", "config.json", "--output", tmp_path, "--name", "run")
    wait_for(lambda: epochs() >= 2, tmp_path, "epochs")
    assert any(b"raylet" in command for command in started_in(tmp_path).values())
    program.kill()
    program.wait()
    wait_for(lambda: not started_in(tmp_path), tmp_path, "the end of all after SIGKILL")

    (run,) = (tmp_path / "run").glob("2*")
    done = epochs()
    program = start("--resume", run)
    wait_for(lambda: epochs() >= done + 2, tmp_path, "more epochs")
    explorers = [
        pid for pid, x in started_in(tmp_path).items() if x.startswith(b"ray::ExplorerActor")
    ]
    assert len(explorers) == 2
    for pid in explorers:  # so that the Learner waits for nothing
        os.kill(pid, signal.SIGSTOP)
    time.sleep(3)
    program.send_signal(signal.SIGINT)
    assert program.wait(PATIENCE) == 130
    wait_for(lambda: not started_in(tmp_path), tmp_path, "the end of all after Ctrl-C")
    log = (tmp_path / "log.txt").read_text()
    assert "go on with" in log and "Traceback" not in log
    assert (run / "last.pth").stat().st_mtime > time.time() - 60
    steps = [r["step"] for r in records_of(run) if r["type"] == "epoch"]
    assert steps == sorted(steps)


@pytest.mark.thorough
def test_an_address_that_does_not_answer_is_said(start, tmp_path):
    address = "distributed.address=127.0.0.1:9"
    words = "--config", "config.json", "--set", address, "--output", tmp_path
    program = start(*words, popen=programs.Popen)
    assert program.wait(PATIENCE) not in (0, None)
    log = (tmp_path / "log.txt").read_text()
    assert "no Ray answers at 127.0.0.1:9" in log and "Traceback" not in log
    assert not [*tmp_path.glob("*/2*")]


@pytest.mark.thorough
def test_a_node_without_memory_is_said(start, tmp_path):
    # Ray ends workers when the machine uses more than this.
    little = {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "200"}
    program = start("--config", "config.json", "--output", tmp_path, "--name", "run", **little)
    assert program.wait(PATIENCE) == 1
    log = (tmp_path / "log.txt").read_text()
    assert re.search(r"Ray ended it, as the node \S+ ran out of memory \(.+ used / .+\)", log)
    last = log.strip().splitlines()[-1]
    assert "No explorer is left" in last and "Traceback" not in log


FULL = """
import numpy as np, ray
options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
ray.init(address="local", num_cpus=2, object_store_memory=80 * 2**20, **options)
from offrl.cluster import put, reason_of

class Large:
    def give(self):
        return np.zeros(30 * 2**20, np.uint8)

large, kept = ray.remote(Large).remote(), []
try:
    for _ in range(4):
        kept.append(large.give.remote())
        ray.get(kept[-1])
except ray.exceptions.RayError as error:
    print(reason_of(error))
put(np.zeros(70 * 2**20, np.uint8))
"""


@pytest.mark.thorough
def test_a_full_disk_is_said():
    environ = os.environ | {"RAY_local_fs_capacity_threshold": "0.0001"}
    done = subprocess.run(
        [sys.executable, "-c", FULL], env=environ, capture_output=True, text=True, check=False
    )
    said = "a node has no room left: Ray's memory for objects and the disk behind it are full"
    assert done.stdout.startswith(said)
    assert done.stderr.strip().splitlines()[-1].startswith(f"OSError: {said}")
