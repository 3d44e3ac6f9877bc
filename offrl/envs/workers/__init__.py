"""Runs episodes in worker processes, or in Ray actors."""

from offrl.acting.episode import EpisodeRequest, EpisodeResult
from offrl.envs.workers.actors import RayPool, pools
from offrl.envs.workers.pool import EnvPool

__all__ = ["EnvPool", "EpisodeRequest", "EpisodeResult", "RayPool", "pools"]
