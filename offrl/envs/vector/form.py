"""The interface of several environments at once, and checks of their values."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.ma import MaskedArray

from offrl.acting.episode import ACTION_MASK, NOT_FINITE, REMEDY
from offrl.config.online import LONGEST_EPISODE
from offrl.envs import say_once

Batch = dict[str, np.ndarray]
# Observations that are kept even if networks do not see them.
ALSO_KEPT = (ACTION_MASK, "achieved_goal", "desired_goal")


class Stepped(NamedTuple):
    """The results of a step in N environments.

    obs: ``{key: [N, ...]}``, the observations to act on next.
    rewards: ``[N]``.
    terminated: ``[N]``, bool.
    truncated: ``[N]``, bool: time limits.
    successes: ``[N]``, int8: 1, 0, or -1 if success is not reported.
    is_step: ``[N]``, bool: false where an action had no effect because it only began an episode.
    final_obs: the last observation ``{key: [...]}`` of an episode, by environments that began the
        next.
    """

    obs: Batch
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    successes: np.ndarray
    is_step: np.ndarray
    final_obs: dict[int, Batch]

    @property
    def begins(self) -> np.ndarray:
        """``[N]``, bool: true where an episode begins with ``obs``."""
        begins = ~self.is_step
        if self.final_obs:
            begins[list(self.final_obs)] = True
        return begins


class VectorEnv(ABC):
    """N environments that are stepped together, and begin their next episodes by themselves.

    Observations, actions and rewards are arrays with one row per environment. It never writes to
    arrays that it has returned. Errors are ``ValueError`` with the names of the environment and the
    observation, and the environment's number; after one it can only be closed.
    """

    num_envs: int
    observation_space: gymnasium.spaces.Dict  #: That of one environment.
    action_space: Any  #: That of one environment, a ``gymnasium.Space``.
    env_args: dict[str, Any]  #: Those of one environment, see ``make_env``.
    num_restarts = 0  #: The number of environments that hung and were restarted.

    @abstractmethod
    def reset(self) -> Batch:
        """Begin the next episode in each environment. Returns observations ``{key: [N, ...]}``."""

    @abstractmethod
    def step(self, actions: Any) -> Stepped:
        """Step with actions ``[N, A]``, or integers ``[N]`` for a ``Discrete`` space, unclipped."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the state for ``restore``: nested dicts of arrays, numbers and strings. Raises
        ``ValueError`` if the environments cannot be stored."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> Batch:
        """Continue from a ``state()`` with the same bits. Returns the observations there."""

    @abstractmethod
    def close(self) -> None:
        """Close the environments, and end processes."""


