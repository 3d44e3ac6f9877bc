"""What signals ask of processes, and what those that work for another one have in common."""

import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from operator import length_hint
from typing import Any, NamedTuple

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A terminal and a scheduler send them to every process: what comes of them the parent decides.
FOR_THE_PARENT = (*STOPS, signal.SIGUSR1)
PR_SET_PDEATHSIG = 1  # of Linux' <sys/prctl.h>


class Interrupted(KeyboardInterrupt):
    """A signal stops what the program does."""

    def __init__(self, number: int):
        super().__init__(f"({signal.Signals(number).name})")
        self.signal = number


def end_with(parent: int) -> None:
    """Have the system end this process with its parent, even if it hangs.
    Elsewhere than on Linux it ends when it next turns to its parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it had ended before
            sys.exit()


def exit_status(code: int) -> str:
    """What a process ended with, in words."""
    return f"killed by signal {-code}" if code < 0 else f"exit status {code}"


def is_explained(error: BaseException) -> bool:
    """Whether an error was raised by offrl on purpose, with a message for people, or passed
    through."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    is_ours = frame.f_globals.get("__name__", "").startswith("offrl")
    return is_ours and isinstance(error, (ValueError, OSError, ImportError))


def in_order(
    make_worker: Callable[..., Callable[[Any], Any]],
    arguments: Sequence[Hashable],
    items: Iterable[Any],
    num_workers: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> Generator[Any, None, None]:
    """What ``make_worker(*arguments)``, a function, makes of each item, in the order of the items.

    It is made once in each of ``num_workers`` processes (one per core), which are at most two
    results each ahead of who reads them. ``environ`` is theirs from their start; each computes with
    one thread.
    """
    num_workers = num_workers or len(os.sched_getaffinity(0))
    num_workers = max(1, min(num_workers, length_hint(items, num_workers)))
    one_thread = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(
        num_workers,
        multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(os.getpid(),),
    )
    waiting: deque[Future[Any]] = deque()
    try:
        with _environment({**one_thread, **(environ or {})}):
            for item in items:
                waiting.append(pool.submit(_work, make_worker, tuple(arguments), item))
                if len(waiting) > 2 * num_workers:
                    yield _result(waiting.popleft())
            while waiting:
                yield _result(waiting.popleft())
    except BaseException:  # nobody waits for what is in progress
        for child in set(multiprocessing.active_children()) - set(others):
            child.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _result(future: Future[Any]) -> Any:
    try:
        result = future.result()
    except BrokenProcessPool:
        raise ChildProcessError(
            "a process that worked on it was killed or crashed; where memory is short use fewer "
            "--workers"
        ) from None
    if isinstance(result, _Explained):
        raise result.error
    return result


class _Explained(NamedTuple):
    """An error that a worker's item met, to be raised where its result is waited for."""

    error: Exception


def _begin(parent: int) -> None:
    """A worker's first act. What comes of a signal, its parent decides."""
    end_with(parent)
    for number in FOR_THE_PARENT:
        signal.signal(number, lambda *_: None)


_worker = cache(lambda make, arguments: make(*arguments))


def _work(make_worker: Any, arguments: tuple[Hashable, ...], item: Any) -> Any:
    try:
        return _worker(make_worker, arguments)(item)
    except Exception as error:
        if is_explained(error):
            return _Explained(error)
        raise


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
