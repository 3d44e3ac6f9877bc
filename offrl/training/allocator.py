"""The C library's memory, kept between training steps."""

from __future__ import annotations

import ctypes
import platform

# mallopt's parameters, from glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_KEPT, MOST_KEPT = 2**28, 2**30  # bytes: of a tensor, of what is free in all


def keep_freed_memory() -> None:
    """Let the process keep the memory of freed CPU tensors for the next ones.

    glibc gives large ones back to the system, which hands the memory out again page by page,
    zeroed: 5 to 10 % of a training step (``docs/benchmarks.md``). Other C libraries are left alone.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
    mallopt(M_TRIM_THRESHOLD, MOST_KEPT)
