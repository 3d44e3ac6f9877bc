# ruff: noqa: F401 (some names are here for those who write algorithms)
"""The kinds of algorithms: policies, values, planners and hierarchies of these."""

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from offrl.algos.factory import register_algo, register_algo_factory_func
from offrl.algos.shared.algo import Algo, Generators, Obs
from offrl.algos.shared.updates import MEAN_COUNT
from offrl.aliases import in_one_or_several
from offrl.lazy import Tensor, torch

if TYPE_CHECKING:
    from offrl.algos.shared.model import Networks

Batch = dict[str, Any]  # what ``process_batch_for_training`` made and ``update`` learns from
Info = dict[str, Any]  # numbers for the log, by their names there; None: not measured


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Take the mean of values ``[B, T]``, over the steps where a mask ``[B, T, 1]`` is one, or
    over all without a mask."""
    if mask is None:
        return values.mean()
    count = getattr(mask, MEAN_COUNT, None)
    mask = mask.squeeze(-1)
    return (values * mask).sum() / (mask.sum() if count is None else count)


def check_rewards(rewards: Tensor, algo_name: str) -> None:
    """Raise ``ValueError`` if all rewards are zero: there is nothing to learn from."""
    if not rewards.any():
        raise ValueError(
            f"the rewards are all zero or missing, and {algo_name} learns from nothing else; label "
            'the data ("rewards"), or clone it with bc'
        )


class Seen(NamedTuple):
    """Holds all that a policy sees of a step in each of ``B`` environments.

    obs: raw observations ``{key: [B, T, ...]}`` with ``T = frame_stack``.
    goal: raw goals ``{key: [B, ...]}``.
    state: the policy's state after the last step, ``None`` at first.
    generators: a source of randomness per row.
    num_steps: training steps so far, on which exploration may depend.
    """

    obs: Obs
    goal: Obs | None = None
    state: Any = None
    generators: Generators = None
    num_steps: int = 0


NUM_PARTS = {"act": 4, "explore": 5}  # of ``Seen`` that these methods may have as arguments


class PolicyAlgo(Algo):
    """An algorithm with a policy.

    A subclass defines ``act(seen) -> (action, state)``, a pure function for any number of
    environments: it maps what is ``Seen`` in them to actions ``[B, A]``, normalised as in the
    dataset, and to the policy's next state. ``get_action`` and ``reset`` keep that state for one
    environment; an algorithm that defines only these two serves one environment. ``act`` and
    ``explore`` may also be called, and written, with the parts of ``Seen`` as arguments.
    """

    act: Callable[..., tuple[Tensor, Any]]

    _state: Any = None

    explores = False  #: True while ``explore`` asks ``act`` for actions to learn from.

    def __init_subclass__(cls, **options: Any) -> None:
        for name, num in NUM_PARTS.items():
            owner = next((kind for kind in cls.__mro__ if name in vars(kind)), PolicyAlgo)
            method = vars(owner).get(name)
            is_new = owner is cls or not issubclass(owner, PolicyAlgo)  # that is, of a mixin
            if is_new and isinstance(method, (FunctionType, staticmethod, classmethod)):
                setattr(cls, name, in_one_or_several(method, Seen, num))
        super().__init_subclass__(**options)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in NUM_PARTS and callable(value):  # of this algorithm alone
            method = in_one_or_several(staticmethod(value), Seen, NUM_PARTS[name])
            value = MethodType(method, self)
        super().__setattr__(name, value)

    @partial(in_one_or_several, kind=Seen, num=5)
    def explore(self, seen: Seen) -> tuple[Tensor, Any]:
        """Choose actions to learn from: those of ``act`` while ``explores`` is true, when offrl's
        policies sample, changed by ``explored``. Arguments and results are those of ``act``."""
        self.explores = True
        try:
            action, state = self.act(seen)
        finally:
            self.explores = False
        return self.explored(action, seen.generators), state

    def explored(self, action: Tensor, generators: Generators = None) -> Tensor:
        """Change actions ``[B, A]`` that ``explore`` chose, by noise for example."""
        return action

    def predict(self, obs: Obs | Tensor) -> Tensor:
        """Choose the likeliest actions in the units of the environment, ``[B, A]``, integers
        ``[B]`` or chunks ``[B, H, A]``, for observations ``{key: [B, ...]}``, or ``[B, ...]`` if
        there is only one key. Sampling is seeded: the result is always the same."""
        self.set_eval()
        named = self._with_time(self.named(obs))
        num = len(next(iter(named.values())))
        generators = [torch.Generator().manual_seed(0) for _ in range(num)]
        with torch.no_grad():
            return self._predict(Seen(named, generators=generators))

    def _predict(self, seen: Seen) -> Tensor:
        action, _ = self.act(seen)
        return self.raw_action(action)

    def named(self, obs: Obs | Tensor) -> Obs:
        """Return observations by their keys, also if ``obs`` is the array of the only key."""
        if isinstance(obs, Mapping):
            return obs
        keys = self.obs_spec.keys("obs")
        if len(keys) != 1:
            raise ValueError(
                f"observations without names, but {self.global_config.algo_name} sees "
                f"{', '.join(keys)}; give a dict of them"
            )
        array = obs if isinstance(obs, Tensor) else np.asarray(obs)
        if not isinstance(array, Tensor) and array.dtype.kind not in "biuf":
            raise ValueError(f"the observation {keys[0]!r} is {array.dtype}, no numbers")
        return {keys[0]: torch.as_tensor(array)}

    def learned_action(self, raw: Tensor) -> Tensor:
        """Turn the environment's actions, ``[B, A]`` or integers ``[B]``, into the form that
        ``act`` returns; rotations are not converted."""
        if self.is_discrete:
            index = raw.to(self.device, torch.int64)
            return torch.nn.functional.one_hot(index, self.ac_dim).float()
        return self.action_normalizer.normalize_vector(raw.to(self.device, torch.float32))

    def receive(self, state: Any, action: Tensor, reward: Tensor) -> Any:
        """Return the next state of a policy that counts rewards, after the ``action`` ``[B, A]``
        that was taken and its ``reward`` ``[B, 1]``."""
        return state

    @cached_property
    def model(self) -> "Networks":
        """The networks as a ``Model`` (``offrl.online``)."""
        from offrl.algos.shared.model import Networks

        return Networks(self)

    def sync_target(self) -> None:
        """Copy the networks' weights to their target networks, if there are any."""

    def action_distribution(
        self, obs: Obs, goal: Obs | None = None, state: Any = None
    ) -> tuple[Any, Any]:
        """Return the distribution that ``act`` samples from before it lowers noise (``mean``,
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
            action, self._state = self.act(Seen(obs, goal_dict, self._state))
        return action

    def reset(self) -> None:
        self._state = None

    def subgoal_of(self, state: Any) -> tuple[Mapping[str, Tensor], Tensor] | None:
        """Return the subgoal ``{key: [B, ...]}``, in the units of the data, of the action that
        ``act`` returned with ``state``, and the number of later actions ``[B]`` that will pursue
        it. ``None`` for policies without subgoals."""
        return None


class ValueAlgo(Algo):
    """An algorithm that estimates values, ``[B, 1]``."""

    @classmethod
    def values_actions(cls) -> bool:
        """Say whether it estimates values of actions, not only of states."""
        return cls.get_state_action_value is not ValueAlgo.get_state_action_value

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

    A subclass defines ``seen(obs, goal)``, which turns raw observations ``{key: [B, T, ...]}`` into
    network inputs (parts of a training batch), and ``plan(batch, generators)``, which proposes a
    subgoal for each row of these, with a source of randomness per row.
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
        """Raise ``ValueError``: a planner takes no actions."""
        raise ValueError(
            f"{self.global_config.algo_name}: a planner proposes subgoals, and takes no actions"
        )


class HierarchicalAlgo(PolicyAlgo):
    """A planner and an actor that follows its subgoals.

    States of ``act`` are dicts, with the ``"subgoal"`` and ``"steps_left"`` of ``subgoal_of``.
    """

    def subgoal_of(self, state: Any) -> tuple[Mapping[str, Tensor], Tensor]:
        return state["subgoal"], state["steps_left"]

    @property
    def current_subgoal(self) -> Mapping[str, Tensor] | None:
        """The subgoal that the actor follows, or ``None`` before the first step."""
        return None if self._state is None else self.subgoal_of(self._state)[0]
