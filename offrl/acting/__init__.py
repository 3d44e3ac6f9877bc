"""Policies at environments. Simulators' processes import this and no torch, so that the policy
which needs torch is imported from where it is, ``offrl.acting.policy``."""

from offrl.acting.episode import (
    EpisodeRequest,
    EpisodeResult,
    Policy,
    Subgoal,
    rollout,
    run_episode,
)

__all__ = ["EpisodeRequest", "EpisodeResult", "Policy", "Subgoal", "rollout", "run_episode"]
