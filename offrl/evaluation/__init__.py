# ruff: noqa: F401
"""Evaluation of policies."""

from offrl.evaluation.evaluate import (
    COLLECTION_SEEDS,
    SELECTION_SEEDS,
    TEST_SEEDS,
    evaluate,
    requests_of,
    summarize,
    video_frames,
    with_latency,
)
from offrl.evaluation.watch import run_episodes, watch
from offrl.intervals import wilson_interval
