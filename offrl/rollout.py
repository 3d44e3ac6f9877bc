"""Earlier names of this module, for scripts that import them from here."""

from offrl.acting.episode import rollout  # noqa: F401
from offrl.acting.policy import RolloutPolicy  # noqa: F401
from offrl.evaluation import *  # noqa: F403
