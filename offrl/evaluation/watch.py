"""Episodes that a person looks at: in a window, or as a film."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from offrl.acting.episode import EpisodeRequest, EpisodeResult, Policy, run_episode
from offrl.envs.keyboard import Finished
from offrl.envs.window import Window, frame_rate
from offrl.video import write_video


def watch(
    policy: Policy, env: Any, requests: Sequence[EpisodeRequest], film: Path | None = None
) -> list[EpisodeResult]:
    """Run episodes in this process, and show them in a window or write them as one film.

    They end when a person closes the window; the episode that was running then does not count.

    film: the MP4 file to write; ``None``: open a window.
    """
    results: list[EpisodeResult] = []
    if film is None:
        _show(policy, env, requests, results)
    else:
        write_video(film, _frames(policy, env, requests, results), frame_rate(env))
    return results


def run_episodes(
    policy: Policy, env: Any, requests: Sequence[EpisodeRequest]
) -> Iterator[EpisodeResult]:
    """Run episodes in this process, one after the other."""
    for request in requests:
        policy.start_episode(seed=request.seed)
        yield run_episode(env, request, policy, policy.needs_goal)


def _frames(
    policy: Policy, env: Any, requests: Sequence[EpisodeRequest], results: list[EpisodeResult]
) -> Iterator[np.ndarray]:
    for result in run_episodes(policy, env, [replace(r, frame_every=1) for r in requests]):
        results.append(result)
        if result.no_video:
            raise ValueError(f"no film: {result.no_video}")
        yield from result.frames
        result.frames = []  # of many episodes they would be gigabytes


def _show(
    policy: Policy, env: Any, requests: Sequence[EpisodeRequest], results: list[EpisodeResult]
) -> None:
    window = Window("offrl play", frame_rate(env))
    try:
        for result in run_episodes(_Shown(policy, env, window), env, requests):
            window.show(env.render())
            results.append(result)
    except Finished:
        pass
    finally:
        window.close()


class _Shown(Policy):
    """A policy whose environment is shown before each of its actions."""

    def __init__(self, policy: Policy, env: Any, window: Window):
        self._policy, self._env, self._window = policy, env, window
        self.needs_goal = policy.needs_goal

    def start_episode(self, env: int = 0, seed: int | None = None) -> None:
        self._policy.start_episode(env, seed)

    def __call__(self, obs: Any, goal: Any = None, reward: float | None = None) -> np.ndarray:
        self._window.show(self._env.render())
        return self._policy(obs, goal, reward)
