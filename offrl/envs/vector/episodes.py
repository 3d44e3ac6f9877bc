"""Environments in which every episode has a seed of its own. A running episode is a function of its
seed and its actions. So only these are stored, and the episode is rebuilt by repeating the actions,
which needs no support by simulators."""

import logging
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from offrl.acting.episode import describe, reported_success, returned, stepped
from offrl.envs import close, make_env
from offrl.envs.vector.form import Batch, Contract, Stepped, VectorEnv, check_form

log = logging.getLogger(__name__)

SILENT_S = 60.0  # seconds before a warning that names the environment

Running = tuple[int, np.ndarray]  # a running episode: its number, and its actions ``[T, A]``


class Setup(NamedTuple):
    """The environments of a vector and the ends of their episodes, see ``make_vector_env``."""

    env_args: Mapping[str, Any]
    num_envs: int
    seed: int
    horizon: int | None = None
    obs_keys: Sequence[str] | None = None
    terminate_on_success: bool = False


def episode_seed(seed: int, number: int, episode: int) -> int:
    """Return the reset seed of environment ``number`` for its episode ``episode``."""
    sequence = np.random.SeedSequence(seed, spawn_key=(number, episode))
    return int(sequence.generate_state(1)[0])


class SeededEnvs:
    """The environments ``numbers`` of a vector, in this process.

    envs: existing environments; ``None``: make those of ``setup``.
    first: the number of the first episode of each.
    """

    def __init__(
        self,
        setup: Setup,
        numbers: Sequence[int],
        envs: Sequence[gymnasium.Env] | None = None,
        first: int = 0,
    ):
        self._setup, self._numbers, self._seed = setup, numbers, setup.seed
        made = envs or [make_env(setup.env_args, setup.obs_keys) for _ in numbers]
        self._envs: Sequence[Any] = made
        limit = getattr(made[0].spec, "max_episode_steps", None)
        self.is_limited = limit is not None or setup.horizon is not None
        name = setup.env_args["env_name"]
        self.contract = Contract(name, numbers, *self.spaces()[:2], setup.obs_keys)
        self.row = 0  #: The environment that is stepped now, or was last.
        self._episode = [first - 1] * len(numbers)
        self._actions: list[list[np.ndarray]] = [[] for _ in numbers]  # actions of running episodes

    def spaces(self) -> tuple[gymnasium.Space, gymnasium.Space, bool]:
        """Return the spaces of one environment, and whether it has a time limit."""
        return self._envs[0].observation_space, self._envs[0].action_space, self.is_limited

    def reset(self) -> Batch:
        rows = range(len(self._envs))
        return self._joined([self._begin(row, self._episode[row] + 1) for row in rows])

    def step(self, actions: np.ndarray) -> Stepped:
        """Step with ``actions`` that ``Contract.actions`` has checked."""
        results = [self._act(row, action) for row, action in enumerate(actions)]
        seen, given, *flags = zip(*results, strict=True)
        terminated, truncated, successes = map(np.array, flags, (bool, bool, np.int8))
        obs, final_obs = list(seen), {}
        for row in np.flatnonzero(terminated | truncated).tolist():
            self.contract.check_final(row, obs[row])
            final_obs[self._numbers[row]] = obs[row]
            obs[row] = self._begin(row, self._episode[row] + 1)
        rewards = np.array(given, dtype=np.float64)
        is_step = np.ones(len(rewards), dtype=bool)
        joined = self._joined(obs, rewards)
        return Stepped(joined, rewards, terminated, truncated, successes, is_step, final_obs)

    def state(self) -> list[Running]:
        space: Any = self.contract.action_space
        actions = (np.array(x, space.dtype).reshape(-1, *space.shape) for x in self._actions)
        return list(zip(self._episode, actions, strict=True))

    def restore(self, seed: int, running: Sequence[Running]) -> Batch:
        self._seed = seed
        return self._joined([self._replay(row, *episode) for row, episode in enumerate(running)])

    def close(self) -> None:
        for env in self._envs:
            close(env, self.contract.env_name)

    def _begin(self, row: int, episode: int) -> Batch:
        self.row = row
        self._episode[row], self._actions[row] = episode, []
        seed = episode_seed(self._seed, self._numbers[row], episode)
        try:
            obs, _ = returned(self._envs[row].reset(seed=seed), "reset")
            return self.contract.observed(obs)
        except Exception as error:
            raise self._error_in(row, error) from error

    def _act(self, row: int, action: np.ndarray) -> tuple[Batch, float, bool, bool, int]:
        self.row = row
        env, taken = self._envs[row], self._actions[row]
        taken.append(action)
        try:
            # A copy: some environments write to actions.
            values = env.step(action.copy() if action.shape else action.item())
            obs, reward, terminated, truncated, _ = stepped(values)
            success = reported_success(env.is_success()["task"])
            obs = self.contract.observed(obs)
        except Exception as error:
            raise self._error_in(row, error) from error
        if not self.is_limited:
            self.contract.check_length(row, len(taken))
        terminated = terminated or bool(success and self._setup.terminate_on_success)
        truncated = truncated or len(taken) == self._setup.horizon
        return obs, reward, terminated, truncated, -1 if success is None else int(success)

    def _replay(self, row: int, episode: int, actions: np.ndarray) -> Batch:
        """Repeat the actions of an unfinished episode, and return the observation after them."""
        obs = self._begin(row, episode)
        for action in actions:
            obs, _, terminated, truncated, _ = self._act(row, action)
            if terminated or truncated:
                return self._begin(row, episode + 1)
        return obs

    def _joined(self, obs: Sequence[Batch], rewards: np.ndarray | None = None) -> Batch:
        joined = {key: np.array([row[key] for row in obs]) for key in obs[0]}
        self.contract.check_numbers(joined, rewards)
        return joined

    def _error_in(self, row: int, error: Exception) -> ValueError:
        return ValueError(f"{self.contract.named(row)}: {describe(error)}")


