"""Averages over an epoch's steps."""

import torch


class Averages:
    """Averages of the numbers that an epoch's steps return, taken on the device: of each over the
    steps that have it.

    A step's numbers are copied into one row: to hold on to hundreds of small tensors scatters the
    large ones over the heap, which costs more than the copy.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity  # steps between two folds
        self._counts: dict[str, int] = {}
        self._rows = self._total = self._zero = torch.empty(0)
        self._recent = 0

    def add(self, info: dict[str, torch.Tensor]) -> None:
        """``ValueError`` for numbers without ``loss``, or on several devices."""
        if "loss" not in info:
            raise ValueError(f"update returned no 'loss', but {', '.join(info) or 'nothing'}")
        if not info.keys() <= self._counts.keys():
            self._widen(info)
        for name in info:
            self._counts[name] += 1
        values = [info.get(name, self._zero) for name in self._counts]
        try:
            torch.stack(values, out=self._rows[self._recent])
        except RuntimeError:
            raise ValueError(_why_not_numbers(info, self._zero)) from None
        self._recent += 1

    def _widen(self, info: dict[str, torch.Tensor]) -> None:
        """Columns of zeros for new names."""
        known = len(self._counts)
        self._counts |= {name: 0 for name in info if name not in self._counts}
        zeros = info["loss"].new_zeros(self._capacity + 1, len(self._counts))
        zeros[:-1, :known], zeros[-1, :known] = self._rows, self._total
        self._rows, self._total, self._zero = zeros[:-1], zeros[-1], zeros.new_zeros(())

    def fold(self) -> torch.Tensor:
        """Take in what was added since the last time; returns its losses, ``[num_steps]``."""
        rows = self._rows[: self._recent]
        self._total += rows.sum(0)
        self._recent = 0
        return rows[:, list(self._counts).index("loss")]

    def mean(self) -> dict[str, torch.Tensor]:
        totals = zip(self._counts.items(), self._total, strict=True)
        return {name: total / count for (name, count), total in totals}


def _why_not_numbers(info: dict[str, torch.Tensor], one: torch.Tensor) -> str:
    for name, value in info.items():
        if value.device != one.device:
            return f"update returned {name!r} on {value.device}, but the loss is on {one.device}"
        if value.shape != one.shape:
            return f"update returned {name!r} of shape {list(value.shape)}; one number is needed"
    return "update returned numbers that do not go together"
