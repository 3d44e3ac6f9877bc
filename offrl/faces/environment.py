"""The environment that a config names, for scripts that step it themselves."""

import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np

from offrl.acting.episode import reported_success, stepped
from offrl.assembly.spaces import env_args_of, with_images
from offrl.assembly.start import Configs, complete
from offrl.envs import make_env
from offrl.envs.gymnasium import GymnasiumEnv
from offrl.envs.rendering import Screen, can_show, frame_rate
from offrl.seeding import seed_everything

log = logging.getLogger(__name__)


class Environment(gymnasium.Wrapper):
    """The environment ``experiment.env``, with gymnasium's ``reset`` and ``step``, whose
    observations are dicts of arrays.

    ``train.seed`` seeds Python, NumPy, torch, the spaces and the first episode. Episodes end as
    ``train.online`` says (``horizon``, ``terminate_on_success``).

    A subclass with ``init_env(env_info)`` is the environment of a pipeline
    (``offrl.online.Registers``) instead. It sets or returns ``env`` there, and is made with
    ``env_info``. With gymnasium's environments its ``reset()`` returns the state, and its
    ``step(action, agent_index)`` the next state, the reward, done, and info (with ``truncated``);
    for others a subclass defines these.

    cfgs: A config, nested dicts of keys that differ from the defaults, or a config file's path.
    play: Show each step in a window, where there is a display.
    """

    #: The mean return of episodes at which the task is solved and a training ends:
    #: ``train.online.solved_return``, or gymnasium's threshold. ``None``: there is none.
    env_solution: float | None

    def __init__(self, cfgs: Configs, play: bool = False):
        super().__init__(gymnasium.Env())  # a placeholder until init_env
        if not self._is_of_pipeline:
            self.play = play
        self._seed: int | None = int(np.random.randint(2**31))
        self._length = 0
        made = self.init_env(cfgs)
        self.env = made if isinstance(made, gymnasium.Env) else self.env

    def init_env(self, cfgs: Any) -> Any:
        """Make the environment. In a pipeline a subclass defines it; see above."""
        self.config = config = complete(cfgs)
        self._seed = self.seed = config.train.seed
        seed_everything(self.seed)
        env_args = env_args_of(config)
        self.env_name: str = env_args["env_name"]
        env = with_images(make_env(env_args), config)
        self.env_solution = config.train.online.solved_return
        if self.env_solution is None:
            self.env_solution = getattr(env.spec, "reward_threshold", None)
        self._seed_spaces(env)
        return env

    @property
    def _is_of_pipeline(self) -> bool:
        return type(self).init_env is not Environment.init_env

    def update_env(self, update_fn: Callable[..., gymnasium.Env], **kwargs: Any) -> None:
        """Wrap it in place, for example with one of gymnasium's wrappers:
        ``update_fn(env, **kwargs)`` gets gymnasium's own environment, if it is one, with unnamed
        observations. It may also change that in place, and return ``None``."""
        if type(self.env) is GymnasiumEnv:
            self.env.wrap(update_fn, **kwargs)
        else:
            self.env = update_fn(self.env, **kwargs) or self.env
        self._seed_spaces(self.env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode. Returns the observation and info. Without a seed, the first episode has
        the config's, and the others continue its random numbers."""
        seed, self._seed = self._seed if seed is None else seed, None
        self._length = 0
        obs, info = self.env.reset(seed=seed, options=options)
        if self._is_of_pipeline:
            return obs
        self._show()
        return obs, info

    def step(self, action: Any, agent_index: int = 0) -> Any:
        """Make a step. Returns the observation, the reward, terminated, truncated and info."""
        obs, reward, terminated, truncated, info = stepped(self.env.step(action))
        if self._is_of_pipeline:
            return obs, reward, terminated or truncated, {**info, "truncated": truncated}
        online = self.config.train.online
        self._length += 1
        succeeds = reported_success(self.is_success()["task"])
        terminated = terminated or bool(online.terminate_on_success and succeeds)
        truncated = truncated or self._length == online.horizon
        self._show()
        return obs, reward, terminated, truncated, info

    def is_success(self) -> dict[str, bool]:
        """Say whether the task is solved now, ``{"task": ...}``."""
        return self.env.get_wrapper_attr("is_success")()

    def serialize(self) -> dict[str, Any]:
        """Return the ``env_args`` of ``make_env``."""
        return self.env.get_wrapper_attr("serialize")()

    def close(self) -> None:
        if window := self.__dict__.pop("_window", None):
            window.close()
        super().close()

    def _seed_spaces(self, env: gymnasium.Env) -> None:
        env.action_space.seed(self.seed)
        env.observation_space.seed(self.seed)

    @property
    def is_shown(self) -> bool:
        """Say whether a window shows it."""
        return self._window is not None

    @cached_property
    def _window(self) -> Screen | None:
        if not self.play:
            return None
        if problem := can_show():
            log.info(problem)
            return None
        return Screen("offrl", frame_rate(self.env))

    def _show(self) -> None:
        if self._window is not None:
            frame: Any = self.env.render()
            self._window.show(frame)


class Augmented(gymnasium.ObservationWrapper):
    """An environment whose observations an agent's ``augment_state`` transforms."""

    def __init__(self, env: gymnasium.Env, augment: Callable[[Any], Any]):
        super().__init__(env)
        self._augment = augment
        shown = augment(env.observation_space.sample())
        if not isinstance(shown, Mapping):
            raise ValueError(f"augment_state gave {type(shown).__name__}, not a dict of arrays")
        spaces = {
            key: _box_like(env.observation_space, key, x)
            for key, x in shown.items()
            if not isinstance(x, tuple) and np.asarray(x).dtype.kind in "biuf"  # for networks
        }
        self.observation_space = gymnasium.spaces.Dict(spaces)

    def observation(self, observation: Any) -> Any:
        return self._augment(observation)

    def is_success(self) -> dict[str, bool]:
        return self.env.get_wrapper_attr("is_success")()


def _box_like(known: Any, key: str, value: Any) -> gymnasium.Space:
    """Return the space of an observation: the environment's, unless its form was changed."""
    value = np.asarray(value)
    if key in known.spaces and known[key].shape == value.shape and known[key].dtype == value.dtype:
        return known[key]
    low, high = (0, 1) if value.dtype == bool else (-np.inf, np.inf)
    if value.dtype.kind == "u":
        low, high = 0, np.iinfo(value.dtype).max
    return gymnasium.spaces.Box(low, high, value.shape, value.dtype)
