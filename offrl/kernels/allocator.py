"""The C library's memory, kept between training steps."""

import ctypes
import platform

from offrl.memory import resident_bytes

# mallopt's parameters, from glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_KEPT, MOST_KEPT = 2**28, 2**30  # bytes: of a tensor, of what is free in all


class FreedMemory:
    """The memory of freed CPU tensors, which the process keeps for the next ones.

    glibc gives large ones back to the system, which hands the memory out again page by page,
    zeroed: 2 to 15 % of a training step (``docs/benchmarks.md``). Small objects in between split
    free memory into parts that are too small for the next tensor, so that a process grows in either
    case, by gigabytes an hour; ``limit`` ends that. Other C libraries are left alone.
    """

    def __init__(self) -> None:
        self._libc: ctypes.CDLL | None = None
        self._most: int | None = None
        if platform.libc_ver()[0] == "glibc":
            self._libc = ctypes.CDLL(None)
            self._libc.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
            self._libc.mallopt(M_TRIM_THRESHOLD, MOST_KEPT)

    def limit(self) -> None:
        """Give everything back once the process has grown by ``MOST_KEPT``. Call it after the same
        number of steps each time, so that the memory they use does not count as growth."""
        if self._libc is None:
            return
        used = resident_bytes()
        if self._most is None:
            self._most = used + MOST_KEPT
        elif used > self._most:
            self._libc.malloc_trim(0)
            self._most = None
