"""Processes that read data ahead or share work, killed and interrupted at any moment."""

import os
import sys

import numpy as np
import programs
import pytest
from conftest import ROOT

READERS = """
import torch
from offrl.data.loader import BatchLoader

class Data:
    is_streamed = True
    __len__ = lambda self: 4000
    def get_batch(self, indices):
        return {"obs": torch.zeros(len(indices), 3000)}

TIMES, LATEST = 60, 0.03
begin = lambda: iter(BatchLoader(Data(), 10, seed=0, num_workers=2))
"""
# Results are larger than what a pipe holds, so that most moments are in the middle of sending one.
WORKERS = """
from itertools import count
from offrl.processes import in_order
from test_readers import make_large

TIMES, LATEST = 15, 0.1
begin = lambda: in_order(make_large, (), count(), 2)
"""
TROUBLE = """
import random, signal, sys
from multiprocessing import active_children

def trouble(*_):
    if sys.argv[1] == "interrupt":
        raise KeyboardInterrupt
    random.choice(active_children()).kill()

if __name__ == "__main__":
    signal.signal(signal.SIGALRM, trouble)
    random.seed(0)
    for _ in range(TIMES):
        results = begin()
        next(results)
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.001, LATEST))
        try:
            while True:
                next(results)
        except (KeyboardInterrupt, ChildProcessError) as error:
            print(type(error).__name__)
        results.close()
        assert not active_children()
"""


def make_large():
    return lambda item: np.full(5_000_000, item % 256, np.uint8)


@pytest.mark.thorough
@pytest.mark.parametrize("processes", [READERS, WORKERS], ids=["readers", "workers"])
@pytest.mark.parametrize(
    ("trouble", "error"), [("interrupt", "KeyboardInterrupt"), ("kill", "ChildProcessError")]
)
def test_nothing_hangs_and_nothing_else_is_said(trouble, error, processes, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(processes + TROUBLE)
    places = map(str, (ROOT, ROOT / "tests", ROOT / "tests/faults"))
    done = programs.run(
        [sys.executable, script, trouble],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) == {error}
    assert len(done.stdout.split()) >= 15
