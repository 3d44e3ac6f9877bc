"""Keeps freed memory of the C library between training steps."""

import ctypes
import platform
from functools import cache

from offrl.memory import resident_bytes

# mallopt's parameters, from glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
LARGEST_KEPT, MOST_KEPT = 2**28, 2**30  # bytes: of a tensor, and of free memory in all


class FreedMemory:
    """Keeps the memory of freed CPU tensors for new ones. glibc returns large blocks to the system,
    which provides memory page by page, zeroed: 2 to 15 % of a training step
    (``docs/benchmarks.md``). Small objects in between fragment free memory, so that a process grows
    by gigabytes an hour with or without this; ``limit`` prevents that. Other C libraries are not
    changed."""

    def __init__(self) -> None:
        self._libc = _glibc()
        self._most: int | None = None
        if self._libc is not None:
            self._libc.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
            self._libc.mallopt(M_TRIM_THRESHOLD, MOST_KEPT)

    def limit(self) -> None:
        """Return all memory once the process has grown by ``MOST_KEPT``. Call it at regular steps,
        so that the memory in use then does not count as growth."""
        if self._libc is None:
            return
        used = resident_bytes()
        if self._most is None:
            self._most = used + MOST_KEPT
        elif used > self._most:
            self._libc.malloc_trim(0)
            self._most = None


@cache
def share_freed_memory() -> None:
    """Let threads that begin later use what others have freed, in place of keeping memory each."""
    if (libc := _glibc()) is not None:
        libc.mallopt(M_ARENA_MAX, 1)


@cache
def _glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
