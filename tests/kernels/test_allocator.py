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


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="for glibc")
def test_freed_memory_is_kept_up_to_a_limit():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    kept, after_limit = map(int, done.stdout.split())
    assert kept > 180 and after_limit < 30  # of 200 MiB
