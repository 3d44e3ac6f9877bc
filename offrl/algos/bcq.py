"""Batch-constrained Q-learning (Fujimoto et al., 2019, arXiv:1812.02900).

A generative model of the data's actions proposes some, a network may perturb them a little, and the
one of the highest value is taken: in the targets and while acting.
"""

from typing import Any

from pydantic import Field, model_validator

from offrl import models
from offrl.algos.base import Generators, PolicyAlgo, Seen, register_algo_factory_func
from offrl.algos.shared.distributional import DistributionalCritic
from offrl.algos.shared.td import TDLearner
from offrl.config import Count, OptimConfig, Section
from offrl.config.algo import (
    DistributionalCriticConfig,
    StagedOptimConfig,
    TDConfig,
    WeightedCriticConfig,
    WeightedEnsembleConfig,
    learning_rates,
)
from offrl.config.networks import GMMConfig, VAEConfig
from offrl.lazy import Tensor, torch


class BCQCriticConfig(WeightedCriticConfig, DistributionalCriticConfig):
    num_action_samples: Count = 10
    """Number of proposed actions in a target, of which the best counts."""
    num_action_samples_rollout: Count = 100
    """Number of proposed actions while acting, of which the best is taken."""


class ActionSamplerConfig(Section):
    actor_layer_dims: list[Count] = [1024, 1024]
    """Sizes of the hidden layers of the mixture's network."""
    gmm: GMMConfig = GMMConfig()
    """A mixture of Gaussians; if enabled, it is used and not the VAE."""
    vae: VAEConfig = VAEConfig(enabled=True)
    """A VAE."""
    freeze_encoder_epoch: int = -1
    """Epoch from which on the VAE's encoder is trained no more. -1: never."""


class PerturbationConfig(Section):
    enabled: bool = False
    """Let a network change proposed actions a little."""
    perturbation_scale: float = Field(0.05, ge=0)
    """Largest change of each of an action's numbers."""
    layer_dims: list[Count] = [300, 400]
    """Sizes of the hidden layers of that network."""


class BCQConfig(TDConfig):
    ALGO_NAME = "bcq"

    optim_params: dict[str, StagedOptimConfig] = {}
    OPTIMIZERS = learning_rates(critic=1e-3, action_sampler=1e-3, actor=1e-3, staged=True)
    critic: BCQCriticConfig = BCQCriticConfig(ensemble=WeightedEnsembleConfig(weight=0.75))
    action_sampler: ActionSamplerConfig = ActionSamplerConfig()
    """Model of the data's actions, which proposes actions."""
    actor: PerturbationConfig = PerturbationConfig()
    """Network that changes proposed actions a little."""

    @model_validator(mode="after")
    def _switches_agree(self) -> "BCQConfig":
        sampler = self.action_sampler
        if not (sampler.gmm.enabled or sampler.vae.enabled):
            raise ValueError(
                "algo.action_sampler.gmm.enabled and vae.enabled are both false; enable one"
            )
        return self