class Contract:
    """Checks that observations and actions of N environments fit their spaces.

    numbers: of the environments, for messages.
    obs_keys: the observations to keep; ``None``: all.
    """

    def __init__(
        self,
        env_name: str,
        numbers: Sequence[int],
        observation_space: gymnasium.Space,
        action_space: Any,
        obs_keys: Sequence[str] | None = None,
    ):
        self.env_name, self._numbers = env_name, numbers
        if not isinstance(observation_space, gymnasium.spaces.Dict):
            observation_space = gymnasium.spaces.Dict({"flat": observation_space})
        missing = sorted({*(obs_keys or ())} - {*observation_space})
        if missing:
            raise ValueError(
                f"observation.modalities.obs: {env_name} shows no {missing[0]!r}; it shows "
                + ", ".join(observation_space)
            )
        spaces: dict[str, Any] = {}
        for key, space in observation_space.items():
            if key in (obs_keys or ()) or _is_of_numbers(space):
                if not obs_keys or key in (*obs_keys, *ALSO_KEPT):
                    spaces[key] = space
            elif not obs_keys:
                say_once(
                    logging.INFO,
                    f"{env_name}: its observation {key!r} is {space}, which no network sees; it is "
                    "left out (train.online.wrappers may make numbers of it)",
                )
        if not spaces:
            raise ValueError(
                f"{env_name}: its observations are {observation_space}, of which networks see "
                "none; make numbers of them with a wrapper (train.online.wrappers)"
            )
        self._spaces, self.observation_space = spaces, gymnasium.spaces.Dict(spaces)
        self.action_space = action_space
        for what, space in {**spaces, "action": action_space}.items():
            if not _is_of_numbers(space):
                raise ValueError(f"{env_name}: {what!r} is {space}, not an array of numbers")
            if not isinstance(what, str) or "." in what:  # networks cannot have such names
                raise ValueError(f"{env_name}: rename observation {what!r} to text without a dot")
        self._actions_shape = (len(numbers), *action_space.shape)
        self._floats = [key for key, space in spaces.items() if space.dtype.kind == "f"]

    def named(self, row: int) -> str:
        return f"{self.env_name}, environment {self._numbers[row]}"

    def observed(self, obs: Any, lead: tuple[int, ...] = ()) -> Batch:
        """Copy the observations to keep after checking shapes and types. lead: ``(N,)`` if they are
        those of all environments."""
        obs = obs if isinstance(obs, Mapping) else {"flat": obs}
        who = f"{self.env_name}, all environments: " if lead else ""
        copies = {}
        for key, space in self._spaces.items():
            if key not in obs:
                raise ValueError(f"{who}no observation {key!r}; there are {', '.join(obs)}")
            value = np.asarray(obs[key])
            if isinstance(obs[key], MaskedArray) and np.ma.is_masked(obs[key]):
                raise ValueError(f"{who}the observation {key!r} is masked in part; give numbers")
            if value.shape != lead + space.shape:
                raise ValueError(
                    f"{who}the observation {key!r} has the shape {[*value.shape]}, and its space "
                    f"says {[*lead, *space.shape]}"
                )
            if value.dtype.kind != space.dtype.kind:
                raise ValueError(f"{who}observation {key!r} is {value.dtype}, not {space.dtype}")
            copies[key] = np.array(value, dtype=space.dtype)
        return copies

    def check_numbers(self, obs: Batch, rewards: np.ndarray | None = None) -> None:
        """Refuse NaN and infinity in observations and rewards."""
        if key := self._not_finite(obs):
            raise ValueError(
                f"{self._culprit(obs[key])}: the observation {key!r} is {NOT_FINITE}; {REMEDY}"
            )
        if rewards is not None and not np.isfinite(rewards).all():
            raise ValueError(f"{self._culprit(rewards)}: the reward is {NOT_FINITE}; {REMEDY}")

    def check_final(self, row: int, obs: Batch) -> None:
        """Refuse NaN and infinity in the last observation of an episode."""
        if key := self._not_finite(obs):
            raise ValueError(f"{self.named(row)}: the final obs {key!r} is {NOT_FINITE}; {REMEDY}")

    def _not_finite(self, obs: Batch) -> str | None:
        return next((key for key in self._floats if not np.isfinite(obs[key]).all()), None)

    def check_length(self, row: int, length: int) -> None:
        """Refuse an episode that does not end, in an environment without a time limit."""
        if length > LONGEST_EPISODE:
            raise ValueError(
                f"{self.named(row)}: an episode does not end, after {LONGEST_EPISODE} steps; set a "
                "horizon (train.online.horizon)"
            )

    def actions(self, actions: Any) -> np.ndarray:
        """Copy actions after checking shape, type and values."""
        values, dtype = np.asarray(actions), self.action_space.dtype
        if values.shape != self._actions_shape:
            raise ValueError(
                f"{self.env_name}: actions have the shape {[*values.shape]}, and the environments "
                f"take {[*self._actions_shape]}"
            )
        if values.dtype.kind not in ("iuf" if dtype.kind == "f" else "iu"):
            raise ValueError(f"{self.env_name}: actions are {values.dtype}, not {dtype}")
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise ValueError(f"{self._culprit(values)}: the action is {NOT_FINITE}")
        return values.astype(dtype)

    def _culprit(self, values: np.ndarray) -> str:
        rows = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
        return self.named(int(rows.argmax()))


def _is_of_numbers(space: Any) -> bool:
    is_array = space.shape is not None and space.dtype is not None and 0 not in space.shape
    return is_array and space.dtype.kind in "biuf"


def check_form(state: Mapping[str, Any], form: str, env_name: str, num_envs: int) -> None:
    """Refuse a state of another kind of ``VectorEnv``, or of another number of environments."""
    stored = state.get("form")
    if stored != form:
        raise ValueError(
            f"{env_name}: the stored environments are of the form {stored!r}, and these {form!r}; "
            "make them with the arguments of then"
        )
    count = len(next(iter(state["obs"].values())))
    if count != num_envs:
        raise ValueError(f"{env_name}: {count} environments are stored, and these are {num_envs}")
