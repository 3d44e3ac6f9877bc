"""gymnasium's environments, made by name or given as objects."""

import logging
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from offrl.acting.episode import RETURNS, Misfit, describe, reported_success, returned, stepped
from offrl.envs.tasks import maybe_metaworlds, tasks_of
from offrl.registry import ENVS, did_you_mean

log = logging.getLogger(__name__)

# The extras that gymnasium's own environments need, by their modules.
EXTRAS = {
    "gymnasium.envs.box2d": "box2d",
    "gymnasium.envs.classic_control": "classic",
    "gymnasium.envs.toy_text": "classic",
}


def close(env: Any, name: str) -> None:
    """Close an environment; log a warning if that fails, as its results are still valid."""
    try:
        env.close()
    except Exception as error:
        log.warning(f"{name} could not be closed: {describe(error)}")


def name_of(env: Any) -> str:
    """Return the registered name of an environment or a vector of them, or its class's."""
    return env.spec.id if env.spec else type(env.unwrapped).__name__


ResetValues = tuple[dict[str, np.ndarray], dict[str, Any]]  # observation, info
#: Observation, reward, terminated, truncated, info.
StepValues = tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]


class GymnasiumAdapter(gymnasium.Wrapper):
    """Adds offrl's extensions of gymnasium's API: dict observations, success, ``env_args``.

    A plain vector becomes the observation ``flat``, as in robomimic. Success is ``is_success`` or
    ``success`` in ``info``; without these it is unknown.
    """

    plain_name = "flat"  #: The name of an observation that has none.
    wrappers: list[Any] = []  # that ``wrapped`` has put around the inner environment

    def __init__(
        self, env: gymnasium.Env, env_name: str, env_kwargs: dict[str, Any], kind: int | str = 2
    ):
        super().__init__(env)
        self._args: dict[str, Any] = {"env_name": env_name, "env_version": gymnasium.__version__}
        self._args |= {"type": kind, "env_kwargs": env_kwargs}
        self._success: bool | None = None  # unknown
        self._name_observations()

    def _name_observations(self) -> None:
        space = self.env.observation_space
        if not isinstance(space, gymnasium.spaces.Dict):
            space = gymnasium.spaces.Dict({self.plain_name: space})
        self.observation_space = space

    def wrap(self, update_fn: Callable[..., gymnasium.Env], **kwargs: Any) -> None:
        """Replace the inner environment by ``update_fn(env, **kwargs)``, unless ``None``."""
        self.env = update_fn(self.env, **kwargs) or self.env
        self._name_observations()

    def reset(self, **kwargs: Any) -> ResetValues:
        obs, info = returned(self.env.reset(**kwargs), "reset")
        self._success = None if self._success is None else False
        return self._as_dict(obs), info

    def step(self, action: Any) -> StepValues:
        try:
            obs, reward, terminated, truncated, info = stepped(self.env.step(action))
        except ValueError as error:
            if "to unpack (expected 5" not in str(error):
                raise
            # One of gymnasium's own wrappers failed to unpack the values.
            raise Misfit(f"the environment's step: {error}: {', '.join(RETURNS['step'])}") from None
        self._success = reported_success(info.get("is_success", info.get("success")))
        return self._as_dict(obs), reward, terminated, truncated, info

    def is_success(self) -> dict[str, bool | None]:
        return {"task": self._success}

    def close(self) -> None:
        close(self.env, self._args["env_name"])

    def serialize(self) -> dict[str, Any]:
        return self._args | ({"wrappers": self.wrappers} if self.wrappers else {})

    def render(self) -> Any:
        try:
            return super().render()
        except NotImplementedError:
            raise ValueError(
                f"{self._args['env_name']} has no render; write one that gives [H, W, 3] of uint8"
            ) from None
        except gymnasium.error.DependencyNotInstalled:
            name = self._args["env_name"]
            raise ImportError(f"to draw {name}: {_missing(name)}") from None

    def _as_dict(self, obs: Any) -> dict[str, np.ndarray]:
        obs = obs if isinstance(obs, dict) else {self.plain_name: obs}
        return {key: _array(value) for key, value in obs.items()}


def _array(value: Any) -> np.ndarray:
    try:
        return np.asanyarray(value)  # masks stay
    except ValueError:  # parts of unequal shapes, as in a Tuple, which networks cannot see
        whole = np.empty((), dtype=object)
        whole[()] = value
        return whole


@ENVS.register("gymnasium")
class GymnasiumEnv(GymnasiumAdapter):
    """``gymnasium.make(env_name, **env_kwargs)``. A user's own environment is named
    ``"module:Id"``: gymnasium imports the module, which registers it."""

    kind: int | str = 2  # in ``env_args``

    def __init__(self, env_name: str, env_kwargs: dict[str, Any]):
        super().__init__(self._make(env_name, **env_kwargs), env_name, env_kwargs, self.kind)

    def _make(self, env_name: str, **env_kwargs: Any) -> gymnasium.Env:
        try:
            try:
                return gymnasium.make(env_name, **({"render_mode": "rgb_array"} | env_kwargs))
            except TypeError:  # it cannot render
                return gymnasium.make(env_name, **env_kwargs)
        except gymnasium.error.DependencyNotInstalled as error:
            raise ValueError(f"{env_name}: {_missing(env_name)} ({error})") from None
        except (gymnasium.error.Error, ModuleNotFoundError) as error:
            name = env_name.rsplit(":", 1)[-1]
            names = [*gymnasium.registry, *tasks_of("metaworld"), *tasks_of("robosuite")]
            hint = maybe_metaworlds(name) or ("" if name in names else did_you_mean(name, names))
            raise ValueError(
                f"gymnasium does not make {env_name!r}: {error}{hint} One of your own is named "
                '"module:Id", where the module registers it and can be imported'
            ) from None


def _missing(env_name: str) -> str:
    """Name the package to install for a known environment that cannot be imported."""
    spec = gymnasium.registry.get(env_name.rsplit(":", 1)[-1])
    module = str(spec and spec.entry_point)
    extra = next((extra for name, extra in EXTRAS.items() if module.startswith(name)), None)
    return f"pip install 'offrl[{extra}]'" if extra else "install what it needs"
