"""Recorded demonstrations, played back in the simulator: by its states, or by their actions.

A ``demo`` is a trajectory as data holds it (``offrl.data.demos.Demos.trajectory``).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from offrl.acting.episode import finite, returned, said_success, stepped
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
    """Visit the ``T`` recorded states and that to which the last action leads: ``T + 1`` moments.

    The rewards of a demonstration are those of all but the first, its next observations as well.
    """

    def moment(obs: Any, reward: Any) -> Moment:
        return Moment(obs, finite(reward), bool(said_success(env.is_success()["task"])))

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
    """Add to a demonstration all that cameras see in its states, and what was not recorded.

    shaped: rewards are the environment's, else so only where none were recorded.
    done: where ``dones`` are 1, at ``success``, at the ``end`` or at ``both``; ``None`` for the
        recorded ones, where there are any, else at success.
    next_obs: the observations after each action as well, as they are where some were recorded.
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
    """Say whether an observation, by its name, is what a camera sees."""
    return _IMAGE.fullmatch(key) is not None


def film_states(
    env: Any, demo: Mapping[str, Any], cameras: Sequence[str] = (), size: int | None = None
) -> Iterator[np.ndarray]:
    """Yield a frame ``[H, W, 3]`` of each recorded state: what the cameras see, side by side."""
    for _ in visited(env, demo):
        yield frame(env, cameras, size)


class ActionReplay:
    """Repeats a demonstration's actions from its first state or, without states, by its seed.

    ``divergence`` ``[T]`` is, before each action, the largest difference between any position or
    velocity recorded and replayed (of observations, where there are no states).
    """

    def __init__(self, env: Any, demo: Mapping[str, Any]):
        self.env, self.demo = env, demo
        self.divergence: list[float] = []
        self.success: bool | None = None  # where nothing is said of it

    def __iter__(self) -> Iterator[int]:
        """Yield the step that comes next, once the environment is there."""
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
            said = said_success(self.env.is_success()["task"])
            self.success = self.success if said is None else bool(self.success or said)

    def film(self, cameras: Sequence[str] = (), size: int | None = None) -> Iterator[np.ndarray]:
        """Yield a frame ``[H, W, 3]`` before each action."""
        for _ in self:
            yield frame(self.env, cameras, size)


def frame(env: Any, cameras: Sequence[str] = (), size: int | None = None) -> np.ndarray:
    """Render what cameras see now, side by side; without any, the environment's own picture."""
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
