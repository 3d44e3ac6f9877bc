"""What the benchmarks share: contestants that take turns, medians of ratios, Markdown tables."""

from __future__ import annotations

import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tqdm import tqdm

END = "<!-- end of the results -->\n"


def timed(work: Callable[[], object]) -> Callable[[], float]:
    """``work``, giving its seconds."""

    def run() -> float:
        started = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - started

    return run


def in_a_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a fresh process, and return its result."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def alternate(
    contestants: Mapping[str, Callable[[], float]], repeats: int, warm_up: bool = True
) -> dict[str, list[float]]:
    """What each contestant's function returns, ``repeats`` times.

    They take turns, so that whatever else the machine does meets all of them alike. The warm-up is
    a first round that does not count.
    """
    results: dict[str, list[float]] = {name: [] for name in contestants}
    rounds = range(repeats + warm_up)
    for _ in tqdm(rounds, desc=" / ".join(contestants), leave=False, disable=None):
        for name, run in contestants.items():
            results[name].append(run())
    return {name: values[int(warm_up) :] for name, values in results.items()}


def ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Within each round."""
    return [a / b for a, b in zip(values, others, strict=True)]


def ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """The median of the ratios within each round."""
    return median(ratios(values, others))


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The median, and the smallest and the largest."""
    middle, low, high = (f"{f(values):.{digits}f}" for f in (median, min, max))
    return f"{middle} ({low} to {high})"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def machine() -> str:
    """Processor, cores, device and torch, in a line."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return (
        f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores, "
        f"{torch.get_num_threads()} torch threads, device {device}, torch {torch.__version__}"
    )


def fill(page: Path, begin: str, text: str) -> None:
    """Fill the part of a page behind ``begin``, if its text was another, and name the machine."""
    print(text)
    content = page.read_text(encoding="utf-8")
    before, found, rest = content.partition(begin)
    assert found, f"{page} has no {begin}"
    written, _, after = rest.partition(END)
    if text not in written:
        page.write_text(f"{before}{begin}{text}\n{machine()}\n{END}{after}", encoding="utf-8")
