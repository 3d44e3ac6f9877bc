"""Hierarchical implicit Q-learning (HIQL: Park et al., 2023, arXiv:2307.11949).

A value of goals ``V(s, g)`` is learned from states alone, whatever the actions between them were.
Two policies are extracted from it, both cloned with weights by its advantages: the planner predicts
the representation of the state ``subgoal_steps`` on, and the actor takes the action that leads
there. Near subgoals have values that differ clearly, where those of a far goal are all alike.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, model_validator

from offrl import models
from offrl.algos.base import Batch, HierarchicalAlgo, Info, Obs, register_algo
from offrl.algos.iql import InSampleConfig, expectile_loss
from offrl.algos.shared.actor_critic import ActorCritic, AdvantageConfig
from offrl.algos.shared.hierarchy import check_horizon, set_unless_stated
from offrl.config import Count, EncoderConfig, Share
from offrl.config.algo import CriticConfig, learning_rates
from offrl.config.networks import ActorConfig, LayersConfig
from offrl.config.section import Steps
from offrl.lazy import Tensor, torch
from offrl.specs import GOAL, LANGUAGE, ObsKey, ObsSpec
from offrl.tree import map_leaves

PHI = "representation"  # key of a subgoal's representation, the actor's goal


class PlannerConfig(LayersConfig):
    layer_dims: list[Count] = [512, 512, 512]
    adv: AdvantageConfig = AdvantageConfig()
    """Weights of subgoals by the advantage of their states."""


class HIQLConfig(InSampleConfig):
    ALGO_NAME = "hiql"
    DEFAULTS = {"train": {"batch_size": 1024, "goal_mode": "mixture", "goal_rewards": True}}

    OPTIMIZERS = learning_rates(vf=3e-4, planner=3e-4, actor=3e-4, decay_factor=0.0)
    target_tau: Share = 0.005
    subgoal_steps: Steps = 25
    """Number of steps after which a subgoal is to be reached."""
    representation_dim: Count = 10
    """Size of the representation of goals and subgoals."""
    expectile: float = Field(0.7, gt=0, lt=1)
    """Expectile of the value regression (tau). Nearer to 1, the shortest ways count more."""
    critic: CriticConfig = CriticConfig(layer_dims=[512, 512, 512])
    planner: PlannerConfig = PlannerConfig()
    """The policy of subgoals."""
    actor: ActorConfig = ActorConfig(layer_dims=[512, 512, 512])

    @model_validator(mode="after")
    def _regresses_on_expectiles(self) -> "HIQLConfig":
        if self.critic.use_huber:
            raise ValueError(
                "algo.critic.use_huber: values are expectiles, of the squared error; set it to "
                "false"
            )
        return self


@register_algo(HIQLConfig)
class HIQL(ActorCritic, HierarchicalAlgo):
    """``vf``: ``V(s, phi(s, g))``; ``planner``: ``phi(s, s_k)`` by ``s`` and ``g``; ``actor``:
    ``pi(a | s, phi(s, s_k))``."""

    algo_config: HIQLConfig
    LOGS_GRADIENTS = False

    @classmethod
    def complete_observation(cls, observation: Any, stated: Mapping[str, Any]) -> None:
        """Make the goal of all observations, unless the config names others."""
        goal = {
            modality: [key for key in keys if key != LANGUAGE]
            for modality, keys in observation.modalities.obs.items()
        }
        set_unless_stated(observation, stated, goal=goal)

    def _create_networks(self) -> None:
        config = self.algo_config
        if not self.obs_spec.keys("goal"):
            raise ValueError(
                "observation.modalities.goal: name the observations that a goal is made of"
            )
        if not self.global_config.train.goal_rewards:
            raise ValueError(
                "train.goal_rewards: hiql learns to reach goals, whatever the rewards of the data; "
                "set it to true"
            )
        spec, dim, frames = self.obs_spec, config.representation_dim, self.num_frames
        options = config.critic.ensemble.n, config.critic.value_bounds, frames
        self.nets["vf"] = models.GoalValues(spec, dim, config.critic.layer_dims, *options)
        self.add_target("vf")
        dims = config.planner.layer_dims
        self.nets["planner"] = models.mlp_outputs(spec, {PHI: (dim,)}, dims, frames)
        subgoal = {PHI: ObsKey("low_dim", (dim,), EncoderConfig())}
        self.add_stochastic_actor(ObsSpec({"obs": spec.groups["obs"], "goal": subgoal}))

    def inspect_lengths(self, lengths: Sequence[int]) -> None:
        check_horizon("subgoal_steps", self.algo_config, lengths)

    # -- training ---------------------------------------------------------------------------------

    def process_batch_for_training(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        waypoint = batch["waypoint_obs"]
        return super().process_batch_for_training(batch) | {
            "following_obs": self.obs_after(batch, 1, 1),  # whatever n_step is
            "high_goal_obs": self.prepare_obs(batch["high_goal_obs"], "goal"),
            "waypoint_obs": self.prepare_obs(waypoint),
            "waypoint_goal": self.prepare_obs(map_leaves(lambda x: x[:, -1], waypoint), "goal"),
            "subgoal_obs": self.prepare_obs(batch["subgoal_obs"], "goal"),
        }

    def value(self, obs: Any, goal: Any) -> Tensor:
        """Compute the mean of the values ``[B, 1]``, for observations as networks see them."""
        return self.nets["vf"](obs, goal).mean(0)

    def v_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Regress values ``[N, B, 1]`` on expectiles (equation 4). Each has a target and an
        expectile of its own; the authors' code weighs all by the advantage of the least target."""
        obs, goal = batch["obs"], batch["goal_obs"]
        with torch.no_grad():
            later = self.nets["vf_target"](batch["next_obs"], goal)
            target = batch["rewards"] + batch["discounts"] * later
        v = self.nets["vf"](obs, goal)
        return expectile_loss(target - v, self.algo_config.expectile), v

    def pi_high_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Clone subgoals by their advantage (equation 6), with variance 1 around predictions."""
        obs, goal = batch["obs"], batch["high_goal_obs"]
        with torch.no_grad():
            advantage = self.value(batch["waypoint_obs"], goal) - self.value(obs, goal)
            phi = self.nets["vf"].representation(obs, batch["waypoint_goal"])
        predicted = self.nets["planner"](obs, goal)[0][PHI]
        log_prob = -0.5 * (predicted - phi).square().sum(-1)
        return -(self.algo_config.planner.adv.weights(advantage) * log_prob).mean(), advantage

    def pi_low_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Clone actions by their advantage (equation 7)."""
        obs, subgoal = batch["obs"], batch["subgoal_obs"]
        with torch.no_grad():
            phi = self.nets["vf"].representation(obs, subgoal)
            now = self.nets["vf"].values(obs, phi).mean(0)
            advantage = self.value(batch["following_obs"], subgoal) - now
        log_prob = self.nets["actor"](obs, {PHI: phi[:, 0]})[0].log_prob(batch["actions"])
        return -(self.algo_config.adv.weights(advantage) * log_prob).mean(), advantage

    def update(self, batch: Batch) -> Info:
        v_loss, v = self.v_loss(batch)
        planner_loss, planner_advantage = self.pi_high_loss(batch)
        actor_loss, actor_advantage = self.pi_low_loss(batch)
        self.optimize("vf", v_loss, self.algo_config.critic.max_gradient_norm)
        self.update_targets()
        self.optimize("planner", planner_loss)
        self.optimize("actor", actor_loss)
        return {
            "loss": v_loss + planner_loss + actor_loss,
            "vf/v_loss": v_loss,
            "vf/v_pred": v.mean(),
            "planner/loss": planner_loss,
            "planner/adv": planner_advantage.mean(),
            "actor/loss": actor_loss,
            "actor/adv": actor_advantage.mean(),
        }

    # -- acting -----------------------------------------------------------------------------------

    def action_distribution(
        self, obs: Obs, goal: Obs | None = None, state: Any = None
    ) -> tuple[Any, Any]:
        """Return the actor's distribution for the likeliest subgoal, a new one in each step."""
        seen = self.prepare_obs(obs)
        predicted = self.nets["planner"](seen, self.prepare_obs(goal, "goal"))[0][PHI]
        subgoal = {PHI: models.normalized(predicted)[:, -1]}
        steps_left = torch.zeros(len(predicted), dtype=torch.long)
        state = {"subgoal": subgoal, "steps_left": steps_left}
        return self.nets["actor"](seen, subgoal)[0], state

    def get_state_value(self, obs_dict: Any, goal_dict: Any = None) -> Tensor:
        """Compute ``V(s, g)`` ``[B, 1]``: minus the steps to the goal, discounted."""
        obs = self.prepare_states(obs_dict, goal_dict)
        return self.value(obs, obs.get(GOAL))

    def get_state_action_value(
        self, obs_dict: Obs, actions: Tensor, goal_dict: Any = None
    ) -> Tensor:
        raise ValueError("hiql: its values are of states and goals, not of actions")
