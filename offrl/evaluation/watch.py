"""Episodes that a person looks at: in a window, or as a film."""

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from offrl.acting.episode import EpisodeRequest, EpisodeResult, Policy, run_episode
from offrl.envs.rendering import Finished, Screen, frame_rate
from offrl.video import write_video


def watch(
    policy: Policy, env: Any, requests: Sequence[EpisodeRequest], film: Path | None = None
) -> list[EpisodeResult]:
    """Run episodes in this process, and show them in a window or write them as one film.

    Closing the window ends them; the episode that was running then does not count.

    film: the MP4 file to write; ``None``: open a window.
    """
    results: list[EpisodeResult] = []
    if film is not None:

        def frames() -> Iterator[np.ndarray]:
            for result in run_episodes(policy, env, [replace(r, frame_every=1) for r in requests]):
                results.append(result)
                if result.no_video:
                    raise ValueError(f"no film: {result.no_video}")
                yield from result.frames
                result.frames = []  # those of many episodes would be gigabytes

        write_video(film, frames(), frame_rate(env))
        return results
    with closing(Screen("offrl play", frame_rate(env))) as window, suppress(Finished):

        def act(obs: Any, goal: Any, reward: float) -> np.ndarray | None:
            window.show(env.render())
            return policy(obs, goal, reward)

        for request in requests:
            policy.start_episode(seed=request.seed)
            result = run_episode(env, request, act, policy.needs_goal)
            window.show(env.render())
            results.append(result)
    return results


def run_episodes(
    policy: Policy, env: Any, requests: Sequence[EpisodeRequest]
) -> Iterator[EpisodeResult]:
    """Run episodes in this process, one after the other."""
    for request in requests:
        policy.start_episode(seed=request.seed)
        yield run_episode(env, request, policy, policy.needs_goal)
