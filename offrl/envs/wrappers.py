"""Wrappers around an environment that a config names (``train.online.wrappers``)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from offrl.acting.episode import describe
from offrl.envs.gymnasium import GymnasiumAdapter
from offrl.modules import class_named
from offrl.specs import RGB


def wrapped(env: gymnasium.Env, wrappers: Sequence[str | Mapping[str, Any]]) -> gymnasium.Env:
    """An environment in wrappers, the first one innermost. Around gymnasium's environments they are
    put before observations get names; around others, which show dicts, on the outside.

    wrappers: import paths, or ``{"wrapper": path, "kwargs": {...}}`` with arguments, of which
        lists are given as tuples.
    Raises ``ValueError`` for what is no gymnasium ``Wrapper``, before it is called, and for what
    does not fit around the environment.
    """
    where = "train.online.wrappers"
    env = env if isinstance(env, (GymnasiumAdapter, _Outside)) else _Outside(env)
    for said in wrappers:
        said = {"wrapper": said} if isinstance(said, str) else said
        path, kwargs = str(said.get("wrapper")), _tuples(said.get("kwargs") or {})
        kind = class_named(path, gymnasium.Wrapper, where)
        try:
            env.wrap(kind, **kwargs)
        except Exception as error:
            raise ValueError(
                f"{where}: {path} cannot be put around it: {describe(error)}"
            ) from error
    env.wrappers = [*env.wrappers, *wrappers]
    return env


class _Outside(gymnasium.Wrapper):
    """Wrappers around an environment that shows dicts by itself, with all that it can do."""

    wrappers: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(name)
        return self.env.get_wrapper_attr(name)

    def wrap(self, update_fn: Callable[..., gymnasium.Env], **kwargs: Any) -> None:
        self.env = update_fn(self.env, **kwargs)

    def serialize(self) -> dict[str, Any]:
        return self.env.get_wrapper_attr("serialize")() | {"wrappers": self.wrappers}


class ChannelsLast(gymnasium.ObservationWrapper):
    """Images ``[C, H, W]`` of uint8, also in a dict, as ``[H, W, C]``, which networks take."""

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self.observation_space = self._turned(env.observation_space)

    def _turned(self, space: gymnasium.Space) -> gymnasium.Space:
        if isinstance(space, gymnasium.spaces.Dict):
            return gymnasium.spaces.Dict({key: self._turned(x) for key, x in space.items()})
        if not has_channels_first(space):
            return space
        low, high = (np.moveaxis(x, 0, -1) for x in (space.low, space.high))
        return gymnasium.spaces.Box(low, high, dtype=np.uint8)

    def observation(self, observation: Any) -> Any:
        space = self.env.observation_space
        if not isinstance(space, gymnasium.spaces.Dict):
            return np.moveaxis(observation, 0, -1) if has_channels_first(space) else observation
        is_first = {key: has_channels_first(x) for key, x in space.items()}
        return {k: np.moveaxis(x, 0, -1) if is_first.get(k) else x for k, x in observation.items()}


def has_channels_first(space: gymnasium.Space) -> bool:
    """Whether a space is one of images ``[C, H, W]`` of uint8."""
    is_image = space.dtype == np.uint8 and len(space.shape or ()) == 3
    return is_image and space.shape[0] in RGB.CHANNELS and space.shape[-1] not in RGB.CHANNELS


CHANNELS_LAST = f"{ChannelsLast.__module__}.{ChannelsLast.__name__}"


def _tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _tuples(x) for key, x in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value
