"""A user's own agents (``offrl.online.Registers``) that explore for one of offrl's algorithms."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from offrl.acting.episode import describe, finite
from offrl.assembly.spaces import clipped
from offrl.envs.vector import Stepped, VectorEnv
from offrl.online.agent import Observations, PolicyAgent
from offrl.registry import PARTS, shown


class OwnAgent(PolicyAgent):
    """Lets a user's agents, one in each environment, choose the actions (``infer_action``) and
    return the rewards to learn from (``handle_env_feedback``), whose ``info`` has ``truncated``
    and, if the environment reports it, ``success``.

    Raises ``ValueError`` with the agent's name for errors of its code, and for a config whose
    policy sees more than one state at a time.
    """

    def __init__(self, alg: Any, envs: VectorEnv):
        super().__init__(alg, envs.action_space)
        online, memory = alg.global_config.train.online, getattr(alg.algo_config, "memory", None)
        self._name = online.agent
        if self._num_frames > 1 or memory is not None and memory.enabled:
            raise ValueError(
                f"train.online.agent: {self._name} shows the policy one state at a time; leave "
                "train.frame_stack and algo.memory out"
            )
        make, seen = PARTS["agent"][self._name], _Predictor(alg)
        self._own = [make(envs, seen, online.agent_config) for _ in range(envs.num_envs)]

    def explore(
        self, obs: Observations, begins: np.ndarray | None = None, at_random: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ask the user's agents for actions. Arguments and results are those of a ``PolicyAgent``;
        ``at_random`` is ignored, as the user's agents decide how they explore."""
        self._states = [_state(obs, row) for row in range(len(self._own))]
        pairs = zip(self._own, self._states, strict=True)
        with self._named():
            self._chosen = [own.infer_action(state, True) for own, state in pairs]
            raw = np.stack([self._checked(action) for action in self._chosen])
        self.num_steps += len(raw)
        self._set_to_train()
        return self.alg.learned_action(torch.from_numpy(raw)).cpu().numpy(), raw

    def _checked(self, action: Any) -> np.ndarray:
        value, kind = np.asarray(action), self._space.dtype
        if np.can_cast(value.dtype, kind, "same_kind"):
            value = clipped(value.astype(kind), self._space)
            if self._space.contains(value):
                return value
        raise ValueError(f"infer_action gave {shown(action)}; actions are {self._space}")

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Turn an error of the user's code into one line that names the agent."""
        try:
            yield
        except Exception as error:
            raise ValueError(f"train.online.agent: {self._name}: {describe(error)}") from error

    def rewarded(self, stepped: Stepped) -> Stepped:
        """Pass a step's results to the agents, and return them with the agents' rewards."""
        rewards = stepped.rewards.copy()
        with self._named():
            for row in np.flatnonzero(stepped.is_step).tolist():
                rewards[row] = self._reported(row, stepped)
        return stepped._replace(rewards=rewards)

    def _reported(self, row: int, stepped: Stepped) -> float:
        final, own, before = stepped.final_obs.get(row), self._own[row], self._states[row]
        after = _state(stepped.obs, row) if final is None else _state(final)
        over = bool(stepped.terminated[row] or stepped.truncated[row])
        reward, info = float(stepped.rewards[row]), {"truncated": bool(stepped.truncated[row])}
        if stepped.successes[row] >= 0:
            info["success"] = bool(stepped.successes[row])
        said = own.handle_env_feedback(after, reward, over, info, True)
        was = {"state": before, "cur_state": before, "next_state": after, "done": over}
        was |= {"action": self._chosen[row], "reward": reward}
        said = was | dict(own.transition_data if said is None else said)
        for key in said.keys() & was.keys() - {"reward"}:
            if not _is_same(said[key], was[key]):
                raise ValueError(
                    f"it reports another {key!r} than there was; offrl's own algorithms learn from "
                    "what the environment shows and does, so change it there"
                )
        return finite(said["reward"])


class _Predictor:
    """Gives one of offrl's algorithms the interface that agents of a pipeline expect."""

    def __init__(self, alg: Any):
        self.alg = alg

    def predict(self, state: Any) -> np.ndarray:
        """Return a number for each discrete action in a state, or the likeliest action."""
        alg = self.alg
        obs = {key: torch.as_tensor(np.asarray(x))[None] for key, x in alg.named(state).items()}
        if not alg.is_discrete:
            return alg.predict(obs)[0].cpu().numpy()
        alg.set_eval()
        seen = {key: x[:, None] for key, x in obs.items()}
        with torch.no_grad():
            if hasattr(alg, "scores"):  # it estimates values of actions
                return alg.scores(alg.prepare_obs(seen))[0].cpu().numpy()
            return alg.action_distribution(seen)[0].logits.flatten().cpu().numpy()


def _state(obs: Observations, row: Any = ...) -> Any:
    """Copy the observation of one environment in its own form: a dict or an array."""
    own = {key: np.array(x[row]) for key, x in obs.items()}
    return own["flat"] if {*own} == {"flat"} else own


def _is_same(said: Any, was: Any) -> bool:
    if isinstance(was, Mapping):
        return said.keys() == was.keys() and all(_is_same(said[key], was[key]) for key in was)
    return np.array_equal(np.asarray(said, np.float32), np.asarray(was, np.float32))
