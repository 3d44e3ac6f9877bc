"""Wrappers around environments: those that a config names (``train.online.wrappers``), and an
adapter of objects with ``reset`` and ``step`` to gymnasium's API."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding

from offrl.acting.episode import Misfit, as_flag, describe
from offrl.envs.gymnasium import GymnasiumAdapter, GymnasiumEnv, ResetValues, StepValues, name_of
from offrl.modules import class_named
from offrl.specs import RGB


class Adapted(gymnasium.Env):
    """Adapts a user's object with ``reset`` and ``step``, optionally ``close`` and ``render``.

    Its ``reset`` returns the observation, or observation and ``info``. Its ``step`` returns
    gymnasium's five values, or four: then the third is ``done``, and ``truncated`` (or
    ``TimeLimit.truncated``) in ``info`` is true if the episode was cut off. The spaces are those of
    the object, or of its ``env``, which is seeded. ``ValueError`` if one is missing.
    """

    def __init__(self, own: Any):
        if isinstance(own, type) or not (hasattr(own, "reset") and hasattr(own, "step")):
            raise ValueError(f"{own!r} is no environment; give an object with reset and step")
        self._own, self._inner = own, getattr(own, "env", None)
        for name in ("observation_space", "action_space"):
            space = getattr(own, name, None) or getattr(self._inner, name, None)
            if not isinstance(space, gymnasium.Space):
                raise ValueError(
                    f"{type(own).__name__}: it has no {name}; set self.{name} to one of "
                    "gymnasium.spaces, or self.env to the environment that it wraps"
                )
            setattr(self, name, space)
        self.spec = getattr(self._inner, "spec", None)
        self.render_mode = getattr(own, "render_mode", getattr(self._inner, "render_mode", None))
        self._is_seeded = "seed" in inspect.signature(own.reset).parameters

    def reset(self, *, seed: int | None = None, options: Any = None) -> ResetValues:
        if seed is not None and not self._is_seeded and isinstance(self._inner, gymnasium.Env):
            self._inner.unwrapped.np_random = seeding.np_random(seed)[0]
        values = self._own.reset(seed=seed) if self._is_seeded else self._own.reset()
        is_pair = isinstance(values, tuple) and len(values) == 2 and isinstance(values[1], Mapping)
        return values if is_pair else (values, {})

    def step(self, action: Any) -> StepValues:
        values = self._own.step(action)
        if not isinstance(values, tuple) or len(values) != 4:
            return values  # offrl checks them later
        obs, reward, done, info = values
        info = {} if info is None else info
        if not isinstance(info, Mapping):
            raise Misfit("the environment's step: the last of its four values is no mapping")
        cut = info.get("truncated", info.get("TimeLimit.truncated", False))
        over, cut = as_flag(done, "done"), as_flag(cut, "truncated")
        return obs, reward, over and not cut, cut, dict(info)

    def render(self) -> Any:
        return getattr(self._own, "render", getattr(self._inner, "render", super().render))()

    def close(self) -> None:
        getattr(self._own, "close", lambda: None)()


def adapted(env: Any) -> gymnasium.Env:
    """Add offrl's methods to a user's environment, or to an object that ``Adapted`` takes."""
    if not isinstance(env, gymnasium.Env):
        return GymnasiumAdapter(Adapted(env), type(env).__name__, {})
    if env.has_wrapper_attr("is_success"):
        return env
    return GymnasiumAdapter(env, name_of(env), {})


def wrapped(env: gymnasium.Env, wrappers: Sequence[str | Mapping[str, Any]]) -> gymnasium.Env:
    """Put wrappers around an environment, the first one innermost. They are put inside the adapter
    of gymnasium's environments, and so see unnamed observations; around others they are outermost.

    wrappers: import paths, or ``{"wrapper": path, "kwargs": {...}}`` with arguments. Lists among
        the arguments are passed as tuples.
    Raises ``ValueError`` if a path is no subclass of gymnasium's ``Wrapper``, before it is called,
    or if the wrapper cannot be made around the environment.
    """
    if not wrappers:
        return env
    where = "train.online.wrappers"
    within = type(env) in (GymnasiumAdapter, GymnasiumEnv, _OuterWrappers)
    whole: Any = env if within else _OuterWrappers(env)
    whole.wrappers = [*whole.wrappers, *wrappers]
    for said in wrappers:
        said = {"wrapper": said} if isinstance(said, str) else said
        path, kwargs = str(said.get("wrapper")), dict(said.get("kwargs") or {})
        kwargs = {k: tuple(x) if isinstance(x, list) else x for k, x in kwargs.items()}
        kind = class_named(path, gymnasium.Wrapper, where)
        try:
            whole.wrap(kind, **kwargs)
        except Exception as error:
            raise ValueError(f"{where}: {path} does not fit: {describe(error)}") from error
    return whole


class _OuterWrappers(gymnasium.Wrapper):
    """Wraps an environment with dict observations in a user's wrappers, and keeps its methods."""

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
    """Converts observations to images ``[H, W, C]`` of uint8, from ``[C, H, W]`` or ``[H, W]``, or
    from real numbers between the bounds of their space.

    keys: the observations to convert; an unnamed one is ``flat``.
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
    """Make the entry of ``train.online.wrappers`` for ``Images``."""
    return {"wrapper": f"{Images.__module__}.{Images.__name__}", "kwargs": {"keys": [*keys]}}
