"""Batch-constrained Q-learning (Fujimoto et al., 2019, arXiv:1812.02900).

A generative model of the data's actions proposes some, a network may perturb them a little, and the
one of the highest value is taken: in the targets and while acting.
"""

from typing import Any

from pydantic import model_validator

from offrl import models
from offrl.algos.base import Batch, Generators, Info, PolicyAlgo, Seen
from offrl.algos.bc import LOG_NAMES, vae_loss
from offrl.algos.shared.distributional import DistributionalCritic, register_distributional
from offrl.algos.shared.td import TDLearner
from offrl.config import Count, NonNegative, OptimConfig, Section
from offrl.config.algo import (
    DistributionalCriticConfig,
    StagedTDConfig,
    WeightedCriticConfig,
    WeightedEnsembleConfig,
    learning_rates,
)
from offrl.config.networks import GMMConfig, VAEConfig
from offrl.lazy import Tensor, torch

TERMS = LOG_NAMES | {"reconstruction": "Reconsruction_Loss"}  # robomimic's spelling


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
    perturbation_scale: NonNegative = 0.05
    """Largest change of each of an action's numbers."""
    layer_dims: list[Count] = [300, 400]
    """Sizes of the hidden layers of that network."""


class BCQConfig(StagedTDConfig):
    ALGO_NAME = "bcq"

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
    """``action_sampler``: a model of the data's actions; ``actor``: the perturbation, if any."""

    algo_config: BCQConfig

    def _create_networks(self) -> None:
        config = self.algo_config
        self.add_critics()
        # robomimic's order: the mixture wins where both are enabled, as the VAE is by default.
        self._has_gmm = config.action_sampler.gmm.enabled
        make = models.actor_from_config if self._has_gmm else models.vae_from_config
        sizes = self.obs_spec, self.ac_dim
        self.nets["action_sampler"] = make(config.action_sampler, *sizes, self.num_frames)
        if config.actor.enabled:
            options = config.actor.layer_dims, config.actor.perturbation_scale
            self.nets["actor"] = models.PerturbationActor(*sizes, *options, self.num_frames)
            self.add_target("actor")

    def _optim_params(self) -> dict[str, OptimConfig]:
        optims = super()._optim_params()
        return {name: o for name, o in optims.items() if name != "actor" or name in self.nets}

    # -- proposals --------------------------------------------------------------------------------

    def sample(self, obs: Any, num_samples: int, generators: Generators = None) -> Tensor:
        """Draw actions ``[B, num_samples, A]`` from the model of the data's."""
        sampler = self.nets["action_sampler"]
        if not self._has_gmm:
            return sampler.sample(obs, None, generators, num_samples)[0]
        pi = sampler(obs)[0]
        if self.algo_config.action_sampler.gmm.low_noise_eval:
            pi = pi.low_noise()
        return pi.repeated(num_samples).sample(generators)

    def propose(
        self, obs: Any, num_samples: int, actor: str, generators: Generators = None
    ) -> Tensor:
        """Draw actions ``[B, num_samples, A]``, perturbed by the network ``actor``."""
        actions = self.sample(obs, num_samples, generators)
        return self.nets[actor](obs, actions) if "actor" in self.nets else actions

    def best_action(self, obs: Any, generators: Generators = None) -> tuple[Tensor, Tensor]:
        """Return the best proposal ``[B, A]`` by the first critic, after its value ``[B, 1]``, for
        prepared observations."""
        num = self.algo_config.critic.num_action_samples_rollout
        proposals = self.propose(obs, num, "actor", generators)
        value, best = self.nets["critic"].first(obs, proposals).max(1, keepdim=True)
        return value, proposals.take_along_dim(best[..., None], dim=1)[:, 0]

    # -- losses -----------------------------------------------------------------------------------

    def sampler_loss(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the loss of the model of the data's actions, and its terms."""
        config, sampler = self.algo_config.action_sampler, self.nets["action_sampler"]
        obs, actions = batch["obs"], batch["actions"]
        if self._has_gmm:
            return -sampler(obs)[0].log_prob(actions).mean(), {}
        return vae_loss(sampler, config.vae, self.epoch, obs, actions, self._is_frozen())

    def _is_frozen(self) -> bool:
        """Say whether the VAE's encoder is trained no more."""
        return 0 <= self.algo_config.action_sampler.freeze_encoder_epoch <= (self.epoch or 0)

    def graph_key(self) -> tuple[Any, ...]:
        return *super().graph_key(), self._is_frozen()

    def q_target(self, batch: Batch) -> Tensor:
        """Compute ``r + gamma max Q'(s', a')`` over proposals ``a'``."""
        num = self.algo_config.critic.num_action_samples
        return self.backup(batch, self.propose(batch["next_obs"], num, "actor_target"))

    def actor_loss(self, obs: Any) -> Tensor:
        """Compute ``-Q(s, a + xi(s, a))`` of a proposal ``a`` (deterministic policy gradient)."""
        with torch.no_grad():
            proposals = self.sample(obs, 1)
        return -self.nets["critic"].first(obs, self.nets["actor"](obs, proposals)).mean()

    # -- updates ----------------------------------------------------------------------------------

    def update(self, batch: Batch) -> Info:
        sampler, is_training = self.nets["action_sampler"], self.nets.training
        loss, terms = self.sampler_loss(batch)
        info: Info = {f"Action_Sampler/{TERMS[name]}": term for name, term in terms.items()}
        info["Action_Sampler/Grad_Norms"] = self.optimize("action_sampler", loss)
        info["Action_Sampler/Loss"] = loss

        sampler.eval()  # its randomizers rest while it proposes
        with torch.no_grad():
            target = self.q_target(batch)
        info |= self.optimize_critics(batch, self.critic_losses(batch, target)[0])
        info |= {"Critic/Q_Targets": target.mean(), "loss": loss.detach() + info["loss"]}
        if "actor" in self.nets:
            info["Actor/Loss"] = actor_loss = self.actor_loss(batch["obs"])
            info["Actor/Grad_Norms"] = self.optimize("actor", actor_loss)
            info["loss"] = info["loss"] + actor_loss.detach()
        sampler.train(is_training)
        for name in filter(self.trains, self._targets):
            self.update_targets(name)
        return info

    # -- acting -----------------------------------------------------------------------------------

    def act(self, seen: Seen) -> tuple[Tensor, Any]:
        obs = self.prepare(seen.obs, seen.goal)
        return self.best_action(obs, seen.generators)[1], seen.state

    def get_state_value(self, obs_dict: Any, goal_dict: Any = None) -> Tensor:
        """Return the value of the best proposal, ``[B, 1]``."""
        return self.best_action(self.prepare_states(obs_dict, goal_dict))[0]


@register_distributional(BCQConfig, plain=BCQ)
class DistributionalBCQ(DistributionalCritic, BCQ):
    """BCQ with a critic that learns distributions of returns."""


# robomimic's names
BCQ_Distributional = DistributionalBCQ
BCQ_GMM = BCQ  # with algo.action_sampler.gmm