class BCQ(TDLearner, PolicyAlgo):
    algo_config: BCQConfig

    def _create_networks(self) -> None:
        config, spec = self.algo_config, self.obs_spec
        self.add_critics()
        # robomimic's order: the mixture wins where both are enabled, as the VAE is by default.
        self._has_gmm = config.action_sampler.gmm.enabled
        make = models.actor_from_config if self._has_gmm else models.vae_from_config
        self.nets["action_sampler"] = make(
            config.action_sampler, spec, self.ac_dim, self.num_frames
        )
        if config.actor.enabled:
            self.nets["actor"] = models.PerturbationActor(
                spec,
                self.ac_dim,
                config.actor.layer_dims,
                config.actor.perturbation_scale,
                self.num_frames,
            )
            self.add_target("actor")

    def _optim_params(self) -> dict[str, OptimConfig]:
        optims = super()._optim_params()
        return {name: o for name, o in optims.items() if name != "actor" or name in self.nets}

    def update(self, batch: dict[str, Any]) -> dict[str, Tensor | None]:
        parts = [self._train_sampler(batch)]
        training = self.nets.training
        self.nets["action_sampler"].eval()  # its randomizers rest while it proposes
        parts.append(self._train_critics(batch))
        if "actor" in self.nets:
            parts.append(self._train_actor(batch))
        self.nets["action_sampler"].train(training)
        for name in filter(self.trains, self._targets):
            self.update_targets(name)
        loss = sum(part["loss"] for part in parts)
        return {k: v for part in parts for k, v in part.items()} | {"loss": loss}

    def _train_sampler(self, batch: dict[str, Any]) -> dict[str, Any]:
        obs, actions = batch["obs"], batch["actions"]
        config, sampler = self.algo_config.action_sampler, self.nets["action_sampler"]
        if self._has_gmm:
            loss, info = -sampler(obs)[0].log_prob(actions).mean(), {}
        else:
            # The posterior sees the step's one observation and its action.
            is_frozen = 0 <= config.freeze_encoder_epoch <= self.epoch
            temperature = config.vae.prior.temperature(self.epoch)
            terms = sampler.losses(obs, actions, temperature, is_frozen)
            info = {name: term.mean() for name, term in terms.items()}
            loss = info["reconstruction"] + config.vae.kl_weight * info["kl"]
        names = {
            "reconstruction": "Reconsruction_Loss",  # robomimic's spelling
            "kl": "KL_Loss",
            "variance": "Encoder_Variance",
            "temperature": "Gumbel_Temperature",
        }
        logs = {f"Action_Sampler/{names[k]}": v for k, v in info.items()}
        logs["Action_Sampler/Grad_Norms"] = self.optimize("action_sampler", loss)
        return logs | {"Action_Sampler/Loss": loss, "loss": loss.detach()}

    def _train_critics(self, batch: dict[str, Any]) -> dict[str, Any]:
        num = self.algo_config.critic.num_action_samples
        with torch.no_grad():
            proposals = self._propose(batch["next_obs"], num, "actor_target")
            target = self.backup(batch, proposals)
        losses, _ = self.critic_losses(batch, target)
        return self.optimize_critics(batch, losses) | {"Critic/Q_Targets": target.mean()}

    def _train_actor(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The perturbation climbs the first critic (deterministic policy gradient)."""
        obs = batch["obs"]
        with torch.no_grad():
            proposals = self._sample(obs, 1)
        perturbed = self.nets["actor"](obs, proposals)
        loss = -self.nets["critic"].first(obs, perturbed).mean()
        norm = self.optimize("actor", loss)
        return {"Actor/Loss": loss, "Actor/Grad_Norms": norm, "loss": loss.detach()}

    def _propose(
        self, obs: Any, num_samples: int, actor: str, generators: Generators = None
    ) -> Tensor:
        """Actions ``[B, num_samples, A]``, perturbed by ``actor``."""
        actions = self._sample(obs, num_samples, generators)
        return self.nets[actor](obs, actions) if "actor" in self.nets else actions

    def _sample(self, obs: Any, num_samples: int, generators: Generators = None) -> Tensor:
        sampler = self.nets["action_sampler"]
        if not self._has_gmm:
            return sampler.sample(obs, None, generators, num_samples)[0]
        pi = sampler(obs)[0]
        if self.algo_config.action_sampler.gmm.low_noise_eval:
            pi = pi.low_noise()
        return pi.repeated(num_samples).sample(generators)

    # -- acting -----------------------------------------------------------------------------------

    def best_action(self, obs: Any, generators: Generators = None) -> tuple[Tensor, Tensor]:
        """The first critic's value ``[B, 1]`` of the best proposal ``[B, A]``, for observations as
        networks see them."""
        num = self.algo_config.critic.num_action_samples_rollout
        proposals = self._propose(obs, num, "actor", generators)
        value, best = self.nets["critic"].first(obs, proposals).max(1, keepdim=True)
        return value, proposals.take_along_dim(best[..., None], dim=1)[:, 0]

    def act(self, seen: Seen) -> tuple[Tensor, Any]:
        obs = self.prepare(seen.obs, seen.goal)
        return self.best_action(obs, seen.generators)[1], seen.state

    def get_state_value(self, obs_dict: Any, goal_dict: Any = None) -> Tensor:
        """The value of the best proposal, ``[B, 1]``."""
        return self.best_action(self.prepare_states(obs_dict, goal_dict))[0]


class DistributionalBCQ(DistributionalCritic, BCQ):
    pass


# robomimic's names
BCQ_Distributional = DistributionalBCQ
BCQ_GMM = BCQ  # whose VAE has a mixture as its prior


@register_algo_factory_func("bcq")
def algo_config_to_class(algo_config: BCQConfig) -> tuple[type[BCQ], dict[str, Any]]:
    return (DistributionalBCQ if algo_config.critic.distributional.enabled else BCQ), {}
