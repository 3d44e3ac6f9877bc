"""A user's own agents (``offrl.online.Registers``) that explore for one of offrl's algorithms."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from offrl.acting.episode import describe, finite
from offrl.envs.vector import Stepped, VectorEnv
from offrl.online.agent import PolicyAgent
from offrl.online.setting import bounds_of
from offrl.registry import PARTS, shown


class OwnAgent(PolicyAgent):
    """A ``PolicyAgent`` for which a user's agents, one in each environment, choose the actions
    (``infer_action``) and report the rewards to learn from (``handle_env_feedback``, whose
    ``info`` holds ``truncated`` and, where the environment reports it, ``success``)."""

    def __init__(self, alg: Any, envs: VectorEnv):
        super().__init__(alg, bounds_of(envs.action_space))
        online, memory = alg.global_config.train.online, getattr(alg.algo_config, "memory", None)
        self._name, self._space = online.agent, envs.action_space
        if self._num_frames > 1 or memory is not None and memory.enabled:
            raise ValueError(
                f"train.online.agent: {self._name} shows the policy one state at a time; leave "
                "train.frame_stack and algo.memory out"
            )
        make, seen = PARTS["agent"][self._name], _Seen(alg)
        self._own = [make(envs, seen, online.agent_config) for _ in range(envs.num_envs)]

    def explore(
        self, obs: Mapping[str, np.ndarray], begins: Any = None, at_random: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """As a ``PolicyAgent``; the user's agents alone know whether they act at random."""
        self._states = [_state(obs, row) for row in range(len(self._own))]
        pairs = zip(self._own, self._states, strict=True)
        self._chosen = [self._asked(own.infer_action, state, True) for own, state in pairs]
        raw = np.stack([self._asked(self._checked, action) for action in self._chosen])
        self.num_steps += len(raw)
        self._ready()
        return self.alg.learned_action(torch.from_numpy(raw)).cpu().numpy(), raw

    def _checked(self, action: Any) -> np.ndarray:
        value, kind = np.asarray(action), self._space.dtype
        if np.can_cast(value.dtype, kind, "same_kind"):
            value = value.astype(kind)
            value = value if self._bounds is None else np.clip(value, *self._bounds)
            if self._space.contains(value):
                return value
        raise ValueError(f"infer_action gave {shown(action)}; actions are {self._space}")

    def _asked(self, function: Callable, *arguments: Any) -> Any:
        """What a method gives, or why it does not, in one line."""
        try:
            return function(*arguments)
        except Exception as error:  # of the user's code
            where = f"train.online.agent: {self._name}"
            raise ValueError(f"{where}: {describe(error)}") from error

    def rewarded(self, stepped: Stepped) -> Stepped:
        """Tell the agents what came of a step, and give it with the rewards that they report."""
        rewards = stepped.rewards.copy()
        for row in np.flatnonzero(stepped.is_step).tolist():
            final = stepped.final_obs.get(row)
            after = _state(stepped.obs, row) if final is None else _state(final)
            over = bool(stepped.terminated[row] or stepped.truncated[row])
            info = {"truncated": bool(stepped.truncated[row])}
            if stepped.successes[row] >= 0:
                info["success"] = bool(stepped.successes[row])
            own, before = self._own[row], self._states[row]
            feedback = after, float(rewards[row]), over, info, True
            said = self._asked(own.handle_env_feedback, *feedback)
            was = {"state": before, "cur_state": before, "next_state": after, "done": over}
            was |= {"action": self._chosen[row], "reward": rewards[row]}
            said = was | self._asked(dict, own.transition_data if said is None else said)
            rewards[row] = self._asked(finite, said.pop("reward"))
            for key in said.keys() & was.keys():
                if not self._asked(_is_same, said[key], was[key]):
                    raise ValueError(
                        f"train.online.agent: {self._name} reports another {key!r} than there "
                        "was; offrl's own algorithms learn from what the environment shows and "
                        "does, so change it there"
                    )
        return stepped._replace(rewards=rewards)


class _Seen:
    """One of offrl's algorithms, as agents of a pipeline ask it."""

    def __init__(self, alg: Any):
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


def _is_same(said: Any, was: Any) -> bool:
    if isinstance(was, Mapping):
        return said.keys() == was.keys() and all(_is_same(said[key], was[key]) for key in was)
    return np.array_equal(np.asarray(said, np.float32), np.asarray(was, np.float32))
