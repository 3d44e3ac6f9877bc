"""Wrappers around an environment that a config names (``train.online.wrappers``)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from offrl.acting.episode import describe
from offrl.envs.gymnasium import GymnasiumAdapter, GymnasiumEnv
from offrl.modules import class_named
from offrl.specs import RGB


def wrapped(env: gymnasium.Env, wrappers: Sequence[str | Mapping[str, Any]]) -> gymnasium.Env:
    """Put wrappers around an environment, the first one innermost. In gymnasium's environments they
    come before observations get names; around others, which show dicts, they are outermost.

    wrappers: import paths, or ``{"wrapper": path, "kwargs": {...}}`` with arguments. Lists among
        the arguments are passed as tuples.
    Raises ``ValueError`` for anything but a subclass of gymnasium's ``Wrapper``, before it is
    called, and for a wrapper that does not fit around the environment.
    """
    if not wrappers:
        return env
    where = "train.online.wrappers"
    within = type(env) in (GymnasiumAdapter, GymnasiumEnv, _Outside)
    whole: Any = env if within else _Outside(env)
    whole.wrappers = [*whole.wrappers, *wrappers]
    for said in wrappers:
        said = {"wrapper": said} if isinstance(said, str) else said
        path, kwargs = str(said.get("wrapper")), dict(said.get("kwargs") or {})
        kwargs = {k: tuple(x) if isinstance(x, list) else x for k, x in kwargs.items()}
        kind = class_named(path, gymnasium.Wrapper, where)
        try:
            whole.wrap(kind, **kwargs)
        except Exception as error:
            raise ValueError(
                f"{where}: {path} cannot be put around it: {describe(error)}"
            ) from error
    return whole


class _Outside(gymnasium.Wrapper):
    """Holds wrappers around an environment that shows dicts by itself, and keeps its methods."""

    wrappers: Sequence[Any] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(name)
        return self.env.get_wrapper_attr(name)

    def wrap(self, update_fn: Callable[..., gymnasium.Env], **kwargs: Any) -> None:
        self.env = update_fn(self.env, **kwargs)

    def serialize(self) -> dict[str, Any]:
        return self.env.get_wrapper_attr("serialize")() | {"wrappers": self.wrappers}


class Images(gymnasium.ObservationWrapper):
    """Turns observations into images that networks take, ``[H, W, C]`` of uint8. They may have the
    form ``[C, H, W]`` or ``[H, W]``, and be real numbers between the bounds of their space.

    keys: the observations to turn; one without a name is ``flat``.
    """

    def __init__(self, env: gymnasium.Env, keys: Sequence[str]):
        super().__init__(env)
        space: Any = env.observation_space
        is_dict = isinstance(space, spaces.Dict)
        self._spaces: dict[str, Any] = space.spaces if is_dict else {"flat": space}
        self._keys = keys
        boxes = {key: self._image(key, self._spaces[key].low) for key in keys}
        turned = {key: spaces.Box(0, 255, x.shape, np.uint8) for key, x in boxes.items()}
        self.observation_space = spaces.Dict({**self._spaces, **turned})

    def observation(self, observation: Any) -> dict[str, Any]:
        named = observation if isinstance(observation, Mapping) else {"flat": observation}
        return {**named, **{key: self._image(key, named[key]) for key in self._keys}}

    def _image(self, key: str, values: np.ndarray) -> np.ndarray:
        space = self._spaces[key]
        if space.dtype != np.uint8:
            values = np.rint((values - space.low) / (space.high - space.low) * 255)
        image = values.astype(np.uint8)
        if image.ndim == 2:
            return image[..., None]
        return np.moveaxis(image, 0, -1) if has_channels_first(space) else image


def has_channels_first(space: spaces.Space) -> bool:
    """Say whether the shape of a space is that of images ``[C, H, W]``."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 3:
        return False
    return space.shape[0] in RGB.CHANNELS and space.shape[-1] not in RGB.CHANNELS


def images(keys: Sequence[str]) -> dict[str, Any]:
    """Make the entry of ``train.online.wrappers`` that turns observations into images."""
    return {"wrapper": f"{Images.__module__}.{Images.__name__}", "kwargs": {"keys": [*keys]}}
