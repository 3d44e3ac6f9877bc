"""Keeps what was asked for last: open files and arrays, and what was read of them."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class Recent(Generic[V]):
    """The values that were asked for last, of at most ``limit`` in all by their ``size``; the last
    one in any case.

    dropped: called with the key and the value of each that is kept no longer.
    """

    def __init__(
        self,
        limit: int,
        size: Callable[[V], int] = lambda value: 1,
        dropped: Callable[[Any, V], object] = lambda key, value: None,
    ):
        self._limit, self._size, self._dropped, self._total = limit, size, dropped, 0
        self._values: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """Return the value of ``key``; ``make`` it if need be."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key][0]
        value = make()
        size = self._size(value)
        self._values[key] = value, size
        self._total += size
        self._keep(self._limit)
        return value

    def discard(self, key: Hashable) -> None:
        """Drop the value of ``key``, if it is kept."""
        if key in self._values:
            value, size = self._values.pop(key)
            self._total -= size
            self._dropped(key, value)

    def keep_last(self) -> None:
        """Drop all but the value that was asked for last."""
        self._keep(0)

    def clear(self) -> None:
        """Drop all values."""
        for key in list(self._values):
            self.discard(key)

    def _keep(self, limit: int) -> None:
        while self._total > limit and len(self._values) > 1:
            self.discard(next(iter(self._values)))
