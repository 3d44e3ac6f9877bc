"""Averages over an epoch's steps."""

from __future__ import annotations

import torch


class Averages:
    """Averages of the numbers that an epoch's steps return, taken on the device.

    A step's numbers are copied into one row: to hold on to hundreds of small tensors scatters the
    large ones over the heap, which costs more than the copy.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity  # steps between two folds
        self._names: list[str] = []
        self._rows = self._total = torch.empty(0)
        self._recent = self._count = 0

    def add(self, info: dict[str, torch.Tensor]) -> None:
        values = list(info.values())
        if not self._names:
            self._names = list(info)
            self._rows = values[0].new_empty(self._capacity, len(values))
            self._total = values[0].new_zeros(len(values))
        torch.stack(values, out=self._rows[self._recent])
        self._recent += 1

    def fold(self) -> torch.Tensor:
        """Take in what was added since the last time; returns its losses, ``[num_steps]``."""
        rows = self._rows[: self._recent]
        self._total += rows.sum(0)
        self._count += self._recent
        self._recent = 0
        return rows[:, self._names.index("loss")]

    def mean(self) -> dict[str, torch.Tensor]:
        return dict(zip(self._names, self._total / self._count, strict=True))
