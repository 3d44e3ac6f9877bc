"""The names that were in this module once, for scripts that import them from it."""

from offrl.acting import RolloutPolicy, rollout
from offrl.evaluation import (
    COLLECTION_SEEDS,
    SELECTION_SEEDS,
    TEST_SEEDS,
    evaluate,
    summarize,
    wilson_interval,
)

__all__ = [
    "COLLECTION_SEEDS",
    "SELECTION_SEEDS",
    "TEST_SEEDS",
    "RolloutPolicy",
    "evaluate",
    "rollout",
    "summarize",
    "wilson_interval",
]
