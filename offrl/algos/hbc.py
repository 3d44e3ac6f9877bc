"""Hierarchical behavioural cloning: a planner draws subgoals, and an actor is cloned that reaches
them (GTI: Mandlekar et al., 2020, arXiv:2003.06085).

Both learn from the same windows. The subgoal of a state is what was observed
``planner.subgoal_horizon`` steps later; while acting, the planner draws a new one every
``subgoal_update_interval`` steps.
"""

import logging
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from offrl.algos.base import Batch, Generators, HierarchicalAlgo, Seen, register_algo
from offrl.algos.bc import BC, BCConfig
from offrl.algos.gl import GL, GLConfig
from offrl.algos.shared.hierarchy import Composite, check_predicted, set_unless_stated
from offrl.config import (
    AlgoConfig,
    Count,
    EncoderConfig,
    HierarchyObservationConfig,
    ObservationConfig,
    Section,
)
from offrl.config.networks import RNNConfig
from offrl.config.section import Steps
from offrl.lazy import Tensor, torch
from offrl.specs import ObsKey, is_image, with_goal

log = logging.getLogger(__name__)

LATENT = "latent_subgoal"  # robomimic's name of the observation


class PriorCorrectionConfig(Section):
    enabled: bool = False
    """Train the actor with the nearest of some latents of the prior, which are all that it sees
    while acting, instead of those of the encoder."""
    num_samples: Count = 100
    """Number of latents that are drawn for that."""


class LatentSubgoalConfig(Section):
    enabled: bool = False
    """Give the actor the planner's latents instead of observations. The planner must be a VAE."""
    prior_correction: PriorCorrectionConfig = PriorCorrectionConfig()
    """Latents that the actor is trained with."""


class HierarchyConfig(AlgoConfig):
    """The keys that HBC and IRIS share."""

    mode: Literal["separate", "cascade"] = "separate"
    """Subgoals that the actor learns with: those of the data, or with "cascade" the planner's."""
    actor_use_random_subgoals: bool = False
    """Train the actor with the observation of a random later step, not that at the horizon."""
    subgoal_update_interval: Steps = 10
    """Number of steps for which the actor follows a subgoal."""
    latent_subgoal: LatentSubgoalConfig = LatentSubgoalConfig()
    """Subgoals that are latents of the planner."""
    actor: BCConfig = BCConfig(rnn=RNNConfig(enabled=True))
    """The actor, with the keys of the algorithm bc."""

    @model_validator(mode="after")
    def _has_no_networks(self) -> "HierarchyConfig":
        if self.optim_params:
            raise ValueError(
                "algo.optim_params: each part has optimizers of its own, such as "
                "algo.actor.optim_params"
            )
        return self


class HBCObservation(HierarchyObservationConfig):
    planner: ObservationConfig = ObservationConfig()
    """Observations of the planner, and its subgoals."""
    actor: ObservationConfig = ObservationConfig()
    """Observations of the actor; its goals are the subgoals."""


class HBCConfig(HierarchyConfig):
    ALGO_NAME = "hbc"
    OBSERVATION = HBCObservation

    planner: GLConfig = GLConfig()
    """The planner, with the keys of gl."""


