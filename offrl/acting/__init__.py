"""Policies at environments.

``RolloutPolicy`` is imported when first used: simulators' processes import this and no torch.
"""

from typing import TYPE_CHECKING, Any

from offrl.acting.base import Policy
from offrl.acting.episode import EpisodeRequest, EpisodeResult, rollout, run_episode

if TYPE_CHECKING:
    from offrl.acting.policy import RolloutPolicy

__all__ = [
    "EpisodeRequest",
    "EpisodeResult",
    "Policy",
    "RolloutPolicy",
    "rollout",
    "run_episode",
]


def __getattr__(name: str) -> Any:
    if name != "RolloutPolicy":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from offrl.acting.policy import RolloutPolicy

    return RolloutPolicy
