"""Averages of the numbers that updates return, and checks of these numbers."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from offrl import parallel


class AnswerError(ValueError):
    """Raised if an algorithm returns invalid numbers for the log."""


class Averages:
    """Averages numbers by name, each over the records that have it.

    ``add`` takes floats. ``add_step`` takes tensors and does not wait for their device: it copies
    them into a row, as many small tensors would fragment memory; ``fold`` sums up.

    capacity: The largest number of steps between two calls of ``fold``.
    """

    def __init__(self, capacity: int = 0) -> None:
        self._capacity = capacity
        self._sums: dict[str, Any] = {}
        self._counts: dict[str, float] = {}
        self._rows = self._zero = torch.empty(0)
        self._recent = 0  # rows that are not folded yet

    def add(self, logs: Mapping[str, float], weight: float = 1) -> None:
        """Add a record that is an average over ``weight`` records."""
        for name, value in logs.items():
            self._sums[name] = self._sums.get(name, 0.0) + weight * value
            self._counts[name] = self._counts.get(name, 0.0) + weight

    def add_step(self, info: Mapping[str, Tensor]) -> None:
        """Add a step's numbers, on one device and with ``loss``. Raises ``AnswerError``."""
        loss = info.get("loss") if isinstance(info, Mapping) else None
        if not isinstance(loss, Tensor):
            raise AnswerError(_why_no_loss(info))
        if loss.ndim:
            raise AnswerError(f"the loss has shape {[*loss.shape]}; one number is needed")
        if not info.keys() <= self._counts.keys():
            self._widen(info)
        for name in info:
            self._counts[name] += 1
        values = [info.get(name, self._zero) for name in self._counts]
        try:
            torch.stack(values, out=self._rows[self._recent])
        except (RuntimeError, TypeError):
            raise AnswerError(_why_not_numbers(info, self._zero)) from None
        self._recent += 1

    def _widen(self, info: Mapping[str, Tensor]) -> None:
        """Add columns of zeros for new names."""
        known, self._zero = len(self._counts), info["loss"].new_zeros(())
        for name in info:
            self._counts.setdefault(name, 0)
            self._sums.setdefault(name, self._zero)
        rows, self._rows = self._rows, self._zero.new_zeros(self._capacity, len(self._counts))
        self._rows[:, :known] = rows

    def share(self) -> None:
        """Replace the rows since the last ``fold`` by their means over all processes."""
        parallel.average(self._rows[: self._recent])

    def fold(self) -> Tensor:
        """Sum up the rows since the last ``fold``. Returns their losses, ``[num_steps]``."""
        rows = self._rows[: self._recent]
        self._sums = self._with_rows()
        self._recent = 0
        return rows[:, list(self._counts).index("loss")]

    def _with_rows(self) -> dict[str, Any]:
        if not self._recent:
            return self._sums
        rows = self._rows[: self._recent].sum(0)
        return {name: x + row for (name, x), row in zip(self._sums.items(), rows, strict=True)}

    def mean(self) -> dict[str, Any]:
        """Compute the average of each number."""
        return {name: x / self._counts[name] for name, x in self._with_rows().items()}

    def state(self) -> dict[str, Any]:
        """Return the state. Rows are not summed up here, as sums depend on their order."""
        if not self._capacity:
            return {"sums": dict(self._sums), "counts": dict(self._counts)}
        total = torch.stack([*self._sums.values()]) if self._sums else torch.empty(0)
        rows = self._rows[: self._recent].clone()
        return {"counts": dict(self._counts), "total": total, "rows": rows}

    def restore(self, state: Mapping[str, Any], device: torch.device | None = None) -> None:
        """Restore what ``state`` returned, with tensors on ``device``."""
        self._counts = dict(state["counts"])
        if not self._capacity:
            self._sums = dict(state["sums"])
        elif self._counts:
            rows, total = state["rows"].to(device), state["total"].to(device)
            self._sums = dict(zip(self._counts, total, strict=True))
            self._rows, self._recent = rows.new_zeros(self._capacity, len(total)), len(rows)
            self._rows[: self._recent] = rows
            self._zero = total.new_zeros(())


def checked_logs(logs: Any, may_be_infinite: bool = False) -> dict[str, float]:
    """Return ``logs`` of ``log_info``. Raises ``AnswerError`` unless finite, with ``Loss``."""
    if not isinstance(logs, Mapping) or "Loss" not in logs:
        keys = f"only {', '.join(map(str, logs))}" if isinstance(logs, Mapping) else repr(logs)
        raise AnswerError(f"log_info returned {keys:.80}; return a dict of numbers with 'Loss'")
    for name, value in logs.items():
        is_number = isinstance(value, (int, float))
        if not is_number or not (may_be_infinite or math.isfinite(value)):
            needed = "a finite float" if is_number else "a float"
            raise AnswerError(f"log_info returned {value!r:.80} as {name!r}; {needed} is expected")
    return dict(logs)


def _why_no_loss(info: Any) -> str:
    what = f"a {type(info).__name__}"
    if info is None or isinstance(info, Mapping):
        what = f"no 'loss', but {', '.join(map(str, info or {})) or 'nothing'}"
        if info and "loss" in info:
            what = f"a {type(info['loss']).__name__} as 'loss'"
    return f"update returned {what}; return a dict of tensors of one number each, 'loss' among them"


def _why_not_numbers(info: Mapping[str, Any], one: Tensor) -> str:
    for name, value in info.items():
        if not isinstance(value, Tensor):
            return f"update returned a {type(value).__name__} as {name!r}; a tensor is needed"
        if value.device != one.device:
            return f"update returned {name!r} on {value.device}, but the loss is on {one.device}"
        if value.shape != one.shape:
            return f"update returned {name!r} of shape {list(value.shape)}; one number is needed"
    return "update returned numbers that do not go together"
