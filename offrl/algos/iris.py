"""IRIS: a planner proposes subgoals, a value function chooses the best of them, and an actor is
cloned that reaches it (Mandlekar et al., 2020, arXiv:1911.05321).

The planner is a model of what comes next in the data, good or bad; the value function, of BCQ,
makes it prefer what leads to rewards.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import model_validator

from offrl.algos.base import Generators, Obs, PlannerAlgo, ValueAlgo, register_algo
from offrl.algos.bcq import BCQ, BCQConfig
from offrl.algos.gl import GL, GLConfig
from offrl.algos.hbc import HBC, HierarchyConfig, follow_subgoals, vectors
from offrl.algos.shared.hierarchy import Composite, check_predicted, set_unless_stated
from offrl.config import Count, HierarchyObservationConfig, ObservationConfig, Section
from offrl.lazy import Tensor, torch
from offrl.specs import with_goal
from offrl.tree import map_leaves

AT_ONCE = 2048  # subgoals that are valued in one pass, with many actions each


class ValuePlannerConfig(Section):
    planner: GLConfig = GLConfig()
    """Planner, which proposes subgoals, with the keys of gl."""
    value: BCQConfig = BCQConfig()
    """Value function, which chooses one of them, with the keys of bcq."""
    num_samples: Count = 100
    """Number of proposals, of which the best is taken."""


class ValuePlannerObservation(HierarchyObservationConfig):
    planner: ObservationConfig = ObservationConfig()
    """Observations of the planner, and its subgoals."""
    value: ObservationConfig = ObservationConfig()
    """Observations of the value function, which must be among those that are predicted."""


class IRISObservation(HierarchyObservationConfig):
    value_planner: ValuePlannerObservation = ValuePlannerObservation()
    """Observations of the two parts of the planner."""
    actor: ObservationConfig = ObservationConfig()
    """Observations of the actor; its goals are the subgoals."""


class IRISConfig(HierarchyConfig):
    ALGO_NAME = "iris"
    OBSERVATION = IRISObservation

    value_planner: ValuePlannerConfig = ValuePlannerConfig()
    """A planner, and a value function that chooses."""

    @property
    def planner(self) -> GLConfig:
        return self.value_planner.planner

    @property
    def discount(self) -> float:
        return self.value_planner.value.discount

    @model_validator(mode="after")
    def _has_no_latents(self) -> "IRISConfig":
        if self.latent_subgoal.enabled:
            raise ValueError(
                "algo.latent_subgoal.enabled: the value function of iris judges observations, not "
                "latents; set it to false, or use hbc"
            )
        return self


class ValuesOfPart(ValueAlgo):
    """An algorithm whose values of states and actions are those of one of its parts."""

    VALUES: ClassVar[str]  # the name of that part
    parts: dict[str, Any]

    def get_state_value(self, obs_dict: Obs, goal_dict: Any = None) -> Tensor:
        return self.parts[self.VALUES].get_state_value(obs_dict, goal_dict)

    def get_state_action_value(
        self, obs_dict: Obs, actions: Tensor, goal_dict: Any = None
    ) -> Tensor:
        return self.parts[self.VALUES].get_state_action_value(obs_dict, actions, goal_dict)


class ValuePlanner(Composite, PlannerAlgo, ValuesOfPart):
    """``parts``: the ``planner`` ``s_g(s, g)`` and the ``value_net`` ``V(s_g, g)``."""

    algo_config: Any  # the section ``value_planner`` of IRIS

    VALUES = "value_net"
    LOG_NAMES = {"planner": "Planner", "value_net": "ValueNetwork"}
    PLACES = {"value_net": "value"}

    def _make_parts(self) -> dict[str, Any]:
        planner, value = self._part("planner", "gl"), self._part("value_net", "bcq")
        check_predicted("value.modalities.obs", value.obs_spec.keys("obs"), planner)
        return {"planner": planner, "value_net": value}

    def seen(self, obs: Obs, goal: Obs | None) -> dict[str, Any]:
        planner = self.parts["planner"]
        goals = self.parts["value_net"].prepare_obs(goal, "goal")
        return {"planner": planner.seen(obs, goal), "value_net": {"goal_obs": goals}}

    def plan(self, batch: Mapping[str, Any], generators: Generators = None) -> dict[str, Tensor]:
        """Propose ``num_samples`` subgoals, and return the one of the highest value."""
        num = self.algo_config.num_samples
        subgoals = self.parts["planner"].propose(batch["planner"], num, generators)
        goals = map_leaves(
            lambda x: x.repeat_interleave(num, dim=0), batch["value_net"]["goal_obs"]
        )
        each = None if generators is None else [g for g in generators for _ in range(num)]
        values = self._values(map_leaves(lambda x: x.flatten(0, 1), subgoals), goals, each)
        best = values.view(-1, num).argmax(1)
        rows = torch.arange(len(best), device=best.device)
        return map_leaves(lambda x: x[rows, best], subgoals)

    def _values(self, subgoals: Obs, goals: Any, generators: Generators) -> Tensor:
        """Compute values ``[N, 1]`` of subgoals ``{key: [N, ...]}``, in the data's units."""
        value, frames = self.parts["value_net"], self.num_frames
        stacks = map_leaves(lambda x: x[:, None].repeat_interleave(frames, dim=1), subgoals)
        obs, values = with_goal(value.prepare_obs(stacks), goals), []
        for first in range(0, len(next(iter(obs.values()))), AT_ONCE):
            rows = slice(first, first + AT_ONCE)
            some = map_leaves(lambda x, rows=rows: x[rows], obs)
            own = None if generators is None else generators[rows]
            values.append(value.best_action(some, own)[0])
        return torch.cat(values)

    def sample_subgoals(
        self, obs_dict: Obs, goal_dict: Any = None, num_samples: int = 1
    ) -> dict[str, Tensor]:
        return self.parts["planner"].sample_subgoals(obs_dict, goal_dict, num_samples)


@register_algo(IRISConfig)
class IRIS(HBC, ValuesOfPart):
    """``parts``: the ``planner``, a ``ValuePlanner``, and the actor ``pi(a | s, s_g)``."""

    VALUES = "planner"
    algo_config: IRISConfig  # type: ignore[assignment]

    NEEDS = ("obs", "next_obs", "actions", "rewards", "dones")
    ACTIONS = ("real-valued",)
    PLACES = {"planner": "value_planner"}

    @classmethod
    def window(cls, algo_config: Any) -> dict[str, int]:
        wanted, steps = super().window(algo_config), BCQ.window(algo_config.value_planner.value)
        return wanted | {"seq_length": max(wanted["seq_length"], steps["seq_length"])}

    @classmethod
    def complete_observation(cls, observation: Any, stated: Mapping[str, Any]) -> None:
        both, said = observation.value_planner, stated.get("value_planner", {})
        GL.complete_observation(both.planner, said.get("planner", {}))
        seen = both.planner.modalities
        judged = {"obs": vectors(seen.subgoal), "goal": seen.goal}
        set_unless_stated(both.value, said.get("value", {}), **judged)
        follow_subgoals(both.planner, observation.actor, stated.get("actor", {}))

    def _make_parts(self) -> dict[str, Any]:
        planner = self._part("planner", "iris", ValuePlanner)
        actor = self._make_actor(planner.parts["planner"])
        return {"planner": planner, "actor": actor}

    @property
    def goal_planner(self) -> Any:
        return self.parts["planner"].parts["planner"]
