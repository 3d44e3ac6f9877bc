"""The names that this module once had, for scripts that import them from here."""

from offrl.acting import RolloutPolicy, rollout  # noqa: F401
from offrl.evaluation import *  # noqa: F403
