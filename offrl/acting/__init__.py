"""Policies that act in environments. Simulator processes import this package without torch, so
``RolloutPolicy``, which needs torch, is imported from ``offrl.acting.policy``."""

from offrl.acting.episode import (
    EpisodeRequest,
    EpisodeResult,
    Policy,
    Subgoal,
    rollout,
    run_episode,
)

__all__ = ["EpisodeRequest", "EpisodeResult", "Policy", "Subgoal", "rollout", "run_episode"]
