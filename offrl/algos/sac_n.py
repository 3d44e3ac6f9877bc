"""SAC-N (An et al., 2021, arXiv:2110.01548): offline soft actor-critic whose many critics agree on
little that the data does not show; the least of their values is believed."""

from typing import Any, Literal

from pydantic import Field

from offrl import models
from offrl.algos.base import register_algo
from offrl.algos.shared.actor_critic import ActorCritic
from offrl.config import OptimConfig
from offrl.config.algo import (
    CriticConfig,
    EnsembleConfig,
    TDConfig,
    learning_rates,
)
from offrl.config.networks import ActorConfig, ActorNetConfig, CommonNetConfig
from offrl.lazy import Tensor, torch


class TanhNetConfig(CommonNetConfig):
    std_activation: Literal["softplus", "exp"] = "exp"
    use_tanh: bool = True


class SACNetConfig(ActorNetConfig):
    type: Literal["gaussian"] = "gaussian"
    common: TanhNetConfig = TanhNetConfig()


class SACActorConfig(ActorConfig):
    bc_start_steps: int = Field(0, ge=0)
    """First training steps, in which the actor only clones the data."""
    target_entropy: float | Literal["default"] | None = "default"
    """Entropy of the policy that the weight of the entropy is tuned to hold. "default": minus the
    number of action dimensions, half of it for rlpd. null: no tuning, the weight is 1."""
    net: SACNetConfig = SACNetConfig()


class SACCriticConfig(CriticConfig):
    deterministic_backup: bool = False
    """Leave the entropy of the policy out of targets."""


class SACNConfig(TDConfig):
    ALGO_NAME = "sac_n"
    DEFAULTS = {"train": {"batch_size": 256}}

    OPTIMIZERS = {"critic": 3e-4, "actor": 3e-4}
    critic: SACCriticConfig = SACCriticConfig(
        layer_dims=[256, 256, 256], ensemble=EnsembleConfig(n=10)
    )
    actor: SACActorConfig = SACActorConfig(layer_dims=[256, 256, 256])
    """The policy."""


@register_algo(SACNConfig)
class SACN(ActorCritic):
    """``entropy`` is the logarithm of the entropy's weight ``alpha``."""

    algo_config: SACNConfig

    def _create_networks(self) -> None:
        self.add_stochastic_actor()
        self.add_critics()
        self._add_entropy_weight(default=-float(self.ac_dim))

    def _add_entropy_weight(self, default: float) -> None:
        given = self.algo_config.actor.target_entropy
        self.target_entropy = default if given == "default" else given
        if self.target_entropy is not None:
            self.nets["entropy"] = models.Scalar(0.0)

    def _optim_params(self) -> dict[str, OptimConfig]:
        given = super()._optim_params()
        if "entropy" in self.nets:
            given |= learning_rates(entropy=given["actor"].learning_rate.initial)
        return given

    def update(self, batch: dict[str, Any]) -> dict[str, Tensor | None]:
        actor, critics = self._train_actor(batch), self._train_critics(batch)
        self.num_updates += not self.validates
        return actor | critics | {"loss": actor["Actor/Loss"].detach() + critics["loss"]}

    def _train_actor(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Soft policy improvement: entropy is rewarded by a weight that keeps it at its target."""
        value, log_prob = self._policy_terms(batch)
        alpha = self._entropy_weight()
        actor_loss = (alpha * log_prob - value).mean()
        info = {"Actor/Loss": actor_loss, "Entropy_Weight": alpha.squeeze()}

        entropy_loss = torch.zeros((), device=self.device)
        if "entropy" in self.nets:
            surplus = -(log_prob.detach() + self._target_entropy(batch))
            entropy_loss = (self.nets["entropy"]() * surplus).mean()
            info["Entropy_Grad_Norms"] = self.optimize("entropy", entropy_loss)
        info["Entropy_Weight_Loss"] = entropy_loss
        info["Actor/Grad_Norms"] = self.optimize("actor", actor_loss)
        return info

    def _target_entropy(self, batch: dict[str, Any]) -> float | Tensor:
        return self.target_entropy or 0.0

    def _policy_terms(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Give what the actor is to make high, and what low: see ``_judged``."""
        pi, _ = self.policy(batch["obs"])
        if self.num_updates < self.algo_config.actor.bc_start_steps:
            _, log_prob = pi.rsample(1)
            return pi.log_prob(batch["actions"]), log_prob
        return self._judged("critic", batch["obs"], pi)

    def _judged(self, critic: str, obs: Any, pi: Any) -> tuple[Tensor, Tensor]:
        """The value of an action of the policy, and its log density: ``[B, 1]`` each."""
        actions, log_prob = pi.rsample(1)
        return self.nets[critic](obs, actions).amin(0), log_prob

    def _entropy_weight(self) -> Tensor:
        if "entropy" in self.nets:
            return self.nets["entropy"]().detach().exp()
        return torch.ones(1, device=self.device)

    def _train_critics(self, batch: dict[str, Any]) -> dict[str, Any]:
        with torch.no_grad():
            next_pi, _ = self.policy(batch["next_obs"])
            target = batch["rewards"] + batch["discounts"] * self._next_value(batch, next_pi)
        losses, info = self._critic_losses(batch, target, next_pi)
        info |= self.optimize_critics(batch, losses)
        self.update_targets()
        return info

    def _next_value(self, batch: dict[str, Any], next_pi: Any) -> Tensor:
        value, log_prob = self._judged("critic_target", batch["next_obs"], next_pi)
        if self.algo_config.critic.deterministic_backup:
            return value
        return value - self._entropy_weight() * log_prob

    def _critic_losses(
        self, batch: dict[str, Any], target: Tensor, next_pi: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Each critic's ``[N]``, and more for the log."""
        return self.critic_losses(batch, target)[0], {}
