"""AWAC (Nair et al., 2020, arXiv:2006.09359): the actor clones the data's actions, weighted by the
exponential of their advantage over its own."""

from typing import Any

from pydantic import Field

from offrl.algos.base import register_algo
from offrl.algos.shared.actor_critic import ActorCritic
from offrl.config.algo import CriticConfig, TDConfig
from offrl.config.networks import ActorConfig
from offrl.lazy import Tensor, torch

LARGEST_WEIGHT = 100.0


class AWACConfig(TDConfig):
    ALGO_NAME = "awac"
    DEFAULTS = {"train": {"batch_size": 1024}}

    OPTIMIZERS = {"critic": 3e-4, "actor": 3e-4}
    lam: float = Field(1.0, gt=0)
    """Temperature (lambda): actions are weighted by exp(advantage / lam). With a smaller value the
    best actions count more."""
    critic: CriticConfig = CriticConfig(layer_dims=[256, 256])
    actor: ActorConfig = ActorConfig(layer_dims=[256, 256, 256, 256])
    """The policy."""


@register_algo(AWACConfig)
class AWAC(ActorCritic):
    algo_config: AWACConfig

    NEXT_ACTOR = "actor"  # whose actions targets are of
    num_policy_actions = 1  # of a state, which the one in the data is compared with

    def _create_networks(self) -> None:
        self.add_critics()
        self.add_stochastic_actor()

    def update(self, batch: dict[str, Any]) -> dict[str, Tensor | None]:
        nets, obs = self.nets, batch["obs"]
        with torch.no_grad():
            next_actions = nets[self.NEXT_ACTOR](batch["next_obs"])[0].sample()
            target = self.backup(batch, next_actions)
        features = nets["critic"].encode(obs)
        q_losses, q = self.critic_losses(batch | {"obs": features}, target)
        pi, _ = nets["actor"](obs)
        advantage = q.detach().amin(0) - self._own_value(features, pi)
        weight = self._weight(advantage)
        actor_loss = -(weight * pi.log_prob(batch["actions"])).mean()

        info = self.optimize_critics(batch, q_losses)
        self.update_targets()
        return info | {
            "loss": info["loss"] + actor_loss.detach(),
            "Actor/Loss": actor_loss,
            "Actor/Grad_Norms": self.optimize("actor", actor_loss),
            "Actor/Advantage": advantage.mean(),
            "Actor/Weight": weight.mean(),
        }

    def _own_value(self, features: Tensor, pi: Any) -> Tensor:
        """The mean of the least value of the policy's own actions, ``[B, 1]``."""
        with torch.no_grad():
            own = pi.repeated(self.num_policy_actions).sample()
            return self.nets["critic"](features, own).amin(0).mean(1, keepdim=True)

    def _weight(self, advantage: Tensor) -> Tensor:
        return (advantage / self.algo_config.lam).exp().clamp(max=LARGEST_WEIGHT)
