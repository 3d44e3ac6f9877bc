"""Vectors of environments with gymnasium's own API, and snapshots of them."""

import copy
import logging
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from offrl.acting.episode import as_flag, describe, returned, stepped
from offrl.envs.gymnasium import close, name_of
from offrl.envs.vector.episodes import episode_seed
from offrl.envs.vector.form import Batch, Contract, Stepped, VectorEnv, check_form

log = logging.getLogger(__name__)

CONSTANT = ("spec", "metadata")  # attributes that describe a vector and do not change


def snapshot(env: gymnasium.vector.VectorEnv) -> dict[str, Any]:
    """Copy all attributes of ``env``, and of the environments in it, to nested dicts and lists of
    arrays, numbers and strings. ``ValueError`` if these cannot be its whole state."""
    arrays: dict[str, np.ndarray] = {}
    stored = _stored(env, "", arrays)
    for (name, one), (other_name, other) in combinations(arrays.items(), 2):
        if np.may_share_memory(one, other):  # a step may write to both
            raise ValueError(f"its {name} and {other_name} are parts of the same array")
    return stored


def _stored(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, gymnasium.vector.VectorEnv):
        return {
            key: _stored(item, f"{name}.{key}".strip("."), arrays)
            for key, item in vars(value).items()
            if key not in CONSTANT and not isinstance(item, gymnasium.Space)
        }
    if isinstance(value, np.random.Generator):
        return _stored(value.bit_generator.state, name, arrays)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        arrays[name] = value
        return value.copy()
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return np.asarray(value)  # keeps its type
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (list, tuple)):
        return [_stored(item, f"{name}[{i}]", arrays) for i, item in enumerate(value)]
    if isinstance(value, dict) and all(type(key) in (int, str) for key in value):
        return {key: _stored(item, f"{name}[{key!r}]", arrays) for key, item in value.items()}
    raise ValueError(f"its {name} is a {type(value).__name__}, not numbers")


def put_back(now: Any, stored: Any) -> Any:
    """Restore a ``snapshot`` in a vector that was made with the same arguments. Returns the value
    that replaces ``now``: itself if it is an object with a state."""
    if isinstance(now, gymnasium.vector.VectorEnv):
        for key, item in stored.items():
            setattr(now, key, put_back(getattr(now, key, None), item))
        return now
    if isinstance(now, np.random.Generator):
        now.bit_generator.state = put_back(None, stored)
        return now
    if isinstance(stored, Mapping):
        below = now if isinstance(now, Mapping) else {}
        return {key: put_back(below.get(key), item) for key, item in stored.items()}
    if isinstance(stored, list):
        items = [put_back(None, item) for item in stored]
        return tuple(items) if isinstance(now, tuple) else items
    if stored is None or isinstance(stored, (bool, int, float, str)):
        return stored
    array = np.array(stored)
    return array if array.ndim else array[()]


