"""Sampling from a replay: steps by priorities, and goals in hindsight."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offrl.data.windows import Windows

LEAST = 1e-6  # least priority, so that each step can be drawn again
ACHIEVED, DESIRED = "achieved_goal", "desired_goal"  # as gymnasium-robotics calls them

#: Judges goals ``[B, G]`` that were achieved where others were desired: returns rewards ``[B]``,
#: and whether the episode terminates there, ``None`` if that does not depend on the goal.
Judge = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray | None]]


class Hindsight:
    """Hindsight experience replay (Andrychowicz et al., 2017, arXiv:1707.01495), with the paper's
    strategy "future": a goal that was achieved after this step or a later one of the episode, drawn
    uniformly, replaces the desired goal, and rewards are computed for it.

    Observations must hold ``DESIRED``, which is replaced, and the store ``ACHIEVED``.

    share: the share of samples that get another goal.
    judge: computes the environment's rewards for goals.
    """

    def __init__(self, share: float, judge: Judge):
        self.share, self.judge = share, judge

    def relabel(
        self,
        batch: dict[str, Any],
        columns: Mapping[str, Any],
        windows: Windows,
        rows: Tensor,
        draws: Tensor,
    ) -> None:
        """Relabel a batch of the steps in ``rows`` ``[B]`` by random ``draws`` ``[B, 2]``."""
        chosen = (draws[:, 0] < self.share).nonzero()[:, 0]
        if not len(chosen):
            return
        rows, achieved = rows[chosen], columns[f"obs/{ACHIEVED}"]
        ahead = (draws[chosen, 1] * windows.steps_left(rows)).long()
        goals = achieved.take(rows + ahead + 1)
        for group in ("obs", "next_obs"):
            seen = batch[group][DESIRED]
            seen[chosen] = goals[:, None].expand(-1, *seen.shape[1:])
        steps = windows.rows(rows)
        reached = achieved.take(windows.after(steps, rows)).flatten(0, 1)
        meant = goals.repeat_interleave(steps.shape[1], dim=0)
        rewards, terminated = self.judge(reached.numpy(), meant.numpy())
        for key, values in (("rewards", rewards), ("dones", terminated)):
            if values is not None:
                batch[key][chosen] = torch.from_numpy(np.asarray(values, np.float32)).view_as(steps)


class SumTree:
    """A binary tree of sums over numbers, for draws and changes in logarithmic time."""

    def __init__(self, size: int):
        self._levels = [np.zeros(size)]
        while len(self._levels[-1]) > 1:
            self._levels.append(np.zeros((len(self._levels[-1]) + 1) // 2))

    @property
    def total(self) -> float:
        return float(self._levels[-1][0])

    def __getitem__(self, rows: Any) -> np.ndarray:
        return self._levels[0][rows]

    def __setitem__(self, rows: np.ndarray, values: Any) -> None:
        self._levels[0][rows] = values
        for below, level in zip(self._levels, self._levels[1:], strict=False):
            rows = np.unique(rows // 2)
            right = np.minimum(2 * rows + 1, len(below) - 1)
            level[rows] = below[2 * rows] + np.where(2 * rows + 1 < len(below), below[right], 0.0)

    def find(self, sums: np.ndarray) -> np.ndarray:
        """Find the first row up to which the numbers add up to more than each of ``sums``."""
        rows = np.zeros(len(sums), dtype=np.int64)
        for below in reversed(self._levels[:-1]):
            rows = 2 * rows
            left, right = below[rows], below[np.minimum(rows + 1, len(below) - 1)]
            is_right = (sums >= left) & (right > 0) & (rows + 1 < len(below))
            sums = np.where(is_right, sums - left, sums)
            rows = rows + is_right
        return rows


class Priorities:
    """Prioritised experience replay (Schaul et al., 2016, arXiv:1511.05952): rows of a replay are
    drawn in proportion to ``(|error| + 1e-6)^exponent``, new steps to the largest of these so far,
    and rows without a step never. ``exponent`` is alpha, and ``correction`` beta at the start."""

    def __init__(self, num_rows: int, exponent: float, correction: float):
        self._tree = SumTree(num_rows)
        self._exponent, self._first_correction = exponent, correction
        self._largest = 1.0

    def enter(self, rows: np.ndarray, are_steps: Any) -> None:
        """Add rows, or remove those that are no longer steps."""
        self._tree[rows] = np.where(are_steps, self._largest, 0.0)

    def draw(self, uniform: Tensor, num_steps: int, progress: float) -> tuple[Tensor, Tensor]:
        """Choose rows for numbers ``[B]`` in [0, 1). Returns them and importance weights ``[B]``
        for the loss (section 3.4).

        num_steps: the number of stored steps. progress: that of the training, 0 to 1.
        """
        num, tree = len(uniform), self._tree
        parts = (np.arange(num) + uniform.numpy()) / num  # stratified
        rows = tree.find(parts * tree.total)
        chances = tree[rows] / tree.total
        correction = self._first_correction + progress * (1 - self._first_correction)
        weights = (num_steps * chances) ** -correction
        weights = (weights / weights.max()).astype(np.float32)
        return torch.from_numpy(rows), torch.from_numpy(weights)

    def learn(self, rows: np.ndarray, errors: np.ndarray) -> None:
        """Update the priorities of ``rows`` ``[B]`` by their errors ``[B]``."""
        values = (np.abs(errors) + LEAST) ** self._exponent
        self._largest = max(self._largest, float(values.max()))
        self._tree[rows] = np.where(self._tree[rows] > 0, values, 0.0)

    def state(self) -> dict[str, Any]:
        """Return all state, as tensors and numbers."""
        return {"values": torch.from_numpy(self._tree[:].copy()), "largest": self._largest}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        values = state["values"].numpy()
        self._tree[np.arange(len(values))] = values
        self._largest = state["largest"]
