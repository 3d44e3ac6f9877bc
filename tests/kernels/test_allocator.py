import platform
import subprocess
import sys

import pytest

# Each tensor that goes lies between two that stay: what is free cannot be given back from an end.
PROGRAM = """
import torch
from offrl.kernels import allocator

allocator.MOST_KEPT = 2**26
memory = allocator.FreedMemory()
memory.limit()
before = allocator.resident_bytes()
parts = [torch.ones(2**18) for _ in range(400)]
del parts[::2]
needed = before + sum(part.nbytes for part in parts)
kept = allocator.resident_bytes() - needed
memory.limit()
print(kept // 2**20, (allocator.resident_bytes() - needed) // 2**20)
"""

# The C library writes a line on each of its arenas.
IN_PARTS = """
import ctypes
import os
from pathlib import Path

from offrl.testing import AlgoCase

algo, batches = AlgoCase("bc", {}, Path()).make({"accumulate": 4})
ctypes.CDLL(None).malloc_stats()
algo.learn(next(batches))
os.write(2, b"then")
ctypes.CDLL(None).malloc_stats()
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="for glibc"),
]


def ran(program, folder="."):
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)


def test_freed_memory_is_kept_up_to_a_limit():
    kept, after_limit = map(int, ran(PROGRAM).stdout.split())
    assert kept > 180 and after_limit < 30  # of 200 MiB


@pytest.mark.thorough
def test_parts_of_a_batch_share_the_memory_that_they_have_freed(tmp_path):
    before, after = (text.count("Arena") for text in ran(IN_PARTS, tmp_path).stderr.split("then"))
    assert after == before > 0
