"""Success rates of policies, over episodes with fixed seeds."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from offrl.acting import EpisodeRequest, EpisodeResult, Policy
from offrl.acting.episode import REACHED
from offrl.acting.policy import RolloutPolicy
from offrl.config import RolloutConfig
from offrl.envs.workers import EnvPool
from offrl.intervals import wilson_interval

# Disjoint blocks of seeds: tests share none with demonstrations or the choice of checkpoints.
TEST_SEEDS = 0
SELECTION_SEEDS = 1_000_000
COLLECTION_SEEDS = 2_000_000

EVALUATION_BATCH = 4  # small, as every call computes all rows


def requests_of(
    rollout: RolloutConfig, first_seed: int, num_filmed: int = 0, frame_every: int = 1
) -> list[EpisodeRequest]:
    """Make an evaluation's requests, with seeds from ``first_seed`` on; film the first episodes."""
    horizon, ends = rollout.horizon, rollout.terminate_on_success
    return [
        EpisodeRequest(first_seed + i, horizon, ends, frame_every if i < num_filmed else None)
        for i in range(rollout.n)
    ]


def with_latency(
    policy: RolloutPolicy, rollout: RolloutConfig, env_args: Mapping[str, Any]
) -> RolloutPolicy:
    """Delay a policy's chunks of actions as ``latency_ms`` and ``asynchronous`` say."""
    if not (rollout.latency_ms or rollout.asynchronous):
        return policy
    if policy.executor is None:
        raise ValueError(
            f"experiment.rollout.latency_ms, asynchronous: {policy} predicts no chunks of actions, "
            "so that it can wait for none; set them to 0 and false"
        )
    frequency = rollout.control_freq or (env_args.get("env_kwargs") or {}).get("control_freq")
    if rollout.latency_ms and not frequency:
        raise ValueError(
            "experiment.rollout.control_freq: how many steps latency_ms are in "
            f"{env_args.get('env_name')!r} is not known; say how many make a second"
        )
    executor: Any = policy.executor
    latency = math.ceil(rollout.latency_ms * (frequency or 0) / 1000 - 1e-9)
    executor = replace(executor, latency=latency, asynchronous=rollout.asynchronous)
    return RolloutPolicy(policy.policy, policy.batch_size, policy.instruction, executor)


def evaluate(
    policy: Policy, pool: EnvPool, requests: Sequence[EpisodeRequest]
) -> Iterator[EpisodeResult]:
    """Run episodes of a policy in a pool, and yield results in the order in which they end.

    Results are bit-identical for any number of workers. PyTorch's random state is kept.
    """
    if isinstance(policy, RolloutPolicy):
        policy = RolloutPolicy(policy.policy, EVALUATION_BATCH, policy.instruction, policy.executor)
    episodes = pool.run(requests, policy)
    num_threads = torch.get_num_threads()
    while True:
        torch.set_num_threads(1)  # idle ones would spin on the cores that the simulators need
        try:
            result = next(episodes, None)
        finally:
            torch.set_num_threads(num_threads)
        if result is None:
            return
        yield result


def video_frames(results: Iterable[EpisodeResult]) -> list[np.ndarray]:
    """Join the frames of all episodes, one episode after the other."""
    ordered = sorted(results, key=lambda r: r.request.seed or 0)
    return [frame for result in ordered for frame in result.frames]


def summarize(results: Iterable[EpisodeResult]) -> dict[str, float]:
    """Average the episodes that ran: ``Success_Rate`` with its 95 % interval
    (``Success_Rate_Low``, ``Success_Rate_High``), ``Return``, ``Horizon`` (length) and ``n``.

    ``Crashed`` counts the episodes that could not be run; it is alone if all of them crashed. If no
    episode reports success or failure, there is no success rate; if some do, the others count as
    failures.

    For policies whose subgoals have positions of end effectors, ``Subgoals`` counts those that were
    pursued for all of their steps, ``Subgoals_Reached`` is the share of them that the end effectors
    reached within 2 cm, and ``Subgoal_Distance`` the mean least distance in metres.
    """
    ordered = sorted(results, key=lambda r: r.request.seed or 0)
    ran = [r for r in ordered if r.error is None]
    logs: dict[str, float] = {"n": len(ran), "Crashed": len(ordered) - len(ran)}
    if ran:
        if any(r.success is not None for r in ran):
            successes = sum(bool(r.success) for r in ran)
            low, high = wilson_interval(successes, len(ran))
            logs["Success_Rate"] = successes / len(ran)
            logs |= {"Success_Rate_Low": low, "Success_Rate_High": high}
        logs["Return"] = sum(r.total_reward for r in ran) / len(ran)
        logs["Horizon"] = sum(r.length for r in ran) / len(ran)
    distances = [distance for r in ran for distance in r.subgoal_distances]
    if distances:
        logs |= {
            "Subgoals": len(distances),
            "Subgoals_Reached": sum(d <= REACHED for d in distances) / len(distances),
            "Subgoal_Distance": sum(distances) / len(distances),
        }
    return logs
