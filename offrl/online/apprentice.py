"""An agent that learns from an expert's actions in the states that it visits."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offrl.acting.episode import describe
from offrl.algos.base import PolicyAlgo, Seen
from offrl.assembly.spaces import clipped
from offrl.checkpoint import policy_from_checkpoint
from offrl.config.files import find_file
from offrl.envs.experts import scripted_expert
from offrl.envs.vector import VectorEnv
from offrl.online.agent import Observations, PolicyAgent

SCRIPTED = "scripted"  # among the values of algo.expert, beside paths


class ScriptedExpert:
    """An expert that is a memoryless function of one environment's observation."""

    def __init__(self, function: Callable[[Observations], Any], envs: VectorEnv):
        self._function, self._space = function, envs.action_space
        self._name = envs.env_args["env_name"]

    def act(self, obs: Observations, begins: np.ndarray | None) -> np.ndarray:
        """Choose actions ``[N, A]``, or integers ``[N]``, for observations ``{key: [N, ...]}``."""
        num = len(next(iter(obs.values())))
        try:
            rows = [self._function({key: x[row] for key, x in obs.items()}) for row in range(num)]
            actions = np.stack(rows).reshape(num, *self._space.shape).astype(self._space.dtype)
        except Exception as error:  # maybe in a user's code
            raise ValueError(
                f"algo.expert: the expert of {self._name} cannot act here: {describe(error)}"
            ) from error
        return clipped(actions, self._space)

    def serialize(self) -> dict[str, Any]:
        return {}

    def deserialize(self, state: Mapping[str, Any]) -> None:
        """Do nothing, as there is no state."""


class TrainedExpert(PolicyAgent):
    """The policy of a checkpoint, in evaluation mode."""

    def __init__(self, path: str, alg: Any, envs: VectorEnv):
        policy, _ = policy_from_checkpoint(path, device=alg.device)
        expert = policy.policy
        problem = _misfit(expert, alg, envs)
        if problem:
            raise ValueError(f"algo.expert: {path}: {problem}; name another checkpoint")
        super().__init__(expert, envs.action_space)

    def act(self, obs: Observations, begins: np.ndarray | None) -> np.ndarray:
        return self.explore(obs, begins)[1]

    def _set_to_train(self) -> None:
        """Leave the networks in evaluation mode."""

    def choose(self, seen: Mapping[str, Tensor]) -> tuple[Tensor, Any]:
        return self.alg.act(Seen(seen, state=self.memory))


class Apprentice(PolicyAgent):
    """A ``PolicyAgent`` that learns its expert's actions in the states that it visits. The expert
    acts with a probability that falls from round to round (``alg.expert_share``).

    alg: an algorithm that ``ASKS_EXPERT``, with ``algo.expert`` in its config.
    envs: its environments.
    """

    def __init__(self, alg: Any, envs: VectorEnv):
        super().__init__(alg, envs.action_space)
        self.expert = _find_expert(alg, envs)
        self._steps_per_round = envs.num_envs * alg.global_config.train.online.collect_steps

    def explore(
        self, obs: Observations, begins: np.ndarray | None = None, at_random: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Choose as a ``PolicyAgent``, but return the expert's actions to learn from."""
        share = self.alg.expert_share(self.num_steps // self._steps_per_round)
        _, raw = super().explore(obs, begins, at_random)
        shown = self.expert.act(obs, begins)
        is_led = torch.rand(len(raw)).numpy() < share
        taken = np.where(is_led.reshape(-1, *[1] * (raw.ndim - 1)), shown, raw)
        learned = self.alg.learned_action(torch.from_numpy(shown)).cpu().numpy()
        return learned, taken.astype(raw.dtype)

    def choose(self, seen: Mapping[str, Tensor]) -> tuple[Tensor, Any]:
        """Choose as in evaluation, to visit the states that the policy will visit."""
        self.alg.set_eval()
        return self.alg.act(Seen(seen, state=self.memory))

    def serialize(self) -> dict[str, Any]:
        return super().serialize() | {"expert": self.expert.serialize()}

    def deserialize(self, state: Mapping[str, Any]) -> None:
        super().deserialize(state)
        self.expert.deserialize(state["expert"])


def _find_expert(alg: Any, envs: VectorEnv) -> ScriptedExpert | TrainedExpert:
    config = alg.algo_config
    if config.expert == SCRIPTED:
        try:
            return ScriptedExpert(scripted_expert(envs.env_args), envs)
        except ValueError as error:
            raise ValueError(
                f"algo.expert: {error}; name the checkpoint of a policy that solves the task"
            ) from None
    config.expert = str(find_file(config.expert))  # a run may be resumed in another folder
    return TrainedExpert(config.expert, alg, envs)


def _misfit(expert: Any, alg: Any, envs: VectorEnv) -> str | None:
    """Say why the policy of a checkpoint cannot be an expert for ``alg`` in these environments."""
    if not isinstance(expert, PolicyAlgo) or not callable(getattr(expert, "act", None)):
        return "it has no act, and cannot be asked in several environments at once"
    if expert.COUNTS_REWARDS or expert.obs_spec.keys("goal"):
        what = "the rewards so far" if expert.COUNTS_REWARDS else "a goal"
        return f"it is to be told {what}, which nobody does here"
    if (expert.is_discrete, expert.ac_dim) != (alg.is_discrete, alg.ac_dim):
        theirs, ours = (
            f"{a.ac_dim} discrete ones" if a.is_discrete else f"vectors of {a.ac_dim} numbers"
            for a in (expert, alg)
        )
        return f"its actions are {theirs}, but {envs.env_args['env_name']} takes {ours}"
    shown = {key: space.shape or () for key, space in envs.observation_space.items()}
    try:
        expert.obs_spec.check_shapes(shown, "obs")
    except ValueError as error:
        return str(error)
    return None
