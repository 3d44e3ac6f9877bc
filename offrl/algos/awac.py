"""AWAC (Nair et al., 2020, arXiv:2006.09359): the actor clones the data's actions, weighted by the
exponential of their advantage over its own."""

from typing import Any

from offrl.algos.base import Batch, Info, register_algo
from offrl.algos.shared.actor_critic import ActorCritic
from offrl.config import Positive
from offrl.config.algo import CriticConfig, TDConfig
from offrl.config.networks import ActorConfig
from offrl.lazy import Tensor, torch

LARGEST_WEIGHT = 100.0


class AWACConfig(TDConfig):
    ALGO_NAME = "awac"
    DEFAULTS = {"train": {"batch_size": 1024}}

    OPTIMIZERS = {"critic": 3e-4, "actor": 3e-4}
    lam: Positive = 1.0
    """Temperature (lambda): actions are weighted by exp(advantage / lam). With a smaller value the
    best actions count more."""
    critic: CriticConfig = CriticConfig(layer_dims=[256, 256])
    actor: ActorConfig = ActorConfig(layer_dims=[256, 256, 256, 256])
    """The policy."""


@register_algo(AWACConfig)
class AWAC(ActorCritic):
    algo_config: AWACConfig

    NEXT_ACTOR = "actor"  # the network that chooses actions in targets
    num_policy_actions = 1  # per state, compared with the one in the data

    def _create_networks(self) -> None:
        self.add_critics()
        self.add_stochastic_actor()

    def advantage(self, q: Tensor, features: Tensor, pi: Any) -> Tensor:
        """Compute ``A(s, a) = Q(s, a) - V(s)`` ``[B, 1]`` by the least of the critics. ``V`` is the
        mean of the values of the policy's own actions."""
        with torch.no_grad():
            own = pi.repeated(self.num_policy_actions).sample()
            v = self.nets["critic"](features, own).amin(0).mean(1, keepdim=True)
        return q.detach().amin(0) - v

    def weight(self, advantage: Tensor) -> Tensor:
        return (advantage / self.algo_config.lam).exp().clamp(max=LARGEST_WEIGHT)

    def update(self, batch: Batch) -> Info:
        nets, obs = self.nets, batch["obs"]
        with torch.no_grad():
            next_actions = nets[self.NEXT_ACTOR](batch["next_obs"])[0].sample()
            target = self.backup(batch, next_actions)
        features = nets["critic"].encode(obs)
        q_losses, q = self.critic_losses(batch | {"obs": features}, target)
        pi, _ = nets["actor"](obs)
        advantage = self.advantage(q, features, pi)
        weight = self.weight(advantage)
        pi_loss = -(weight * pi.log_prob(batch["actions"])).mean()

        info = self.optimize_critics(batch, q_losses)
        self.update_targets()
        return info | {
            "loss": info["loss"] + pi_loss.detach(),
            "Actor/Loss": pi_loss,
            "Actor/Grad_Norms": self.optimize("actor", pi_loss),
            "Actor/Advantage": advantage.mean(),
            "Actor/Weight": weight.mean(),
        }
