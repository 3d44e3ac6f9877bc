"""Discrete actions that are forbidden in a state, where observations say so: ``action_mask``
``[B, T, A]``, 1 for those that are allowed. No network sees it."""

from collections.abc import Mapping

from offrl.acting.episode import ACTION_MASK
from offrl.lazy import Tensor

FORBIDDEN = -1e30  # less than any value, and yet finite if it is multiplied


def allowed(obs: Mapping[str, Tensor]) -> Tensor | None:
    """Say which actions the latest frame allows, ``[B, A]``; ``None`` where all are."""
    mask = obs.get(ACTION_MASK)
    return None if mask is None else mask[:, -1] > 0


def masked(scores: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
    """Set the scores (values or logits ``[..., B, A]``) of forbidden actions to ``FORBIDDEN``."""
    mask = allowed(obs)
    return scores if mask is None else scores.masked_fill(~mask, FORBIDDEN)
