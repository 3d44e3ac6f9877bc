"""Lets signals stop or save a training between two steps."""

import _thread
import logging
import os
import signal
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from offrl import parallel
from offrl.processes import STOPS, Interrupted

log = logging.getLogger(__name__)

T = TypeVar("T")

# Programs such as ``timeout`` signal a process and its group: that counts as one signal.
SAME_SIGNAL_S = 0.3
SAID_AFTER_S = 1.0  # seconds that a stop waits before a message


def _leave_the_terminal() -> None:
    """Discard output to a terminal that is gone, as writing would fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            os.dup2(null, descriptor)
    os.close(null)


class Interrupts(AbstractContextManager):
    """Tells a training between two steps to stop or to save (``check``).

    A program uses it as a context manager: SIGINT, SIGTERM and SIGHUP stop the training, and a
    second one ends the process at once; SIGUSR1 saves. Ignored signals (``nohup``) stay ignored.
    """

    def __init__(self) -> None:
        self.saves = False  # a checkpoint was requested
        self._signal: int | None = None
        self._since = 0.0
        self._stop_waits = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            handlers = dict.fromkeys(STOPS, self.stop) | {signal.SIGUSR1: self._save}
            for number, handler in handlers.items():
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *_: Any) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def stop(self, number: int, frame: Any = None) -> None:
        """Stop the training at the next ``check``, or at once where that is safe."""
        if self._signal is None:
            self._signal, self._since = number, time.monotonic()
            if number == signal.SIGHUP:
                _leave_the_terminal()
            if not self._stop_waits:
                raise Interrupted(number)
            # The lock of ``threading`` may be held at this point.
            _thread.start_new_thread(self._say_that_it_waits, (number,))
        elif time.monotonic() - self._since > SAME_SIGNAL_S:
            os._exit(128 + number)

    def _say_that_it_waits(self, number: int) -> None:
        time.sleep(SAID_AFTER_S)
        if self._stop_waits:
            log.warning(
                f"{signal.Signals(number).name}: the training stops after the step that it waits "
                "for; a second signal ends it at once: --resume goes on from the last checkpoint"
            )

    def _save(self, *_: Any) -> None:
        self.saves = True

    @property
    def is_asked(self) -> bool:
        """Say whether a stop or a checkpoint was requested."""
        return self.saves or self._signal is not None

    def check(self, number: int | None = None) -> None:
        """Raise ``Interrupted`` if a signal stops the training: ``number``, if agreed upon."""
        number = self._signal if number is None else number
        if number:
            raise Interrupted(number)

    def agree(self) -> tuple[bool, int]:
        """Share requests between processes. Returns whether to save, and the signal to stop by."""
        if asked := self.saves:  # not set otherwise: a signal may come between two instructions
            self.saves = False
        saves, number = parallel.largest(asked, self._signal or 0)
        if saves and not parallel.rank():  # the first process writes
            self.saves = True
        return bool(saves), int(number)

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Delay a stop in the block to the next ``check``."""
        self._stop_waits = True
        try:
            yield
        finally:
            self._stop_waits = False

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a stop in the block take effect at once, even within ``wait``."""
        before, self._stop_waits = self._stop_waits, False
        try:
            self.check()
            yield
        finally:
            self._stop_waits = before

    def promptly(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items. A stop while waiting for the next one takes effect at once."""
        iterator = iter(items)
        while True:
            with self.at_once():
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item
