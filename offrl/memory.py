"""Checks free memory: Linux grants any allocation, and kills a process that uses too much."""

import math
import os
from pathlib import Path

GROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # of a container, cgroup v2 and v1
SMALL = 2**24  # bytes; smaller sizes are not checked


def resident_bytes() -> int:
    """Count the bytes that this process has in memory now (on Linux)."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def free_memory() -> float:
    """Return the bytes that this process can still use; infinity if the system does not tell."""
    if not Path("/proc/meminfo").exists():
        return math.inf
    lines = Path("/proc/meminfo").read_text().splitlines()
    parts = (line.partition(":") for line in lines)
    system = {name: int(rest.split()[0]) * 1024 for name, _, rest in parts}
    free = system.get("MemAvailable", math.inf) + system.get("SwapFree", 0)
    limits = [Path("/sys/fs/cgroup") / name for name in GROUP_LIMITS]
    own = [int(text) for p in limits if p.exists() and (text := p.read_text().strip()).isdigit()]
    return min([free, *(limit - resident_bytes() for limit in own)])


def check_memory(num_bytes: float, place: str, remedy: str = "take a machine with more") -> None:
    """Raise ``ValueError`` if so many bytes do not fit into the free memory.

    place, remedy: the data that takes them, and what helps besides leaving it out, for messages.
    """
    if num_bytes > SMALL and num_bytes > (free := free_memory()):
        raise ValueError(
            f"{place} takes {in_bytes(num_bytes)} of memory, but {in_bytes(free)} are free; "
            f"{remedy}, or leave it out"
        )


def in_bytes(number: float) -> str:
    """Write a number of bytes in the unit that suits it."""
    power = min(len(str(int(number))) - 1, 14) // 3
    return f"{number / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"
