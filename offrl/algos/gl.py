"""Goal prediction: predict the observation ``subgoal_horizon`` steps ahead.

It is the high level of HBC (GTI: Mandlekar et al., 2020, arXiv:2003.06085) and of IRIS (Mandlekar
et al., 2020, arXiv:1911.05321). A regression predicts the mean of what may come; a conditional
VAE draws one of several futures.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import model_validator

from offrl import models
from offrl.algos.base import Batch, Generators, Info, Obs, PlannerAlgo, register_algo_factory_func
from offrl.algos.bc import LOG_NAMES, vae_loss
from offrl.algos.shared.hierarchy import check_horizon, set_unless_stated
from offrl.config import AlgoConfig, Count, Section
from offrl.config.networks import VAEConfig
from offrl.config.section import Steps
from offrl.lazy import Tensor, torch
from offrl.normalize import Normalizer, Stats
from offrl.specs import LANGUAGE
from offrl.tree import map_leaves


class RegressionConfig(Section):
    """The network that predicts one subgoal."""

    planner_layer_dims: list[Count] = [300, 400]
    """Sizes of the hidden layers of a planner that is no VAE."""


class GLConfig(AlgoConfig):
    ALGO_NAME = "gl"

    OPTIMIZERS = {"goal_network": 1e-4}
    subgoal_horizon: Steps = 10
    """Number of steps after which a subgoal is to be reached. It is also the length of training
    samples, unless train.seq_length is set."""
    ae: RegressionConfig = RegressionConfig()
    """A planner that predicts one subgoal for each state."""
    vae: VAEConfig = VAEConfig(enabled=True, latent_dim=16)
    """A planner that is a VAE, which draws one of several subgoals."""

    @model_validator(mode="after")
    def _switches_agree(self) -> "GLConfig":
        self.vae.check()
        return self


class GL(PlannerAlgo):
    """One network, ``goal_network``: the subgoal ``s_g(s, g)``."""

    algo_config: GLConfig

    NEEDS = ("obs", "next_obs")
    GROUPS = ("obs", "goal", "subgoal")
    ACTIONS = ("real-valued", "discrete")

    @classmethod
    def window(cls, algo_config: GLConfig) -> dict[str, int]:
        return {"seq_length": algo_config.subgoal_horizon}

    @classmethod
    def complete_observation(cls, observation: Any, stated: Mapping[str, Any]) -> None:
        seen = observation.modalities.obs.get("low_dim", [])
        predicted = [key for key in seen if key != LANGUAGE]
        subgoal = {**observation.modalities.subgoal, "low_dim": predicted}
        set_unless_stated(observation, stated, subgoal=subgoal)

    def _create_networks(self) -> None:
        horizon, seq_length = self.algo_config.subgoal_horizon, self.global_config.train.seq_length
        if seq_length < horizon:
            raise ValueError(
                f"train.seq_length: {seq_length}, but algo.subgoal_horizon is {horizon}: a sample "
                "would end before its subgoal; set train.seq_length to that or more"
            )
        if not self.obs_spec.keys("subgoal"):
            raise ValueError(
                "observation.modalities.subgoal: name the observations that are predicted"
            )
        self.nets["goal_network"] = self._goal_network()

    def _goal_network(self) -> "torch.nn.Module":
        shapes, dims = self.obs_spec.shapes("subgoal"), self.algo_config.ae.planner_layer_dims
        return models.mlp_outputs(self.obs_spec, shapes, dims, self.num_frames)

    def inspect_lengths(self, lengths: Sequence[int]) -> None:
        check_horizon("subgoal_horizon", self.algo_config, lengths)

    def process_batch_for_training(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        at = self.num_frames - 1 + self.algo_config.subgoal_horizon - 1
        subgoals = map_leaves(lambda x: x[:, at : at + 1], self.needed(batch, "next_obs"))
        goal = batch.get("goal_obs")
        return {
            **self.seen(map_leaves(lambda x: x[:, : self.num_frames], batch["obs"]), goal),
            "target_subgoals": self.prepare_obs(subgoals, "subgoal"),
        }

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Compute ``goal_loss``, the error of the subgoals, and its terms."""
        predicted, _ = self.nets["goal_network"](batch["obs"])
        targets = batch["target_subgoals"]
        errors = {key: (x - targets[key]).square().mean() for key, x in predicted.items()}
        losses = {f"goal_{key}_loss": error for key, error in errors.items()}
        return losses | {"goal_loss": torch.stack([*errors.values()]).sum()}

    def update(self, batch: Batch) -> Info:
        losses = self.losses(batch)
        loss = losses["goal_loss"]
        return {"loss": loss, **losses, "Grad_Norms": self.optimize("goal_network", loss)}

    # -- planning ---------------------------------------------------------------------------------

    def sample_subgoals(
        self, obs_dict: Obs, goal_dict: Any = None, num_samples: int = 1
    ) -> dict[str, Tensor]:
        return self.propose(self.seen(self._with_time(obs_dict), goal_dict), num_samples)

    def seen(self, obs: Obs, goal: Obs | None) -> dict[str, Any]:
        return {"obs": self.prepare(obs, goal)}

    def plan(self, batch: Mapping[str, Any], generators: Generators = None) -> dict[str, Tensor]:
        return map_leaves(lambda x: x[:, 0], self.propose(batch, 1, generators))

    def propose(
        self, batch: Mapping[str, Any], num_samples: int, generators: Generators = None
    ) -> dict[str, Tensor]:
        """Draw subgoals ``{key: [B, num_samples, ...]}`` in the data's units, for what was
        ``seen``."""
        predicted = self._propose(batch["obs"], num_samples, generators)
        return self.subgoal_normalizer.unnormalize(predicted)

    def _propose(
        self, obs: Any, num_samples: int, generators: Generators = None
    ) -> dict[str, Tensor]:
        """Draw subgoals as ``propose`` does, but as the network outputs them."""
        predicted, _ = self.nets["goal_network"](obs)
        return map_leaves(lambda x: x.repeat_interleave(num_samples, dim=1), predicted)

    # -- statistics -------------------------------------------------------------------------------

    def set_statistics(self, obs: Stats, actions: Stats, subgoals: Stats | None = None) -> None:
        """Normalise by a dataset's statistics, and ``subgoals`` by others if given: robomimic's
        planners predict subgoals as they are recorded."""
        super().set_statistics(obs, actions)
        self.subgoal_normalizer = Normalizer(obs if subgoals is None else subgoals, self.device)

    def serialize(self) -> dict[str, Any]:
        state = super().serialize()
        state["normalization"]["subgoals"] = self.subgoal_normalizer.stats
        return state


