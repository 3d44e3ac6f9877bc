"""Environments with the methods of robomimic's, for scripts that call these."""

import json
from collections.abc import Mapping
from copy import deepcopy
from inspect import signature
from typing import Any

import gymnasium
import numpy as np

from offrl.acting.episode import finite, stepped
from offrl.envs.gymnasium import GymnasiumAdapter, name_of
from offrl.envs.rendering import check_window


class RobomimicFace:
    """An environment of ``make_env``, or any of gymnasium's, as robomimic's scripts call it::

        env = RobomimicFace(make_env(env_args))
        obs = env.reset()
        obs, reward, done, info = env.step(action)

    ``done`` is true if ``terminated`` or ``truncated`` is. All other attributes are the
    environment's. Images are uint8 ``[H, W, C]``, as stored in datasets and taken by policies.
    """

    rollout_exceptions: tuple[type[Exception], ...] = ()

    def __init__(self, env: gymnasium.Env):
        self._success: Any = None  # a user's own method, which takes precedence
        if env.has_wrapper_attr("is_success"):
            self._success = env.get_wrapper_attr("is_success")
        if not env.has_wrapper_attr("serialize"):  # not one of offrl's
            env = GymnasiumAdapter(env, name_of(env), dict(env.spec.kwargs) if env.spec else {})
        self._env = env
        self._obs: dict[str, np.ndarray] | None = None
        self._reward, self._done, self._shows = 0.0, False, False

    def __getattr__(self, name: str) -> Any:
        if name == "_env":  # not set yet while it is copied
            raise AttributeError(name)
        return self._env.get_wrapper_attr(name)

    def __repr__(self) -> str:
        kwargs = json.dumps(self.serialize()["env_kwargs"], sort_keys=True, indent=4, default=str)
        return f"{self.name}\n{kwargs}"

    def reset(self, seed: int | None = None) -> dict[str, np.ndarray]:
        """Begin an episode, seeded if ``seed`` is given, and return its first observation."""
        obs, _ = self._env.reset(seed=seed)
        return self._remember(obs)

    def step(self, action: Any) -> tuple[dict[str, np.ndarray], float, bool, dict[str, Any]]:
        """Make a step; return observation, reward, done and info."""
        obs, reward, terminated, truncated, info = stepped(self._env.step(action))
        self._remember(obs, reward, terminated or truncated)
        return obs, self._reward, self._done, info

    def get_observation(self) -> dict[str, np.ndarray]:
        """Return the last observation of ``reset``, ``reset_to`` or ``step``."""
        if self._obs is None:
            raise ValueError(f"{self.name}: no observation yet; call reset() first")
        return dict(self._obs)

    def get_reward(self) -> float:
        """Return the reward of the present state, or else that of the last step."""
        if self._env.has_wrapper_attr("get_reward"):
            return finite(self._env.get_wrapper_attr("get_reward")())
        return self._reward

    def is_done(self) -> bool:
        """Say whether the last step ended the episode."""
        return self._done

    def is_success(self) -> dict[str, bool]:
        """Say whether the task is solved now; false if the environment reports no success."""
        said = (self._success or self._method("is_success"))()
        return {name: bool(is_so) for name, is_so in said.items()}

    def _remember(self, obs: Any, reward: float = 0.0, done: bool = False) -> dict[str, np.ndarray]:
        self._obs, self._reward, self._done = obs, reward, done
        return obs

    def get_state(self) -> dict[str, Any]:
        """Return the simulator's state, for ``reset_to``."""
        return self._method("get_state")()

    def reset_to(self, state: Mapping[str, Any]) -> dict[str, np.ndarray] | None:
        """Set a state of ``get_state`` or of a dataset, and its ``goal`` if it has one. Returns the
        observation, or ``None`` for a ``goal`` alone."""
        if "goal" in state:
            self.set_goal(**state["goal"])
        rest = {key: value for key, value in state.items() if key != "goal"}
        return self._remember(self._method("reset_to")(rest)) if rest else None

    def get_goal(self) -> Mapping[str, np.ndarray]:
        """Return the goal ``{key: [...]}`` of the episode."""
        return self._method("get_goal")()

    def set_goal(self, **goal: Any) -> Any:
        """Set the goal, in environments that support it."""
        return self._method("set_goal")(**goal)

    def _method(self, name: str) -> Any:
        if not self._env.has_wrapper_attr(name):
            kind = type(self._env.unwrapped).__name__
            raise NotImplementedError(f"{kind} has no {name}, which not every simulator gives")
        return self._env.get_wrapper_attr(name)

    def render(
        self,
        mode: str = "human",
        height: int | None = None,
        width: int | None = None,
        camera_name: str | None = None,
    ) -> np.ndarray | None:
        """Render an image ``[height, width, 3]`` (uint8) with ``mode="rgb_array"``; with
        ``"human"`` show it in a window. Only robosuite's tasks take a size and a camera."""
        if mode not in ("human", "rgb_array"):
            raise ValueError(f'mode {mode!r}: "human" and "rgb_array" are known')
        given: dict[str, Any] = {"camera": camera_name} if camera_name else {}
        if height or width:
            given["size"] = (height or width, width or height)
        render = self._env.unwrapped.render
        options = {k: v for k, v in given.items() if k in signature(render).parameters}
        image = render(**options) if options else self._env.render()
        if not isinstance(image, np.ndarray):
            raise ValueError(f'{self.name} gives no image: use render_mode="rgb_array" or make_env')
        if mode == "rgb_array":
            return image
        if not self._shows:
            check_window()
            self._shows = True
        import cv2

        cv2.imshow(self.name, image[..., ::-1])
        cv2.waitKey(1)
        return None

    @property
    def name(self) -> str:
        return self.serialize()["env_name"]

    @property
    def type(self) -> int | str:
        """robomimic's number of the simulator, or offrl's name of it."""
        return self.serialize()["type"]

    @property
    def version(self) -> str | None:
        return self.serialize().get("env_version")

    @property
    def action_dimension(self) -> int:
        """The number of dimensions of an action, or of discrete actions."""
        return int(gymnasium.spaces.flatdim(self._env.action_space))

    @property
    def base_env(self) -> Any:
        """The simulator's own environment: robosuite's, or gymnasium's without wrappers."""
        if self._env.has_wrapper_attr("base_env"):
            return self._env.get_wrapper_attr("base_env")
        return self._env.unwrapped

    env = base_env  # as robomimic's environments hold it

    def serialize(self) -> dict[str, Any]:
        """Return the ``env_args`` that ``make_env`` takes."""
        return deepcopy(self._method("serialize")())
