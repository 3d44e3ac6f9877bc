"""Explorers of a ``Pipeline``: a user's own agents in an own environment."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from offrl.acting.episode import as_flag, finite
from offrl.config.pipeline import PipelineConfig
from offrl.online.collector import EndedEpisodes
from offrl.online.explorer import Trajectory, Weights
from offrl.pipelines.registers import makers_of
from offrl.processes import foreign
from offrl.seeding import preserved_rng, rng_state, seed_everything, set_rng_state


class PipelineExplorer:
    """Lets agents act in turn in an environment of their own: agent ``i`` infers an action, and
    ``env.step(action, i)`` returns the result.

    With several agents ``reset()`` returns a state for each. An agent that is ``done`` does not act
    until the episode is over, which is when all are done. The explorer has random numbers of its
    own, in any process.

    owners: the agent whose weights each agent uses, by names.
    num_exploring: explorers with lower numbers explore (``use_explore``), the others evaluate.
    """

    acted: Callable[[], None] = staticmethod(lambda: None)  #: Called after each step.

    def __init__(
        self,
        config: PipelineConfig,
        owners: Mapping[str, str],
        num_exploring: int,
        number: int,
        life: int,
    ):
        self.number, self.life = number, life
        self._config, self._owners, self._explores = config, owners, number < num_exploring
        self._states: dict[str, Any] = {}  # of the agents that still act
        self._returns = dict.fromkeys(owners, 0.0)
        self._length = 0
        self._version = -1
        self._num_given = 0
        self.env: Any = None
        if life == 0:  # errors in making parts are raised at once, with tracebacks
            with preserved_rng():
                self._make()

    def _make(self) -> None:
        config = self._config
        key = (self.number, self.life, int(self._explores))
        seed = np.random.SeedSequence(config.train.seed, spawn_key=key).generate_state(1)[0]
        seed_everything(int(seed))
        make_algorithm, make_environment, make_agent = makers_of(config)
        self.env = make_environment()
        self.agents = {name: make_agent(self.env, make_algorithm()) for name in self._owners}
        with suppress(AttributeError):  # the environment may have no spaces
            self.env.action_space.seed(int(seed) % 2**31)
        self._rng = rng_state()

    def load(self, weights: Weights) -> None:
        """Act with these weights from now on, or in evaluations from the next episode on."""
        if weights.version == self._version or (self._states and not self._explores):
            return
        with self._own_errors():
            if self.env is None:
                self._make()
            for name, agent in self.agents.items():
                agent.alg.set_weights(weights.nets[self._owners[name]])
        self._version = weights.version

    def explore(self) -> Trajectory:
        """Act until the episode ends, or a trajectory has ``agent_config.max_steps`` steps."""
        with self._own_errors():
            set_rng_state(self._rng)
            data, num_steps, ended = self._explore()
            self._rng = rng_state()
        known = self.number, self.life, self._num_given, self._version
        self._num_given += 1
        return Trajectory(*known, data, num_steps, num_steps, ended, {}, time.time())

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        """Turn an error of a user's part into a ``RuntimeError`` with its place, and restore the
        process's random state after the block."""
        with preserved_rng():
            try:
                yield
            except Exception as error:
                what = " ".join(f"{type(error).__name__}: {error}".split())
                where = foreign(error) or "in offrl"
                raise RuntimeError(f"{what} ({where})") from error

    def _explore(self) -> tuple[dict[str, dict[str, Any]], int, EndedEpisodes]:
        steps: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        ended: EndedEpisodes = []
        if not self._states:
            self._reset()
        for _ in range(self._config.agent_para.trajectory_steps):
            for index, name in enumerate(self.agents):
                if name in self._states:
                    steps[name].append(self._step(index, name))
            self._length += 1
            if not self._states:
                ended = [(float(np.mean([*self._returns.values()])), self._length, -1)]
                break
        num_steps = sum(map(len, steps.values()))
        taken = steps if self._explores else {}  # evaluations are not learned from
        return {name: _stacked(some) for name, some in taken.items()}, num_steps, ended

    def _reset(self) -> None:
        state = self.env.reset()
        if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
            state = state[0]  # gymnasium's, with info
        states = [state] if len(self.agents) == 1 else state
        if len(states) != len(self.agents):
            raise ValueError(
                f"reset() gave {len(states)} states for {len(self.agents)} agents "
                "(agent_para.agent_num); give one for each"
            )
        self._states = dict(zip(self.agents, states, strict=True))
        self._returns = dict.fromkeys(self.agents, 0.0)
        self._length = 0

    def _step(self, index: int, name: str) -> Mapping[str, Any]:
        agent, state = self.agents[name], self._states[name]
        action = agent.infer_action(state, self._explores)
        next_state, reward, *over, info = self.env.step(action, index)
        done = any([as_flag(x, "done") for x in over])  # gymnasium has two of them
        self.acted()
        self._returns[name] += finite(reward)
        self._states[name] = next_state
        if done:
            del self._states[name]
        own = agent.handle_env_feedback(next_state, reward, done, info, self._explores)
        own = agent.transition_data or None if own is None else own
        default = {"state": state, "action": action, "reward": reward, "next_state": next_state}
        return default | {"done": done, "info": info} if own is None else dict(own)

    def close(self) -> None:
        with suppress(Exception):  # it may have no close, or fail there, too
            self.env.close()


def _stacked(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Make a trajectory, ``{key: [T, ...]}``: arrays if all steps have the same shape, else lists.
    ``info`` is a list of each step's info."""
    return {key: _joined(key, [step[key] for step in steps]) for key in steps[0]}


def _joined(key: str, values: list[Any]) -> Any:
    if isinstance(values[0], Mapping):
        return values if key == "info" else _stacked(values)
    try:
        joined = np.asarray([np.asarray(x) for x in values])
    except ValueError:
        return values
    return values if joined.dtype == object else joined
