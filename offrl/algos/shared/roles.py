"""Two of the four roles of reinforcement learning, as a user may write them: a ``Model`` and the
``Algorithm`` that trains it. The other two, agents and trainers, are in ``offrl.online``."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


class Model(nn.Module):
    """Networks that say what states and actions are worth, and what to do."""

    def value(self, x: Any, a: Tensor | None = None) -> Tensor:
        """Estimate the value of observations ``x``, or of taking the actions ``a`` there: ``[B]``
        or ``[B, 1]``. Without ``a``, a model of discrete actions may give all values, ``[B, A]``.
        """
        raise NotImplementedError(f"{type(self).__name__} estimates no values")

    def action(self, x: Any) -> Tensor:
        """Choose actions ``[B]`` or ``[B, A]`` for observations ``x``, the best that it knows."""
        raise NotImplementedError(f"{type(self).__name__} chooses no actions")


class Algorithm:
    """One rule by which a ``model`` learns from batches."""

    model: Any

    def predict(self, obs: Any) -> Tensor:
        """Choose the best actions, ``[B]`` or ``[B, A]``, for a batch of observations."""
        return self.model.action(obs)

    def learn(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make one update from a batch, and return numbers for the log."""
        raise NotImplementedError(type(self).__name__)

    def sync_target(self) -> None:
        """Copy the networks to their slow copies, if there are any."""
