"""What learners of values share whose policy is to take the action of the highest."""

from typing import Any

from offrl import models
from offrl.algos.base import Generators, Obs, PolicyAlgo
from offrl.algos.shared.masks import masked
from offrl.algos.shared.td import TDLearner
from offrl.lazy import Tensor, torch


class ActionValues(TDLearner, PolicyAlgo):
    """Critics of a few actions, which give all of these their values at once. There is no actor."""

    ACTIONS = ("discrete",)

    def scores(self, obs: Any, goal: Any) -> Tensor:
        """Give what the policy chooses the highest of, ``[B, A]``, for what the networks see."""
        return self.nets["critic"].values(obs, goal).amin(0)

    def best_guess(self, obs: Any, goal: Any) -> Tensor:
        """The policy's action, one-hot ``[B, 1, A]``."""
        return highest(masked(self.scores(obs, goal), obs))[:, None]

    def act(
        self, obs: Obs, goal: Obs | None = None, state: Any = None, generators: Generators = None
    ) -> tuple[Tensor, Any]:
        return self.action_distribution(obs, goal)[0].action[:, 0], state

    def action_distribution(self, obs: Obs, goal: Obs | None = None, state: Any = None) -> Any:
        best = self.best_guess(self.prepare_obs(obs), self.prepare_obs(goal, "goal"))
        return models.Deterministic(best), state


def highest(scores: Tensor) -> Tensor:
    """The action of the highest score, one-hot, for each row ``[B, A]``."""
    best = scores.argmax(-1, keepdim=True)
    return torch.zeros_like(scores).scatter_(-1, best, 1.0)
