"""Turns classes that are nearly environments into gymnasium's environments."""

import inspect
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.utils import seeding

from offrl.acting.episode import Misfit, truth
from offrl.envs.gymnasium import GymnasiumAdapter, ResetValues, StepValues, name_of


class Adapted(gymnasium.Env):
    """Adapts an object of a user's own with ``reset`` and ``step``, and perhaps ``close`` and
    ``render``.

    Its ``reset`` gives the observation alone, or an observation and ``info``. Its ``step`` gives
    gymnasium's five values, or four: then the third says whether the episode is over, and
    ``truncated`` (or ``TimeLimit.truncated``) in ``info`` says whether it was cut off. The spaces
    are those of the object, or of its ``env``, which is seeded as well. Raises ``ValueError`` for
    an object without methods or spaces.
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
            return values  # offrl checks them as it does for every environment
        obs, reward, done, info = values
        info = {} if info is None else info
        if not isinstance(info, Mapping):
            raise Misfit("the environment's step: the last of its four values is no mapping")
        cut = info.get("truncated", info.get("TimeLimit.truncated", False))
        over, cut = truth(done, "done"), truth(cut, "truncated")
        return obs, reward, over and not cut, cut, dict(info)

    def render(self) -> Any:
        return getattr(self._own, "render", getattr(self._inner, "render", super().render))()

    def close(self) -> None:
        getattr(self._own, "close", lambda: None)()


def adapted(env: Any) -> gymnasium.Env:
    """Give an environment of a user's own, or an object that is nearly one, offrl's methods."""
    if not isinstance(env, gymnasium.Env):
        return GymnasiumAdapter(Adapted(env), type(env).__name__, {})
    if env.has_wrapper_attr("is_success"):
        return env
    return GymnasiumAdapter(env, name_of(env), {})
