"""Choices in the batches of a replay: steps by priorities, and goals in hindsight."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offrl.data.windows import Windows

LEAST = 1e-6  # of priorities, so that no step is lost for ever
ACHIEVED, DESIRED = "achieved_goal", "desired_goal"  # as gymnasium-robotics calls them

#: Judges goals ``[B, G]`` that were achieved where others were desired: returns rewards ``[B]``,
#: and whether the episode terminates there, ``None`` if that does not depend on the goal.
Judge = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray | None]]


class Hindsight:
    """Hindsight experience replay (Andrychowicz et al., 2017, arXiv:1707.01495), with the paper's
    strategy "future": what was achieved after this step or any later one of the episode, all
    equally likely, takes the place of the goal that was meant, and rewards are those of that goal.

    Observations must hold ``DESIRED``, which is replaced, and the store ``ACHIEVED``.

    share: of the samples that get another goal.
    judge: the environment's opinion of goals.
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
        """Change a batch of the steps in ``rows`` ``[B]`` by random numbers ``[B, 2]``."""
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
    """Numbers, and sums of 2, 4, 8, ... neighbours: draws and changes take one step per level."""

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
    """The chances that rows of a replay are drawn (prioritised experience replay: Schaul et al.,
    2016, arXiv:1511.05952): in proportion to ``(|error| + 1e-6)^exponent``, for new steps to
    the largest of these so far, and 0 for rows that are no steps.

    exponent: how much errors count (alpha). correction: of the bias, at first (beta).
    """

    def __init__(self, num_rows: int, exponent: float, correction: float):
        self._tree = SumTree(num_rows)
        self._exponent, self._first_correction = exponent, correction
        self._largest = 1.0

    def enter(self, rows: np.ndarray, are_steps: Any) -> None:
        """Note rows, which are steps or are none any more."""
        self._tree[rows] = np.where(are_steps, self._largest, 0.0)

    def draw(self, uniform: Tensor, num_steps: int, progress: float) -> tuple[Tensor, Tensor]:
        """Choose rows for numbers ``[B]`` in [0, 1). Returns them and the weights ``[B]`` in a loss
        that make up for their being drawn too often (section 3.4).

        num_steps: how many there are. progress: of the training, 0 to 1.
        """
        num, tree = len(uniform), self._tree
        parts = (np.arange(num) + uniform.numpy()) / num  # one of each part of the sum
        rows = tree.find(parts * tree.total)
        chances = tree[rows] / tree.total
        correction = self._first_correction + progress * (1 - self._first_correction)
        weights = (num_steps * chances) ** -correction
        weights = (weights / weights.max()).astype(np.float32)
        return torch.from_numpy(rows), torch.from_numpy(weights)

    def learn(self, rows: np.ndarray, errors: np.ndarray) -> None:
        """Note the errors ``[B]`` of steps that were learned from."""
        values = (np.abs(errors) + LEAST) ** self._exponent
        self._largest = max(self._largest, float(values.max()))
        self._tree[rows] = np.where(self._tree[rows] > 0, values, 0.0)

    def state(self) -> dict[str, Any]:
        """Return all of them, as tensors and numbers."""
        return {"values": torch.from_numpy(self._tree[:].copy()), "largest": self._largest}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        values = state["values"].numpy()
        self._tree[np.arange(len(values))] = values
        self._largest = state["largest"]