class GL_VAE(GL):
    """The goal network is a VAE: ``p(s_g | z, s, g)``."""

    def _goal_network(self) -> "torch.nn.Module":
        return models.observation_vae_from_config(
            self.algo_config.vae, self.obs_spec, "subgoal", self.num_frames
        )

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        net, config = self.nets["goal_network"], self.algo_config.vae
        loss, terms = vae_loss(net, config, self.epoch, batch["obs"], batch["target_subgoals"])
        robomimics = {"recons_loss": terms["reconstruction"], "kl_loss": terms["kl"]}
        return {"goal_loss": loss, **robomimics, **{LOG_NAMES[k]: x for k, x in terms.items()}}

    def _propose(
        self, obs: Any, num_samples: int, generators: Generators = None
    ) -> dict[str, Tensor]:
        subgoals, _ = self.nets["goal_network"].sample(obs, None, generators, num_samples)
        return subgoals

    def latent_subgoals(self, batch: Mapping[str, Any], num_prior_samples: int = 0) -> Tensor:
        """Encode the subgoals of a training batch: ``[B, Z]``, drawn from the posterior, or the
        nearest of ``num_prior_samples`` draws from the prior, as while acting."""
        net, obs = self.nets["goal_network"], batch["obs"]
        posterior, _ = net.posterior(obs, given=batch["target_subgoals"])
        z = net.prior.draw(posterior, self.algo_config.vae.prior.temperature(self.epoch or 0))
        if num_prior_samples:
            drawn = net.latents(obs, num_samples=num_prior_samples)
            nearest = (drawn - z).square().sum(-1).argmin(1)
            z = drawn.take_along_dim(nearest[:, None, None], dim=1)
        return z[:, 0]

    def draw_latents(self, batch: Mapping[str, Any], generators: Generators = None) -> Tensor:
        """Draw latent subgoals ``[B, Z]`` from the prior, without decoding them."""
        return self.nets["goal_network"].latents(batch["obs"], generators, 1)[:, 0]


@register_algo_factory_func("gl")
def algo_config_to_class(algo_config: GLConfig) -> tuple[type[GL], dict[str, Any]]:
    return (GL_VAE if algo_config.vae.enabled else GL), {}
