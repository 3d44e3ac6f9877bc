"""The kinds of algorithms: policies, values, planners and hierarchies of these."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from offrl.algos.factory import register_algo, register_algo_factory_func
from offrl.algos.shared.algo import Algo, Generators, Obs
from offrl.algos.shared.losses import check_rewards, masked_mean
from offrl.algos.shared.roles import Algorithm, Model
from offrl.tree import map_leaves

__all__ = [
    "Algo",
    "Algorithm",
    "Generators",
    "HierarchicalAlgo",
    "Model",
    "Obs",
    "PlannerAlgo",
    "PolicyAlgo",
    "ValueAlgo",
    "check_rewards",
    "masked_mean",
    "register_algo",
    "register_algo_factory_func",
]


class _Networks(Model):
    """The networks of an algorithm, used as it uses them."""

    def __init__(self, algo: Any):
        super().__init__()
        self.nets = algo.nets
        self._algo = algo

    def value(self, x: Obs | Tensor, a: Tensor | None = None) -> Tensor:
        algo = self._algo
        if not isinstance(algo, ValueAlgo):
            return super().value(x, a)
        obs, is_one = self._batch(x)
        if a is None:
            values = algo.get_state_value(obs)
        else:
            values = algo.get_state_action_value(obs, self._learned(a[None] if is_one else a))
        return values[0] if is_one else values

    def action(self, x: Obs | Tensor) -> Tensor:
        obs, is_one = self._batch(x)
        actions = self._algo.predict(obs)
        return actions[0] if is_one else actions

    def _batch(self, x: Obs | Tensor) -> tuple[Obs, bool]:
        """Observations ``{key: [B, ...]}``, and whether they were those of one environment."""
        obs, groups = self._algo.named(x), self._algo.obs_spec.groups["obs"]
        frames = self._algo.global_config.train.frame_stack > 1
        own = [(obs[key].ndim, len(spec.shape) + frames) for key, spec in groups.items()]
        is_one = all(ndim == one for ndim, one in own)
        return map_leaves(lambda value: value[None], obs) if is_one else obs, is_one

    def _learned(self, a: Tensor) -> Tensor:
        """Actions of the environment, as networks see them. Discrete ones may be one-hot."""
        algo = self._algo
        if not algo.is_discrete or a.ndim == 1:
            return algo.learned_action(a)
        is_index = a.shape[-1] == 1 and algo.ac_dim > 1
        return algo.learned_action(a[..., 0]) if is_index else algo.to_device(a)


class PolicyAlgo(Algo):
    """An algorithm with a policy.

    A subclass defines ``act(obs, goal, state, generators) -> (action, state)``, a pure function
    that serves any number of environments: raw ``obs`` ``{key: [B, T, ...]}`` with
    ``T = frame_stack``, ``goal`` ``{key: [B, ...]}`` or ``None``, the ``state`` that it returned
    for the step before (``None`` at first) and a source of randomness per row, to actions
    ``[B, A]``, normalised as the dataset's. ``get_action`` and ``reset`` are its face for one
    environment; an algorithm that defines these two alone serves one only.
    """

    act: Callable[..., tuple[Tensor, Any]]

    _state: Any = None

    def explore(
        self,
        obs: Obs,
        goal: Obs | None = None,
        state: Any = None,
        generators: Generators = None,
        num_steps: int = 0,
    ) -> tuple[Tensor, Any]:
        """Choose actions as ``act`` does, to learn from what comes of them, after ``num_steps``
        steps of the training: a sample of the policy, unless an algorithm says otherwise."""
        return self.act(obs, goal, state, generators)

    def predict(self, obs: Obs | Tensor) -> Tensor:
        """Choose the likeliest actions in the units of the environment, ``[B, A]``, integers
        ``[B]`` or chunks ``[B, H, A]``, for observations ``{key: [B, ...]}``, or ``[B, ...]`` where
        there is one key. Those that are chosen among random ones are the same each time."""
        self.set_eval()
        named = self._with_time(self.named(obs))
        num = len(next(iter(named.values())))
        generators = [torch.Generator().manual_seed(0) for _ in range(num)]
        with torch.no_grad():
            return self._predict(named, generators)

    def _predict(self, obs: Obs, generators: Generators) -> Tensor:
        action, _ = self.act(obs, None, None, generators)
        return self.raw_action(action)

    @cached_property
    def model(self) -> Model:  # type: ignore[override]
        """The networks, in their role of a ``Model``."""
        return _Networks(self)

    def action_distribution(
        self, obs: Obs, goal: Obs | None = None, state: Any = None
    ) -> tuple[Any, Any]:
        """Give the distribution that ``act`` samples from, before noise is lowered (``mean``,
        ``std``, ``logits``, ``log_prob(actions)`` over ``[B, T, A]``), and the next state."""
        raise ValueError(
            f"{self.global_config.algo_name}: its actions have no density in closed form"
        )

    def get_action(self, obs_dict: Obs, goal_dict: Obs | None = None) -> Tensor:
        """Choose actions ``[B, A]`` for observations ``{key: [B, ...]}``, or ``[B, T, ...]`` if
        frames are stacked. The policy remembers one episode until ``reset``."""
        if self.COUNTS_REWARDS and self._state is not None:
            raise ValueError(
                f"{self.global_config.algo_name} counts rewards while acting: use RolloutPolicy "
                "and tell it each of them"
            )
        if not callable(getattr(self, "act", None)):
            raise ValueError(f"{type(self).__name__} is a policy: define act or get_action")
        obs = self._with_time(obs_dict)
        with torch.no_grad():
            action, self._state = self.act(obs, goal_dict, self._state)
        return action

    def reset(self) -> None:
        self._state = None

    def subgoal_of(self, state: Any) -> tuple[Mapping[str, Tensor], Tensor] | None:
        """The subgoal ``{key: [B, ...]}`` that the action follows which ``act`` returned with
        ``state``, in the units of the data, and the number of actions ``[B]`` that will follow it
        after that one. ``None`` for policies that have no subgoals."""
        return None


class ValueAlgo(Algo):
    """An algorithm that estimates values, ``[B, 1]``."""

    def get_state_value(self, obs_dict: Obs, goal_dict: Any = None) -> Tensor:
        """Estimate the value of states ``{key: [B, ...]}``: ``[B, 1]``."""
        raise NotImplementedError(
            f"{type(self).__name__} estimates values of actions, not of states"
        )

    def get_state_action_value(
        self, obs_dict: Obs, actions: Tensor, goal_dict: Any = None
    ) -> Tensor:
        """Estimate the value of actions ``[B, A]`` in states ``{key: [B, ...]}``: ``[B, 1]``."""
        raise NotImplementedError(
            f"{type(self).__name__} estimates values of states, not of actions"
        )


class PlannerAlgo(Algo):
    """An algorithm that proposes subgoals, ``{key: [B, ...]}``, in the units of the data.

    For hierarchies it defines ``seen(obs, goal)``, raw observations ``{key: [B, T, ...]}`` to what
    its networks see (parts of a training batch), and ``plan(batch, generators)``, a subgoal for
    each row of what was seen, with a source of randomness per row.
    """

    seen: Callable[..., dict[str, Any]]
    plan: Callable[..., dict[str, Tensor]]

    def get_subgoal_predictions(self, obs_dict: Obs, goal_dict: Any = None) -> dict[str, Tensor]:
        """Propose a subgoal for each state."""
        return self.plan(self.seen(self._with_time(obs_dict), goal_dict))

    def sample_subgoals(
        self, obs_dict: Obs, goal_dict: Any = None, num_samples: int = 1
    ) -> dict[str, Tensor]:
        """Draw ``num_samples`` subgoals for each state."""
        raise NotImplementedError(type(self).__name__)

    def get_action(self, obs_dict: Obs, goal_dict: Any = None) -> Tensor:
        raise ValueError(
            f"{self.global_config.algo_name}: a planner proposes subgoals, and takes no actions"
        )


class HierarchicalAlgo(PolicyAlgo):
    """A planner and an actor that follows its subgoals.

    The states of ``act`` are dicts, with the ``"subgoal"`` and the ``"steps_left"`` that
    ``subgoal_of`` gives.
    """

    def subgoal_of(self, state: Any) -> tuple[Mapping[str, Tensor], Tensor]:
        return state["subgoal"], state["steps_left"]

    @property
    def current_subgoal(self) -> Mapping[str, Tensor] | None:
        """The subgoal that the actor follows, or ``None`` before the first step."""
        return None if self._state is None else self.subgoal_of(self._state)[0]
