"""Work in processes: in order, as one process would, and gone with who asked for it."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing

import programs
import pytest
from conftest import ROOT
from doublers import make_counter, make_locker, make_nothing, make_slow_doubler

from offrl.processes import in_order


def test_results_come_in_order_from_several_processes():
    results = list(in_order(make_slow_doubler, ("a", 2), range(12), 2))
    assert [value for value, _ in results] == [2 * item for item in range(12)]
    processes = {process for _, process in results}
    assert len(processes) == 2 and os.getpid() not in processes


def test_their_environment_is_theirs_alone():
    answers = in_order(make_slow_doubler, ("a", 2), ["environment"], 1, {"OFFRL_TEST": "yes"})
    assert list(answers) == [("1", "yes")] and "OFFRL_TEST" not in os.environ


def test_locks_of_libraries_leave_nothing_behind_when_a_process_is_killed():
    assert list(in_order(make_locker, (), [1], 1)) == [None]


def test_results_wait_for_who_reads_them():
    """Else a film of everything would lie in memory."""
    results = in_order(make_counter, (str(os.getpid()),), range(100), 2)
    with closing(results):
        next(results)
        time.sleep(0.5)
        assert 0 < next(results) <= 8


@pytest.mark.parametrize(
    ("item", "error", "words"),
    [
        ("explained", FileExistsError, "^.*doublers.py"),
        ("crash", ChildProcessError, "signal 9.*--workers"),
        (None, RuntimeError, "TypeError"),
    ],
)
def test_what_a_process_meets_is_said_here(item, error, words):
    with pytest.raises(error, match=words):
        list(in_order(make_slow_doubler, ("a", 2), [1, item, 3], 1))


def test_what_is_met_later_hides_no_result():
    results = in_order(make_slow_doubler, ("a", 2), [1, 2, "crash", 3], 2)
    assert [next(results)[0], next(results)[0]] == [2, 4]
    with pytest.raises(ChildProcessError):
        next(results)


def test_what_cannot_be_made_is_said_here():
    with pytest.raises(RuntimeError, match="make_nothing"):
        list(in_order(make_nothing, ("it",), [1, 2], 1))


START = """
from offrl.processes import in_order
from doublers import make_sleeper

if __name__ == "__main__":
    for process in in_order(make_sleeper, (), range(4), 2):
        print(process, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_who_started_them(number, tmp_path):
    script = tmp_path / "start.py"
    script.write_text(START)
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests")))}
    parent = programs.Popen(
        [sys.executable, script], env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    children = {int(parent.stdout.readline())}
    started = time.monotonic()
    parent.send_signal(number)
    parent.wait(timeout=30)
    while any(os.path.exists(f"/proc/{child}") for child in children):
        time.sleep(0.05)
        assert time.monotonic() - started < 30
