"""Processes that read data ahead, killed and interrupted at any moment."""

import subprocess
import sys

import pytest

SCRIPT = """
import random, signal, sys
from multiprocessing import active_children
import torch
from offrl.data.loader import BatchLoader

class Data:
    is_streamed = True
    __len__ = lambda self: 4000
    def get_batch(self, indices):
        return {"obs": torch.zeros(len(indices), 3000)}

def trouble(*_):
    if sys.argv[1] == "interrupt":
        raise KeyboardInterrupt
    random.choice(active_children()).kill()

signal.signal(signal.SIGALRM, trouble)
random.seed(0)
for _ in range(60):
    batches = iter(BatchLoader(Data(), 10, seed=0, num_workers=2))
    next(batches)
    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.001, 0.03))
    try:
        while True:
            next(batches)
    except (KeyboardInterrupt, ChildProcessError) as error:
        print(type(error).__name__)
    batches.close()
    assert not active_children()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trouble", "error"), [("interrupt", "KeyboardInterrupt"), ("kill", "ChildProcessError")]
)
def test_nothing_hangs_and_nothing_else_is_said(trouble, error):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, trouble],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [error] * 60
