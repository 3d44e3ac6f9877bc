"""A user's own agents (``offrl.online.Registers``) that explore for one of offrl's algorithms."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from offrl.acting.episode import describe, finite
from offrl.algos.base import Algorithm
from offrl.envs.vector import Stepped, VectorEnv
from offrl.online.agent import PolicyAgent, place_of
from offrl.online.setting import bounds_of
from offrl.registry import PARTS, shown


class OwnAgent(PolicyAgent):
    """A ``PolicyAgent`` for which a user's agents, one in each environment, choose the actions
    (``infer_action``) and say which rewards are learned from (``handle_env_feedback``, whose
    ``info`` holds ``truncated`` and ``success``)."""

    def __init__(self, alg: Any, envs: VectorEnv):
        super().__init__(alg, bounds_of(envs.action_space))
        online, memory = alg.global_config.train.online, alg.algo_config.to_dict().get("memory", {})
        self._name, self._space = online.agent, envs.action_space
        if self._num_frames > 1 or memory.get("enabled"):
            raise ValueError(
                f"train.online.agent: {self._name} shows the policy one state at a time; leave "
                "train.frame_stack and algo.memory out"
            )
        make, shared = PARTS["agent"][self._name], _OneState(alg)
        with self._own_errors():
            self._own = [make(envs, shared, online.agent_config) for _ in range(envs.num_envs)]

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            where = f"train.online.agent: {self._name} ({place_of(error)})"
            raise ValueError(f"{where}: {describe(error)}") from error

    def explore(
        self,
        obs: Mapping[str, np.ndarray],
        begins: np.ndarray | None = None,
        at_random: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """As a ``PolicyAgent``; the user's agents alone know whether they act at random."""
        self._states = [_state(obs, row) for row in range(len(self._own))]
        with self._own_errors():
            pairs = zip(self._own, self._states, strict=True)
            chosen = [own.infer_action(state, True) for own, state in pairs]
        raw = np.stack([self._checked(action) for action in chosen])
        self.num_steps += len(raw)
        self._ready()
        self._actions = raw if self._bounds is None else np.clip(raw, *self._bounds)
        learned = self.alg.learned_action(torch.from_numpy(self._actions))
        return learned.cpu().numpy(), self._actions

    def _checked(self, action: Any) -> np.ndarray:
        value, space, is_index = np.asarray(action), self._space, self.alg.is_discrete
        is_kind = value.shape == space.shape and value.dtype.kind in ("iu" if is_index else "iuf")
        if not is_kind or is_index and not space.contains(value.astype(space.dtype)):
            raise self._wrong(f"infer_action gave {shown(action)}; actions are {space}")
        return value.astype(space.dtype)

    def _wrong(self, what: str) -> ValueError:
        return ValueError(f"train.online.agent: {self._name}: {what}")

    def rewarded(self, stepped: Stepped) -> Stepped:
        """What came of a step, with the rewards that the agents say."""
        rewards = stepped.rewards.copy()
        for row in np.flatnonzero(stepped.is_step).tolist():
            final = stepped.final_obs.get(row)
            state = _state(stepped.obs, row) if final is None else _state(final)
            over = bool(stepped.terminated[row] or stepped.truncated[row])
            info = {"truncated": bool(stepped.truncated[row])}
            info["success"] = bool(stepped.successes[row])
            before, own, reward = self._states[row], self._own[row], float(rewards[row])
            with self._own_errors():
                said = own.handle_env_feedback(state, reward, over, info, True)
                said = dict(own.transition_data if said is None else said)
            try:
                rewards[row] = finite(said.get("reward", reward))
            except ValueError:
                raise self._wrong(f"the reward {said['reward']!r} is no finite number") from None
            was = {"state": before, "cur_state": before, "next_state": state, "done": over}
            for key, value in (was | {"action": self._actions[row]}).items():
                if key in said and not np.array_equal(said[key], value):
                    raise self._wrong(
                        f"it says another {key!r} than there was; offrl's own algorithms learn "
                        "from what the environment shows and does, so change it there"
                    )
        return stepped._replace(rewards=rewards)


class _OneState(Algorithm):
    """One of offrl's algorithms, as agents of a pipeline ask it."""

    def __init__(self, alg: Any):
        super().__init__()
        self.alg = alg

    def predict(self, state: Any) -> np.ndarray:
        """What it says of a state: a number for each discrete action, or the likeliest action."""
        alg = self.alg
        obs = {key: torch.as_tensor(np.asarray(x))[None] for key, x in alg.named(state).items()}
        if not alg.is_discrete:
            return alg.predict(obs)[0].cpu().numpy()
        alg.set_eval()
        seen = {key: x[:, None] for key, x in obs.items()}
        with torch.no_grad():
            if hasattr(alg, "scores"):  # of those that value actions
                return alg.scores(alg.prepare_obs(seen), None)[0].cpu().numpy()
            return alg.action_distribution(seen)[0].logits.flatten().cpu().numpy()


def _state(obs: Mapping[str, np.ndarray], row: Any = ...) -> Any:
    """What one environment shows, as it showed it: an array, unless it has names."""
    own = {key: x[row] for key, x in obs.items()}
    return own["flat"] if {*own} == {"flat"} else own