class EpisodicVector(VectorEnv):
    """The base of lists and processes, which give equal bits and restore each other's states."""

    _parts: Sequence[Sequence[int]]  # numbers of the environments in each ``SeededEnvs``

    def __init__(self, setup: Setup):
        self.env_args, self.num_envs, self._seed = dict(setup.env_args), setup.num_envs, setup.seed
        self._setup = setup

    @abstractmethod
    def _ask(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of each ``SeededEnvs`` with its own arguments, and return the results."""

    def _ask_all(self, method: str) -> list[Any]:
        return self._ask(method, [()] * len(self._parts))

    def _learn_spaces(self) -> None:
        shown, self.action_space, self.is_limited = self._ask_all("spaces")[0]
        name, numbers = self.env_args["env_name"], range(self.num_envs)
        contract = Contract(name, numbers, shown, self.action_space, self._setup.obs_keys)
        self._contract, self.observation_space = contract, contract.observation_space

    def reset(self) -> Batch:
        self._obs = _concatenated(self._ask_all("reset"))
        return self._obs

    def step(self, actions: Any) -> Stepped:
        actions = self._contract.actions(actions)
        parts = self._ask("step", [(actions[part[0] : part[-1] + 1],) for part in self._parts])
        stepped = parts[0]
        if len(parts) > 1:
            obs, *arrays, finals = zip(*parts, strict=True)
            final_obs = {number: obs for part in finals for number, obs in part.items()}
            joined: Any = _concatenated(obs), *(np.concatenate(x) for x in arrays), final_obs
            stepped = Stepped(*joined)
        self._obs = stepped.obs
        return stepped

    def state(self) -> dict[str, Any]:
        numbers, actions = zip(*sum(self._ask_all("state"), []), strict=True)
        return {
            "form": "episodes",
            "seed": self._seed,
            "obs": {key: value.copy() for key, value in self._obs.items()},
            "episodes": np.array(numbers),
            "lengths": np.array([len(taken) for taken in actions]),
            "actions": np.concatenate(actions),  # one episode after the other
        }

    def restore(self, state: Mapping[str, Any]) -> Batch:
        check_form(state, "episodes", self._contract.env_name, self.num_envs)
        self._seed = int(state["seed"])
        keys = ("episodes", "lengths", "actions")
        numbers, lengths, actions = (np.asarray(state[key]) for key in keys)
        taken = np.split(actions, np.cumsum(lengths)[:-1])
        running = list(zip(numbers.tolist(), taken, strict=True))
        parts = [running[part[0] : part[-1] + 1] for part in self._parts]
        self._obs = _concatenated(self._ask("restore", [(self._seed, part) for part in parts]))
        stored = {key: np.asarray(state["obs"][key]) for key in self._obs}
        for number in range(self.num_envs):
            now = (np.array_equal(x[number], stored[key][number]) for key, x in self._obs.items())
            if not all(now):
                log.warning(
                    f"{self._contract.named(number)}: the simulator is not deterministic; the same "
                    "seed and actions led to another observation, from which it goes on"
                )
        return self._obs


class ListVector(EpisodicVector):
    """Environments in this process, one stepped after the other.

    envs: existing environments; ``None``: make those of ``setup``.
    """

    def __init__(self, setup: Setup, envs: Sequence[gymnasium.Env] | None = None):
        super().__init__(setup)
        self._parts = [range(self.num_envs)]
        self._episodes = SeededEnvs(setup, self._parts[0], envs)
        self._learn_spaces()
        self._asked: float | None = None  # time of the call that is waited for
        threading.Thread(target=_watch, args=(weakref.ref(self),), daemon=True).start()

    def _ask(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        self._asked = time.monotonic()
        try:
            return [getattr(self._episodes, method)(*arguments[0])]
        finally:
            self._asked = None

    def close(self) -> None:
        self._episodes.close()


def _watch(own: "weakref.ref[ListVector]") -> None:
    """Warn once of each environment that does not answer, until the list is deleted."""
    said = None
    while (vector := own()) is not None:
        asked = vector._asked
        if asked is not None and asked != said and time.monotonic() - asked > SILENT_S:
            said = asked
            name = vector._contract.named(vector._episodes.row)
            log.warning(
                f"{name} has not answered for {SILENT_S:g} s, and is waited for: it is in this "
                "process, where nothing can end it but a second signal"
            )
        del vector
        time.sleep(min(1.0, SILENT_S))


def _concatenated(parts: Sequence[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
