"""Goals in hindsight: goals that an episode has reached take the place of those it was meant to."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offrl.data.windows import Windows

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"  # as gymnasium-robotics calls them

#: Judges goals ``[B, G]`` that were achieved where others were desired: returns rewards ``[B]``,
#: and whether the episode terminates there, ``None`` if that does not depend on the goal.
Judge = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray | None]]


class Hindsight:
    """Hindsight experience replay (Andrychowicz et al., 2017, arXiv:1707.01495), with the paper's
    strategy "future": the goal is what was achieved after this step or any later one of the
    episode, all equally likely, and rewards are those of that goal.

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
