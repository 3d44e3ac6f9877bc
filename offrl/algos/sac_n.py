"""SAC-N (An et al., 2021, arXiv:2110.01548): offline soft actor-critic with the minimum of many
critics, which is low for actions that the data does not show, as critics disagree on them."""

from typing import Any, Literal

from pydantic import Field

from offrl import models
from offrl.algos.base import Batch, Info, register_algo
from offrl.algos.shared.actor_critic import ActorCritic
from offrl.config.algo import CriticConfig, EnsembleConfig, TDConfig
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
    critic: SACCriticConfig = SACCriticConfig(layer_dims=[256] * 3, ensemble=EnsembleConfig(n=10))
    actor: SACActorConfig = SACActorConfig(layer_dims=[256, 256, 256])
    """The policy."""


@register_algo(SACNConfig)
class SACN(ActorCritic):
    algo_config: SACNConfig
    NUMBERS = {"entropy": "actor"}  # log alpha, of the weight of the entropy
    ENTROPY = -1.0  # the policy's by default, for each dimension of actions

    def _create_networks(self) -> None:
        self.add_stochastic_actor()
        self.add_critics()
        if self.algo_config.actor.target_entropy is not None:
            self.nets["entropy"] = models.Scalar(0.0)

    @property
    def alpha(self) -> Tensor:
        if "entropy" not in self.nets:
            return torch.ones(1, device=self.device)
        return self.nets["entropy"]().detach().exp()

    def target_entropy(self, obs: Any) -> Any:
        given = self.algo_config.actor.target_entropy
        return self.ENTROPY * self.ac_dim if given == "default" else given

    def q_and_log_pi(self, critic: str, obs: Any, pi: Any) -> tuple[Tensor, Tensor]:
        """Draw an action, and give ``min Q(s, a)`` and ``log pi(a | s)``, ``[B, 1]`` each."""
        actions, log_pi = pi.rsample(1)
        return self.nets[critic](obs, actions).amin(0), log_pi

    def pi_loss(self, batch: Batch, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Compute ``alpha log pi(a | s) - Q(s, a)``. Returns it and ``log pi(a | s)``."""
        pi, _ = self.policy(batch["obs"])
        if self.num_updates < self.algo_config.actor.bc_start_steps:  # the data's likelihood as Q
            (_, log_pi), q = pi.rsample(1), pi.log_prob(batch["actions"])
        else:
            q, log_pi = self.q_and_log_pi("critic", batch["obs"], pi)
        return (alpha * log_pi - q).mean(), log_pi

    def alpha_loss(self, batch: Batch, log_pi: Tensor) -> Tensor:
        surplus = -(log_pi.detach() + self.target_entropy(batch["obs"]))
        return (self.nets["entropy"]() * surplus).mean()

    def next_value(self, batch: Batch, next_pi: Any) -> Tensor:
        """Compute ``min Q'(s', a') - alpha log pi(a' | s')``, ``[B, 1]``."""
        q, log_pi = self.q_and_log_pi("critic_target", batch["next_obs"], next_pi)
        return q if self.algo_config.critic.deterministic_backup else q - self.alpha * log_pi

    def q_losses(self, batch: Batch, target: Tensor, next_pi: Any) -> tuple[Tensor, Info]:
        """Compute the loss of each critic, ``[N]``, and numbers for the log."""
        return self.critic_losses(batch, target)[0], {}

    def update(self, batch: Batch) -> Info:
        actor, critics = self._train_actor(batch), self._train_critics(batch)
        self.num_updates += not self.validates
        return actor | critics | {"loss": actor["Actor/Loss"].detach() + critics["loss"]}

    def _train_actor(self, batch: Batch) -> Info:
        alpha = self.alpha
        pi_loss, log_pi = self.pi_loss(batch, alpha)
        info: Info = {"Actor/Loss": pi_loss, "Entropy_Weight": alpha.squeeze()}
        info["Entropy_Weight_Loss"] = torch.zeros((), device=self.device)
        if "entropy" in self.nets:
            info["Entropy_Weight_Loss"] = self.alpha_loss(batch, log_pi)
            info["Entropy_Grad_Norms"] = self.optimize("entropy", info["Entropy_Weight_Loss"])
        return info | {"Actor/Grad_Norms": self.optimize("actor", pi_loss)}

    def _train_critics(self, batch: Batch) -> Info:
        with torch.no_grad():
            next_pi, _ = self.policy(batch["next_obs"])
            target = batch["rewards"] + batch["discounts"] * self.next_value(batch, next_pi)
        losses, info = self.q_losses(batch, target, next_pi)
        info |= self.optimize_critics(batch, losses)
        self.update_targets()
        return info
