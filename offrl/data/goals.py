"""Goals in hindsight: states of the data take the place of goals.

A later state of the same demonstration is one that its actions do reach (Andrychowicz et al., 2017,
arXiv:1707.01495); a mixture with the current state and with states of other demonstrations is what
values of goals are learned from (HIQL: Park et al., 2023, arXiv:2307.11949).
"""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

GoalMode = Literal["last", "future_uniform", "future_geometric", "mixture"]
GOAL_MODES = get_args(GoalMode)
SHARES = {"current": 0.2, "future": 0.5, "random": 0.3}
DISCOUNT = 0.99


class Goals(NamedTuple):
    """The way in which a window's goal is chosen.

    ``last``: the end of its demonstration. ``future_uniform``: each state after the window's
    current one is as likely as the others. ``future_geometric``: a state ``k`` steps ahead has the
    probability ``(1 - discount) discount^(k - 1)``; the end takes the probability of all beyond it.
    ``mixture``: by ``shares`` the current state, one of the future (geometric), or any of the data.
    """

    mode: GoalMode
    shares: Mapping[str, float] = SHARES
    discount: float = DISCOUNT
    are_rewarded: bool = False  #: True if only reaching the goal is rewarded.

    @property
    def num_draws(self) -> int:
        """The number of uniform random numbers that choose a goal."""
        return {"last": 0, "mixture": 3}.get(self.mode, 1)

    def steps_ahead(self, draws: Tensor, steps: Tensor) -> Tensor:
        """Choose the number of steps to each goal ``[B]``, of the ``steps`` ``[B]`` left."""
        if self.mode == "future_uniform":
            return (draws[:, 0] * steps).long()
        ahead = torch.log1p(-draws[:, 0]) / math.log(self.discount)
        return torch.minimum(ahead.long(), steps - 1)

    def kinds(self, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Say which goals ``[B]`` of a mixture are the current state, and which are random."""
        current, future = self.shares["current"], self.shares["future"]
        return draws[:, 1] < current, draws[:, 1] >= current + future


def make_goals(
    mode: str | None, shares: Mapping[str, float] | None, discount: float, are_rewarded: bool
) -> Goals | None:
    """Make ``Goals`` of keys of the section ``train``; ``None`` if there are no goals."""
    if are_rewarded and mode != "mixture":
        raise ValueError('goal_rewards: needs goals of goal_mode "mixture"')
    if mode is None:
        return None
    if mode not in GOAL_MODES:
        raise ValueError(f"goal_mode: {mode!r}; allowed: null, {', '.join(GOAL_MODES)}")
    shares = SHARES if shares is None else shares
    if shares.keys() != SHARES.keys():
        raise ValueError(f"goal_shares: {dict(shares)}; it has the keys {', '.join(SHARES)}")
    if not 0 < discount < 1:
        raise ValueError(f"goal_discount: {discount:g}; it lies between 0 and 1")
    return Goals(mode, shares, discount, are_rewarded)  # type: ignore[arg-type]
