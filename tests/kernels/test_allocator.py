import platform
import subprocess
import sys

import pytest

# Small tensors that stay between large ones that go: what is free cannot be given back from an end.
PROGRAM = """
import torch
from offrl.kernels import allocator

allocator.MOST_KEPT = 2**26
memory = allocator.FreedMemory()
memory.limit()
before = allocator.resident_bytes()
parts = [(torch.ones(2**18), torch.ones(8)) for _ in range(200)]
small = [part[1] for part in parts]
del parts
kept = allocator.resident_bytes() - before
memory.limit()
print(kept // 2**20, (allocator.resident_bytes() - before) // 2**20)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="for glibc")
def test_freed_memory_is_kept_up_to_a_limit():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    kept, after_limit = map(int, done.stdout.split())
    assert kept > 180 and after_limit < 30  # of 200 MiB