@register_algo(HBCConfig)
class HBC(Composite, HierarchicalAlgo):
    """``parts``: the planner ``s_g(s, g)`` and the actor ``pi(a | s, s_g)``."""

    algo_config: HBCConfig

    NEEDS: ClassVar[tuple[str, ...]] = ("obs", "next_obs", "actions")
    ACTIONS: ClassVar[tuple[str, ...]] = BC.ACTIONS
    LOG_NAMES = {"planner": "Planner", "actor": "Actor"}

    @classmethod
    def window(cls, algo_config: Any) -> dict[str, int]:
        wanted = BC.window(algo_config.actor)
        horizon = algo_config.planner.subgoal_horizon
        return wanted | {"seq_length": max(horizon, wanted.get("seq_length", 1))}

    @classmethod
    def complete_observation(cls, observation: Any, stated: Mapping[str, Any]) -> None:
        GL.complete_observation(observation.planner, stated.get("planner", {}))
        follow_subgoals(observation.planner, observation.actor, stated.get("actor", {}))

    def _make_parts(self) -> dict[str, Any]:
        planner = self._part("planner", "gl")
        return {"planner": planner, "actor": self._make_actor(planner)}

    def _make_actor(self, planner: Any) -> Any:
        """Make an actor whose goals are the planner's subgoals."""
        if self.algo_config.latent_subgoal.enabled:
            if not planner.algo_config.vae.enabled:
                raise ValueError(
                    "algo.latent_subgoal.enabled: a regression has no latents; set "
                    "algo.planner.vae.enabled to true"
                )
            size = planner.nets["goal_network"].prior.latent_size
            latent = ObsKey("low_dim", (size,), EncoderConfig())
            return self._part("actor", "bc", goal={LATENT: latent})
        actor = self._part("actor", "bc")
        goals = actor.obs_spec.keys("goal")
        check_predicted("actor.modalities.goal", goals, planner)
        if not goals:
            log.warning(
                "observation.actor.modalities.goal names nothing, so that the actor does not see "
                "its subgoal, as by default in robomimic; leave it out, or name there "
                f"{', '.join(planner.obs_spec.keys('subgoal'))}"
            )
        return actor

    @property
    def goal_planner(self) -> Any:
        """Return the part that predicts subgoals."""
        return self.parts["planner"]

    # -- training ---------------------------------------------------------------------------------

    def process_batch_for_training(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Make the parts' batches, and the actor's ``subgoals`` ``{key: [B, ...]}``."""
        gl, seq_length = self.goal_planner, self.global_config.train.seq_length
        now, size = self.num_frames - 1, len(batch["actions"])
        later = self.needed(batch, "next_obs")
        steps: Any = slice(None), now + gl.algo_config.subgoal_horizon - 1
        if self.algo_config.actor_use_random_subgoals:
            place = batch["actions"].device  # before the batch is moved
            drawn = torch.randint(seq_length, (size,), device=place)
            steps = torch.arange(size, device=place), now + drawn
        return {
            "planner": self._processed("planner", batch),
            "actor": self._processed("actor", {**batch, "goal_obs": None}),
            "subgoals": {key: later[key][steps] for key in gl.obs_spec.keys("subgoal")},
        }

    def _batch_of(self, name: str, batch: Batch) -> dict[str, Any]:
        if name != "actor":
            return batch[name]
        with torch.no_grad():
            goal = self.parts["actor"].prepare_obs(self._followed(batch), "goal")
        own = batch["actor"]
        return {**own, "obs": with_goal(own["obs"], goal), "goal_obs": goal}

    def _followed(self, batch: Batch) -> dict[str, Tensor]:
        """Return the subgoals to train the actor with: predicted ones, or those of the data."""
        if self.algo_config.mode == "cascade":
            return self._plan(batch["planner"])
        latent = self.algo_config.latent_subgoal
        if not latent.enabled:
            return batch["subgoals"]
        gl, correction = self.goal_planner, latent.prior_correction
        targets = {key: x[:, None] for key, x in batch["subgoals"].items()}
        seen = {**batch["planner"], "target_subgoals": gl.prepare_obs(targets, "subgoal")}
        num_samples = correction.num_samples if correction.enabled else 0
        return {LATENT: gl.latent_subgoals(seen, num_samples)}

    # -- acting -----------------------------------------------------------------------------------

    def _plan(self, seen: Mapping[str, Any], generators: Generators = None) -> dict[str, Tensor]:
        planner = self.parts["planner"]
        if self.algo_config.latent_subgoal.enabled:
            return {LATENT: planner.draw_latents(seen, generators)}
        return planner.plan(seen, generators)

    def act(self, seen: Seen) -> tuple[Tensor, Any]:
        planner, actor = self.parts["planner"], self.parts["actor"]
        obs, goal, state, generators, _ = seen
        if state is None:  # the start of an episode, at which a subgoal is due
            left = torch.zeros(len(next(iter(obs.values()))), dtype=torch.long)
            state = {"steps_left": left, "subgoal": None, "actor": None}
        left, subgoal = state["steps_left"].cpu(), state["subgoal"]
        due = left == 0
        if generators is not None:  # rows without a generator are padding
            due &= torch.tensor([generator is not None for generator in generators])
        if subgoal is None or due.any():
            drawing = None
            if generators is not None:  # other rows draw nothing
                drawing = [g if d else None for g, d in zip(generators, due, strict=True)]
            new = self._plan(planner.seen(obs, goal), drawing)
            subgoal = new if subgoal is None else _where(due, new, subgoal)
        left = torch.where(due, self.algo_config.subgoal_update_interval, left)
        action, followed = actor.act(Seen(obs, subgoal, state["actor"], generators))
        left = (left - 1).clamp(min=0)
        return action, {"steps_left": left, "subgoal": subgoal, "actor": followed}


def follow_subgoals(planner: Any, actor: Any, stated: Mapping[str, Any]) -> None:
    """Let the actor see the planner's observations and subgoals, unless the config names others."""
    seen = planner.modalities
    set_unless_stated(actor, stated, obs=seen.obs, goal=vectors(seen.subgoal))


def vectors(subgoals: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Leave out images, which other parts cannot take from a planner."""
    return {modality: [] if is_image(modality) else keys for modality, keys in subgoals.items()}


def _where(rows: Tensor, new: Mapping[str, Tensor], old: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        key: torch.where(rows.to(x.device).view(-1, *[1] * (x.ndim - 1)), x, old[key])
        for key, x in new.items()
    }
