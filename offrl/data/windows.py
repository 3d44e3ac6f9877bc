"""Windows over demonstrations whose rows lie one after the other, by index arithmetic."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


def ranges(begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """``count`` integers from each begin on, all in one array."""
    return np.repeat(begins - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())


class Window(NamedTuple):
    """``T = frame_stack - 1 + seq_length`` steps. Padding repeats the first step of a demonstration
    (``pad_frame_stack``) or its last (``pad_seq_length``); without it windows that need it are left
    out."""

    frame_stack: int = 1
    seq_length: int = 1
    pad_frame_stack: bool = True
    pad_seq_length: bool = True


class Windows:
    """Windows over demonstrations of ``lengths`` steps from ``first_rows`` on, of which the first
    ``seen`` may be seen."""

    def __init__(
        self, first_rows: np.ndarray, lengths: np.ndarray, seen: np.ndarray, window: Window
    ):
        frame_stack, seq_length, pad_frame_stack, pad_seq_length = window
        skipped_start = 0 if pad_frame_stack else frame_stack - 1
        self.skipped_end = 0 if pad_seq_length else seq_length - 1
        counts = seen - skipped_start - self.skipped_end
        if pad_seq_length:
            counts = np.where(seen > skipped_start, np.maximum(counts, 1), counts)
        self.counts = np.where(seen == 0, 0, counts)  # of each demonstration; too short if below 1
        counts = np.maximum(self.counts, 0)
        self._start = torch.from_numpy(ranges(first_rows + skipped_start, counts))
        self._begin = torch.from_numpy(np.repeat(first_rows, counts))
        self._last = torch.from_numpy(np.repeat(first_rows + seen - 1, counts))
        self._end = torch.from_numpy(np.repeat(first_rows + lengths - 1, counts))
        self._offsets = torch.arange(1 - frame_stack, seq_length)

    def __len__(self) -> int:
        return len(self._start)

    @property
    def num_steps(self) -> int:
        return len(self._offsets)

    def to(self, device: torch.device | str) -> None:
        for name in ("_start", "_begin", "_last", "_end", "_offsets"):
            setattr(self, name, getattr(self, name).to(device))

    def current(self, indices: Tensor) -> Tensor:
        """The rows of the current steps, ``[B, 1]``."""
        return self._start[indices][:, None]

    def rows(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of windows ``[B, T]``, and whether each is a step and not padding."""
        steps = self.current(indices) + self._offsets
        begin, last = self._begin[indices][:, None], self._last[indices][:, None]
        return torch.minimum(torch.maximum(steps, begin), last), (steps >= begin) & (steps <= last)

    def after(self, rows: Tensor, indices: Tensor) -> Tensor:
        """The rows ``[B, T]`` of what follows; the last step of a demonstration follows itself."""
        return torch.minimum(rows + 1, self._end[indices][:, None])

    def goal(self, indices: Tensor) -> Tensor:
        """The row ``[B, 1]`` of the last step that is the current one of a window."""
        return self._last[indices][:, None] - self.skipped_end
