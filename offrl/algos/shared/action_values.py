"""The base of learners of values whose policy takes the action of the highest value."""

from typing import Any

from offrl import models
from offrl.algos.base import Obs, PolicyAlgo, Seen
from offrl.algos.shared.masks import masked
from offrl.algos.shared.td import TDLearner
from offrl.lazy import Tensor, torch
from offrl.specs import with_goal


class ActionValues(TDLearner, PolicyAlgo):
    """Critics that value all discrete actions at once. There is no actor."""

    ACTIONS = ("discrete",)

    def scores(self, obs: Any) -> Tensor:
        """Score all actions, ``[B, A]``, for prepared observations; the policy takes the best."""
        return self.nets["critic"].values(obs).amin(0)

    def best_guess(self, obs: Any, goal: Any = None) -> Tensor:
        """Return the policy's action, one-hot ``[B, 1, A]``."""
        return highest(masked(self.scores(with_goal(obs, goal)), obs))[:, None]

    def act(self, seen: Seen) -> tuple[Tensor, Any]:
        return self.action_distribution(seen.obs, seen.goal)[0].action[:, 0], seen.state

    def action_distribution(self, obs: Obs, goal: Obs | None = None, state: Any = None) -> Any:
        return models.Deterministic(self.best_guess(self.prepare(obs, goal))), state


def highest(scores: Tensor) -> Tensor:
    """Choose the action of the highest score, one-hot, for each row ``[B, A]``."""
    best = scores.argmax(-1, keepdim=True)
    return torch.zeros_like(scores).scatter_(-1, best, 1.0)
