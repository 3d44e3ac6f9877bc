"""Averages of the numbers that an epoch's steps return."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from offrl import parallel


class AnswerError(ValueError):
    """An algorithm answered with what is no set of numbers."""


class Averages:
    """Averages of each number over the steps that have it, taken on the device.

    A step's numbers are copied into one row: to hold on to hundreds of small tensors scatters the
    large ones over the heap, which costs more than the copy.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity  # steps between two folds
        self._counts: dict[str, int] = {}
        self._rows = self._total = self._zero = torch.empty(0)
        self._recent = 0

    def add(self, info: Mapping[str, torch.Tensor]) -> None:
        """``AnswerError`` for what is no map of numbers with ``loss``, all on one device."""
        loss = info.get("loss") if isinstance(info, Mapping) else None
        if not isinstance(loss, torch.Tensor):
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

    def _widen(self, info: Mapping[str, torch.Tensor]) -> None:
        """Columns of zeros for new names."""
        known = len(self._counts)
        self._counts |= {name: 0 for name in info if name not in self._counts}
        zeros = info["loss"].new_zeros(self._capacity + 1, len(self._counts))
        zeros[:-1, :known], zeros[-1, :known] = self._rows, self._total
        self._rows, self._total, self._zero = zeros[:-1], zeros[-1], zeros.new_zeros(())

    def share(self) -> None:
        """Let what was added since the last fold be the means over all processes."""
        parallel.average([self._rows[: self._recent]])

    def fold(self) -> torch.Tensor:
        """Take in what was added since the last time; returns its losses, ``[num_steps]``."""
        rows = self._rows[: self._recent]
        self._total += rows.sum(0)
        self._recent = 0
        return rows[:, list(self._counts).index("loss")]

    def mean(self) -> dict[str, torch.Tensor]:
        sums = self._total + self._rows[: self._recent].sum(0)
        return {
            name: total / count
            for (name, count), total in zip(self._counts.items(), sums, strict=True)
        }

    def state(self) -> dict[str, Any]:
        """All there is; what was not folded yet stays apart, as sums depend on their order."""
        rows = self._rows[: self._recent].clone()
        return {"counts": dict(self._counts), "total": self._total.clone(), "rows": rows}

    def restore(self, state: Mapping[str, Any], device: torch.device) -> None:
        if not state["counts"]:
            return
        self._counts, rows = dict(state["counts"]), state["rows"]
        self._recent = len(rows)
        self._rows = rows.new_zeros(self._capacity, *rows.shape[1:], device=device)
        self._rows[: self._recent] = rows
        self._total = state["total"].to(device)
        self._zero = self._total.new_zeros(())


class Means:
    """Means of numbers, each over those records that have it."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, float] = {}

    def add(self, logs: Mapping[str, float], weight: float = 1) -> None:
        for name, value in logs.items():
            self._sums[name] = self._sums.get(name, 0.0) + weight * value
            self._counts[name] = self._counts.get(name, 0.0) + weight

    def mean(self) -> dict[str, float]:
        return {name: total / self._counts[name] for name, total in self._sums.items()}

    def state(self) -> dict[str, Any]:
        return {"sums": dict(self._sums), "counts": dict(self._counts)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._sums, self._counts = dict(state["sums"]), dict(state["counts"])


def checked_logs(logs: Any) -> dict[str, float]:
    """Give what ``log_info`` returned; ``AnswerError`` if that is no map of numbers."""
    if not isinstance(logs, Mapping) or "Loss" not in logs:
        keys = f"only {', '.join(map(str, logs))}" if isinstance(logs, Mapping) else repr(logs)
        raise AnswerError(
            f"log_info returned {keys:.80}; return a dict of numbers, 'Loss' among them"
        )
    for name, value in logs.items():
        if not isinstance(value, (int, float)):
            raise AnswerError(f"log_info returned {value!r:.80} as {name!r}; a float is expected")
    return dict(logs)


def check_finite(logs: Mapping[str, float]) -> None:
    """``AnswerError`` for numbers that a training does not give."""
    for name, value in logs.items():
        if not math.isfinite(value):
            raise AnswerError(
                f"log_info returned {value!r} as {name!r}; a finite float is expected"
            )


def _why_no_loss(info: Any) -> str:
    what = f"a {type(info).__name__}"
    if info is None or isinstance(info, Mapping):
        info = info or {}
        what = f"no 'loss', but {', '.join(map(str, info)) or 'nothing'}"
        if "loss" in info:
            what = f"a {type(info['loss']).__name__} as 'loss'"
    return f"update returned {what}; return a dict of tensors of one number each, 'loss' among them"


def _why_not_numbers(info: Mapping[str, Any], one: torch.Tensor) -> str:
    for name, value in info.items():
        if not isinstance(value, torch.Tensor):
            return f"update returned a {type(value).__name__} as {name!r}; a tensor is needed"
        if value.device != one.device:
            return f"update returned {name!r} on {value.device}, but the loss is on {one.device}"
        if value.shape != one.shape:
            return f"update returned {name!r} of shape {list(value.shape)}; one number is needed"
    return "update returned numbers that do not go together"
