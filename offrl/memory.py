"""Checks free memory: Linux grants any allocation, and kills a process that uses too much."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")  # Linux' control groups: of containers, and of jobs on a cluster
# Of each version: the folder, its files with the limit and the usage in bytes, and a prefix of
# figures that count the groups below one.
GROUP_FILES = {
    "2": ("", "memory.max", "memory.current", ""),
    "1": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
}
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
    return min([free, *_rooms_of_groups()])


def _rooms_of_groups() -> Iterator[int]:
    """Yield the bytes that each control group of this process, and those above it, can still use;
    files that the system keeps in memory give way."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    for number, controllers, name in (line.split(":", 2) for line in lines):
        if number != "0" and "memory" not in controllers.split(","):
            continue
        folder, limit, usage, total = GROUP_FILES["2" if number == "0" else "1"]
        own = Path(name.strip("/"))
        for group in (GROUPS / folder / part for part in (own, *own.parents)):
            with suppress(OSError, ValueError, KeyError):  # no limit, or not to be seen from here
                lines = (group / "memory.stat").read_text().splitlines()
                figures = dict(line.split() for line in lines)
                files = sum(int(figures[f"{total}{kind}_file"]) for kind in ("active", "inactive"))
                used = int((group / usage).read_text()) - files
                yield int((group / limit).read_text()) - used


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
