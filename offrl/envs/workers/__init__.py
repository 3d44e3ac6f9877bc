"""Episodes in worker processes."""

from offrl.acting.episode import EpisodeRequest, EpisodeResult
from offrl.envs.workers.pool import EnvPool

__all__ = ["EnvPool", "EpisodeRequest", "EpisodeResult"]
