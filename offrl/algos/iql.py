"""Implicit Q-learning (Kostrikov et al., 2021, arXiv:2110.06169).

No action outside the data is ever evaluated: ``V`` is an upper expectile of ``Q`` over the data's
actions, ``Q`` regresses on ``r + gamma V(s')``, and the actor clones the data's actions, weighted
by the exponential of their advantage.
"""

from typing import Any

from pydantic import Field

from offrl import models
from offrl.algos.base import register_algo
from offrl.algos.shared.actor_critic import ActorCritic
from offrl.config import Section, Share
from offrl.config.algo import TDConfig, learning_rates
from offrl.config.networks import ActorConfig
from offrl.lazy import Tensor, torch


class AdvantageConfig(Section):
    clip_adv_value: float | None = None
    """Largest advantage; larger ones are set to it. null: no limit."""
    beta: float = Field(1.0, gt=0)
    """Temperature: weights are exp(advantage / beta)."""
    use_final_clip: bool = True
    """Limit these weights to 100."""

    def weights(self, advantage: Tensor) -> Tensor:
        if self.clip_adv_value is not None:
            advantage = advantage.clamp(max=self.clip_adv_value)
        weight = (advantage / self.beta).exp()
        return weight.clamp(max=100.0) if self.use_final_clip else weight


class InSampleConfig(TDConfig):
    """The section of algorithms that learn ``V`` from the data's actions and clone by advantage."""

    OPTIMIZERS = learning_rates(critic=1e-4, vf=1e-4, actor=1e-4, decay_factor=0.0)
    target_tau: Share = 0.01
    actor: ActorConfig = ActorConfig()
    """The policy."""
    adv: AdvantageConfig = AdvantageConfig()
    """How actions are weighted by their advantage."""


class IQLConfig(InSampleConfig):
    ALGO_NAME = "iql"

    vf_quantile: float = Field(0.9, gt=0, lt=1)
    """Expectile of the value regression (tau). With a value nearer to 1 the best actions of the
    data count more."""


@register_algo(IQLConfig)
class IQL(ActorCritic):
    algo_config: IQLConfig

    LOGS_GRADIENTS = False

    def _create_networks(self) -> None:
        config = self.algo_config
        self.add_critics()
        self.nets["vf"] = models.StateValue(
            self.obs_spec, config.critic.layer_dims, self.num_frames
        )
        self.add_stochastic_actor()

    def set_train(self) -> None:
        """With robomimic's complete configs, the slow critics are in training mode as well."""
        super().set_train()
        if not self.global_config.train.mask_padded_steps:
            self.nets["critic_target"].train()

    def update(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        nets, obs, actions = self.nets, batch["obs"], batch["actions"]
        config = self.algo_config
        with torch.no_grad():
            q_min = nets["critic_target"](obs, actions).amin(0)
            backup = batch["rewards"] + batch["discounts"] * nets["vf"](batch["next_obs"])
        q_losses, q = self.critic_losses(batch, backup)

        v = nets["vf"](obs)
        v_loss = self._value_loss(q_min - v)

        advantage = q_min - v.detach()
        weight = config.adv.weights(advantage)
        log_prob = nets["actor"](obs)[0].log_prob(actions)
        actor_loss = -(weight * log_prob).mean()

        spreads = {
            "vf/q_pred": q_min,
            "vf/v_pred": v,
            "adv/adv": advantage,
            "adv/adv_weight": weight,
        }
        self.optimize("critic", q_losses.sum())
        self.update_targets()
        self.optimize("vf", v_loss, config.critic.max_gradient_norm)
        self.optimize("actor", actor_loss)
        return {
            "loss": q_losses.sum() + v_loss + actor_loss,
            "actor/log_prob": log_prob.mean(),
            "actor/loss": actor_loss,
            "critic/critic1_pred": q[0].mean(),
            "critic/critic1_loss": q_losses[0],
            "vf/v_loss": v_loss,
            **spread(spreads),
        }

    def _value_loss(self, error: Tensor) -> Tensor:
        return expectile_loss(error, self.algo_config.vf_quantile)

    def get_state_value(self, obs_dict: Any, goal_dict: Any = None) -> Tensor:
        """``[B, 1]``"""
        return self.nets["vf"](self.prepare_states(obs_dict, goal_dict))


def expectile_loss(error: Tensor, expectile: float) -> Tensor:
    """Squared error that weighs positive ones by ``expectile``, others by the rest (equation 5)."""
    weight = torch.where(error > 0, expectile, 1 - expectile)
    return (weight * error.square()).mean()


def spread(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Largest, smallest, mean and standard deviation of each, for the log."""
    rows = torch.stack([value.detach().flatten() for value in values.values()])
    std, mean = torch.std_mean(rows, dim=1)
    logs = {"max": rows.amax(1), "min": rows.amin(1), "mean": mean, "std": std}
    return {
        f"{name}/{kind}": number
        for kind, numbers in logs.items()
        for name, number in zip(values, numbers.unbind(), strict=True)
    }
