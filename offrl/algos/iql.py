"""Implicit Q-learning (Kostrikov et al., 2021, arXiv:2110.06169) evaluates no action outside the
data: ``V`` is an upper expectile of ``Q`` over the data's actions, ``Q`` regresses on
``r + gamma V(s')``, and the actor clones the data's actions by the exponential of their advantage.
"""

from typing import Any

from pydantic import Field

from offrl import models
from offrl.algos.base import Batch, Info, register_algo
from offrl.algos.shared.actor_critic import ActorCritic, AdvantageConfig
from offrl.algos.shared.td import spread
from offrl.config import Share
from offrl.config.algo import TDConfig, learning_rates
from offrl.config.networks import ActorConfig
from offrl.lazy import Tensor, torch


class InSampleConfig(TDConfig):
    """The section of algorithms that learn ``V`` from the data's actions and clone by advantage."""

    OPTIMIZERS = learning_rates(critic=1e-4, vf=1e-4, actor=1e-4, decay_factor=0.0)
    target_tau: Share = 0.01
    actor: ActorConfig = ActorConfig()
    """The policy."""
    adv: AdvantageConfig = AdvantageConfig()
    """Weights of actions by their advantage."""


class IQLConfig(InSampleConfig):
    ALGO_NAME = "iql"

    vf_quantile: float = Field(0.9, gt=0, lt=1)
    """Expectile of the value regression (tau). Nearer to 1, the best actions count more."""


@register_algo(IQLConfig)
class IQL(ActorCritic):
    """Critics ``Q(s, a)``, ``vf`` ``V(s)`` and an ``actor`` cloned with weights."""

    algo_config: IQLConfig
    LOGS_GRADIENTS = False
    TRAINS_TARGETS = True

    def _create_networks(self) -> None:
        dims = self.algo_config.critic.layer_dims
        self.add_critics()
        self.nets["vf"] = models.StateValue(self.obs_spec, dims, self.num_frames)
        self.add_stochastic_actor()

    def v_loss(self, error: Tensor) -> Tensor:
        """Compute the loss of ``V(s)`` by ``Q(s, a) - V(s)``."""
        return expectile_loss(error, self.algo_config.vf_quantile)

    def update(self, batch: Batch) -> Info:
        nets, obs, actions = self.nets, batch["obs"], batch["actions"]
        with torch.no_grad():
            q = nets["critic_target"](obs, actions).amin(0)
            target = batch["rewards"] + batch["discounts"] * nets["vf"](batch["next_obs"])
        q_losses, q_of_each = self.critic_losses(batch, target)

        v = nets["vf"](obs)
        v_loss = self.v_loss(q - v)

        advantage = q - v.detach()
        weight = self.algo_config.adv.weights(advantage)
        log_pi = nets["actor"](obs)[0].log_prob(actions)
        pi_loss = -(weight * log_pi).mean()

        spreads = {"vf/q_pred": q, "vf/v_pred": v, "adv/adv": advantage, "adv/adv_weight": weight}
        self.optimize("critic", q_losses.sum())
        self.update_targets()
        self.optimize("vf", v_loss, self.algo_config.critic.max_gradient_norm)
        self.optimize("actor", pi_loss)
        return {
            "loss": q_losses.sum() + v_loss + pi_loss,
            "actor/log_prob": log_pi.mean(),
            "actor/loss": pi_loss,
            "critic/critic1_pred": q_of_each[0].mean(),
            "critic/critic1_loss": q_losses[0],
            "vf/v_loss": v_loss,
            **spread(spreads),
        }

    def get_state_value(self, obs_dict: Any, goal_dict: Any = None) -> Tensor:
        return self.nets["vf"](self.prepare_states(obs_dict, goal_dict))


def expectile_loss(error: Tensor, expectile: float) -> Tensor:
    """Compute the squared error, positive ones weighted by ``expectile``, others by the rest
    (equation 5)."""
    weight = torch.where(error > 0, expectile, 1 - expectile)
    return (weight * error.square()).mean()