class GymnasiumVector(VectorEnv):
    """An existing ``gymnasium.vector.VectorEnv``, of any autoreset mode.

    If the vector resets by itself, the seed determines only the first episodes. Success is
    ``is_success`` or ``success`` in ``infos``. The vector can be stored if it consists of numbers,
    arrays and random number generators only.

    env_args: those of one environment; by default of the vector's spec.
    obs_keys: the observations to keep; ``None``: all.
    horizon, terminate_on_success: as in ``make_vector_env``. As the vector ends episodes itself, a
        horizon is refused, and a success that does not end an episode gives a warning.
    """

    def __init__(
        self,
        env: gymnasium.vector.VectorEnv,
        seed: int,
        env_args: Mapping[str, Any] | None = None,
        obs_keys: Sequence[str] | None = None,
        horizon: int | None = None,
        terminate_on_success: bool = False,
    ):
        if isinstance(sync := env.unwrapped, SyncVectorEnv):
            sync.envs = [_CheckedEnv(x) for x in sync.envs]
        self._ignores_success = terminate_on_success
        if horizon is not None:
            raise ValueError(
                f"train.online.horizon: {env} ends its episodes by itself; give it a limit, or "
                "name the environment (experiment.env)"
            )
        self._env, self._seed, self.num_envs = env, episode_seed(seed, 0, 0), env.num_envs
        self.env_args = dict(env_args or {"env_name": name_of(env), "type": 2, "env_kwargs": {}})
        self._name = self.env_args["env_name"]
        try:
            self._mode = AutoresetMode(env.metadata.get("autoreset_mode"))
        except ValueError:
            raise ValueError(
                f"{self._name}: metadata['autoreset_mode'] does not say when the vector begins its "
                f"next episodes; set it to one of {', '.join(map(str, AutoresetMode))}"
            ) from None
        shown, self.action_space = env.single_observation_space, env.single_action_space
        numbers = range(env.num_envs)
        self._contract = Contract(self._name, numbers, shown, self.action_space, obs_keys)
        self.observation_space = self._contract.observation_space
        self.is_limited = getattr(env.spec, "max_episode_steps", None) is not None
        self._is_new = True
        self._ended = np.zeros(env.num_envs, dtype=bool)  # episodes that ended in the last step
        self._lengths = np.zeros(env.num_envs, dtype=np.int64)  # lengths of running episodes

    def reset(self) -> Batch:
        obs, _ = self._call("reset", seed=self._seed if self._is_new else None)
        self._is_new = False
        self._ended, self._lengths = np.zeros_like(self._ended), np.zeros_like(self._lengths)
        self._obs = self._contract.observed(obs, (self.num_envs,))
        self._contract.check_numbers(self._obs)
        return self._obs

    def step(self, actions: Any) -> Stepped:
        actions = self._contract.actions(actions)
        raw, rewards, terminated, truncated, infos = self._call("step", actions)
        if not isinstance(infos, Mapping):
            raise ValueError(f"{self._name}: infos is {type(infos).__name__}, not a mapping")
        rewards = self._one_per_env(rewards, "rewards")
        rewards = rewards.astype(np.result_type(rewards, np.float32))
        terminated = self._truths(terminated, "terminated")
        truncated = self._truths(truncated, "truncated")
        ended = terminated | truncated
        is_step = np.ones_like(ended)
        successes = self._successes(infos)
        final_obs: dict[int, Batch] = {}
        if self._mode is AutoresetMode.NEXT_STEP:
            is_step, self._ended = ~self._ended, ended
            successes[~is_step] = -1
        elif ended.any():
            final_info = infos.get("final_info")  # infos itself is of those that began in it
            if self._mode is AutoresetMode.SAME_STEP and isinstance(final_info, Mapping):
                successes = np.where(ended, self._successes(final_info), successes)
            final_obs, raw = self._at_ends(raw, ended, infos)
        if self._ignores_success and ((successes > 0) & ~ended).any():
            self._ignores_success = False
            log.warning(
                f"{self._name}: a success ends no episode, as the vector ends them by itself; name "
                "the environment (experiment.env) or set train.online.terminate_on_success to false"
            )
        if not self.is_limited:
            self._lengths += is_step
            row = int(self._lengths.argmax())
            self._contract.check_length(row, self._lengths[row])
            self._lengths[ended] = 0
        self._obs = obs = self._contract.observed(raw, (self.num_envs,))
        self._contract.check_numbers(obs, rewards)
        return Stepped(obs, rewards, terminated, truncated, successes, is_step, final_obs)

    def state(self) -> dict[str, Any]:
        try:
            env = snapshot(self._env)
        except ValueError as error:
            raise ValueError(
                f"{self._name}: the running environments cannot be stored: {error}; make them with "
                "make_vector_env, or store without them and begin new episodes"
            ) from None
        # In the same order in memory, on which the bits of sums over the environments depend.
        obs = {key: value.copy(order="K") for key, value in self._obs.items()}
        marks = {"ended": self._ended.copy(), "lengths": self._lengths.copy()}
        return {"form": "gymnasium", "obs": obs, "env": env, **marks}

    def restore(self, state: Mapping[str, Any]) -> Batch:
        check_form(state, "gymnasium", self._name, self.num_envs)
        self.reset()  # so that it is complete
        put_back(self._env, state["env"])
        self._ended, self._lengths = (np.array(state[key]) for key in ("ended", "lengths"))
        self._obs = {key: np.array(value) for key, value in state["obs"].items()}
        return self._obs

    def close(self) -> None:
        close(self._env, self._name)

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        try:
            return returned(getattr(self._env, method)(*arguments, **options), method)
        except Exception as error:
            raise ValueError(f"{self._name}: {describe(error)}") from error

    def _one_per_env(self, values: Any, name: str) -> np.ndarray:
        given, is_masked = np.asarray(values), np.ma.is_masked(values)
        if given.shape != (self.num_envs,) or given.dtype.kind not in "biuf" or is_masked:
            raise ValueError(
                f"{self._name}: the environment's {name} are {'masked ' * is_masked}{given.dtype} "
                f"of shape {[*given.shape]}; give {'floats' if name == 'rewards' else 'bools'} "
                f"[{self.num_envs}]"
            )
        return given

    def _truths(self, values: Any, name: str) -> np.ndarray:
        """Return flags ``[N]`` as a copy."""
        values = self._one_per_env(values, name)
        for row, value in enumerate(values if values.dtype != bool else ()):
            self._truth(row, value, name)
        return values.astype(bool)

    def _truth(self, row: int, value: Any, name: str) -> bool:
        try:
            return as_flag(value, name)
        except ValueError as error:
            raise ValueError(f"{self._contract.named(row)}: {error}") from None

    def _successes(self, infos: Mapping[str, Any]) -> np.ndarray:
        found = np.full(self.num_envs, -1, dtype=np.int8)
        name = next((name for name in ("is_success", "success") if name in infos), None)
        if name is not None:
            said, is_said = infos[name], infos.get(f"_{name}", np.ones(self.num_envs, dtype=bool))
            if not np.shape(said)[:1] == np.shape(is_said) == (self.num_envs,):
                raise ValueError(f"{self._name}: infos[{name!r}] is not one for each of them")
            for row in np.flatnonzero(is_said).tolist():
                if said[row] is not None:
                    found[row] = self._truth(row, said[row], name)
        return found

    def _at_ends(self, raw: Any, ended: np.ndarray, infos: Any) -> tuple[dict[int, Batch], Any]:
        """Return the last observations of ended episodes, and all observations after resets."""
        if self._mode is AutoresetMode.DISABLED:
            last = self._contract.observed(raw, (self.num_envs,))
            raw, _ = self._call("reset", options={"reset_mask": ended.copy()})
        elif "final_obs" in infos:
            last = infos["final_obs"]
        else:
            raise ValueError(
                f"{self._name}: episodes end and begin in the same step (autoreset_mode), and "
                "infos has no final_obs, which says where they ended"
            )
        final_obs = {}
        for row in np.flatnonzero(ended).tolist():
            is_dict = isinstance(last, Mapping)
            own = {key: last[key][row] for key in last} if is_dict else last[row]
            try:
                final_obs[row] = self._contract.observed(own)
            except ValueError as error:
                raise ValueError(f"{self._contract.named(row)}, final_obs: {error}") from None
            self._contract.check_final(row, final_obs[row])
        return final_obs, raw


class _CheckedEnv(gymnasium.Wrapper):
    """Checks an environment in a list: the vector converts flags to bools (an ``AsyncVectorEnv``'s
    cannot be checked), and resets may write to observations that were returned."""

    def step(self, action: Any) -> Any:
        obs, *rest = stepped(self.env.step(action))
        return copy.deepcopy(obs), *rest
