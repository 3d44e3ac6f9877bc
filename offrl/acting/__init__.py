"""Policies at environments.

``RolloutPolicy`` is imported when first used: simulators' processes import this and no torch.
"""

from importlib import import_module
from typing import Any

from offrl.acting.base import Policy
from offrl.acting.episode import EpisodeRequest, EpisodeResult, rollout, run_episode

__all__ = ["EpisodeRequest", "EpisodeResult", "Policy", "rollout", "run_episode"]


def __getattr__(name: str) -> Any:
    if name != "RolloutPolicy":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("offrl.acting.policy").RolloutPolicy
