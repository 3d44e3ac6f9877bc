"""Playback of recorded demonstrations in the simulator, by states or by actions.

A ``demo`` is a trajectory as data holds it (``offrl.data.demos.Demos.trajectory``).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from offrl.acting.episode import finite, reported_success, returned, stepped
from offrl.robomimic.configs import is_robosuite
from offrl.tree import gather, merge

_IMAGE = re.compile(r".*_(image|depth|segmentation_(instance|class|element))")


def blind(env_args: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``env_args`` of the same environment without cameras among its observations."""
    without = {"use_camera_obs": False, "has_offscreen_renderer": False}
    return merge(env_args, {"env_kwargs": without if is_robosuite(env_args) else {}})


class Moment(NamedTuple):
    """A recorded state, as the simulator sees it."""

    obs: dict[str, np.ndarray]
    reward: float  # of the action that led here
    success: bool


def play_states(env: Any, demo: Mapping[str, Any]) -> Iterator[Moment]:
    """Visit the ``T`` recorded states and the state after the last action: ``T + 1`` moments.
    Rewards and next observations of the demonstration are those of all but the first moment."""

    def moment(obs: Any, reward: Any) -> Moment:
        return Moment(obs, finite(reward), bool(reported_success(env.is_success()["task"])))

    for obs in visited(env, demo):
        yield moment(obs, env.get_reward())
    yield moment(*stepped(env.step(demo["actions"][-1]))[:2])


def observed(
    env: Any,
    demo: Mapping[str, Any],
    shaped: bool = False,
    done: str | None = None,
    next_obs: bool = False,
) -> dict[str, Any]:
    """Add to a demonstration the cameras' images in its states, and arrays that it lacks.

    shaped: replace recorded rewards by the environment's; missing ones are always added.
    done: where ``dones`` are 1: at ``success``, at the ``end`` or at ``both``; ``None``: as
        recorded, or at success if they were not.
    next_obs: add the observations after each action, even if none were recorded.
    """
    moments = list(play_states(env, demo))
    obs = gather(np.stack, [moment.obs for moment in moments])
    for key, seen in obs.items():
        recorded = None if is_image(key) else demo.get(f"obs/{key}")
        if recorded is not None:
            obs[key] = np.concatenate([recorded, seen[-1:].astype(recorded.dtype)])
    played = {**demo, **{f"obs/{key}": rows[:-1] for key, rows in obs.items()}}
    if next_obs or any(key.startswith("next_obs/") for key in demo):
        new = {f"next_obs/{key}": rows[1:] for key, rows in obs.items()}
        played |= {k: v for k, v in new.items() if k not in demo or is_image(k)}
    after = moments[1:]
    if shaped or "rewards" not in demo:
        played["rewards"] = np.array([moment.reward for moment in after])
    if done or "dones" not in demo:
        dones = np.array([moment.success and done != "end" for moment in after], np.float32)
        dones[-1] = max(dones[-1], done in ("end", "both"))
        played["dones"] = dones
    return played


def is_image(key: str) -> bool:
    """Say whether an observation is a camera's, by its name."""
    return _IMAGE.fullmatch(key) is not None


def film_states(
    env: Any, demo: Mapping[str, Any], cameras: Sequence[str] = (), size: int | None = None
) -> Iterator[np.ndarray]:
    """Yield a frame ``[H, W, 3]`` of each recorded state, with the cameras' images side by side."""
    for _ in visited(env, demo):
        yield frame(env, cameras, size)


class ActionReplay:
    """Repeats a demonstration's actions from its first state or, without states, by its seed.

    ``divergence`` ``[T]`` is, before each action, the largest difference between recorded and
    replayed positions and velocities (or observations, without states).
    """

    def __init__(self, env: Any, demo: Mapping[str, Any]):
        self.env, self.demo = env, demo
        self.divergence: list[float] = []
        self.success: bool | None = None  # ``None``: not reported

    def __iter__(self) -> Iterator[int]:
        """Yield the number of each step, with the environment in the state before it."""
        if "states" in self.demo and hasattr(self.env, "reset_to"):
            obs = next(visited(self.env, self.demo))
        elif "seed" in self.demo:
            obs, _ = returned(self.env.reset(seed=int(self.demo["seed"])), "reset")
        else:
            raise ValueError("no states and no attribute seed say where it begins; record one")
        for step, action in enumerate(self.demo["actions"]):
            if "states" in self.demo and hasattr(self.env, "get_state"):
                recorded, replayed = self.demo["states"][step], self.env.get_state()["states"]
                gaps = [np.abs(recorded - replayed)[1:].max()]  # the first is the time
            else:
                pairs = [(self.demo.get(f"obs/{key}"), value) for key, value in obs.items()]
                gaps = [np.abs(a[step] - b).max() for a, b in pairs if a is not None]
            self.divergence.append(float(max(gaps, default=np.nan)))
            yield step
            obs, *_ = stepped(self.env.step(action))
            said = reported_success(self.env.is_success()["task"])
            self.success = self.success if said is None else bool(self.success or said)

    def film(self, cameras: Sequence[str] = (), size: int | None = None) -> Iterator[np.ndarray]:
        """Yield a frame ``[H, W, 3]`` before each action."""
        for _ in self:
            yield frame(self.env, cameras, size)


def frame(env: Any, cameras: Sequence[str] = (), size: int | None = None) -> np.ndarray:
    """Render the cameras' images side by side; without cameras, the environment's own."""
    options = {} if size is None else {"size": size}
    if not cameras:
        return env.render(**options)
    return np.concatenate([env.render(camera, **options) for camera in cameras], axis=1)


def visited(env: Any, demo: Mapping[str, Any]) -> Iterator[Any]:
    """Put the simulator into each recorded state, and yield the observation there."""
    scene = {"model": demo["model_file"]} if len(demo["states"]) else {}  # first state only
    for state in demo["states"]:
        yield env.reset_to({"states": state, **scene})
        scene = {}
