"""TD3+BC (Fujimoto & Gu, 2021, arXiv:2106.06860): TD3, its actor held to the data's actions."""

from typing import Any

from offrl.algos.base import Batch, Info, register_algo
from offrl.algos.td3 import TD3, TD3Config
from offrl.config import NonNegative
from offrl.lazy import Tensor, torch


class TD3BCConfig(TD3Config):
    ALGO_NAME = "td3_bc"
    DEFAULTS = {
        "experiment": {"rollout": {"horizon": 1000, "rate": 1}},
        "train": {"hdf5_normalize_obs": True, "batch_size": 256, "num_epochs": 200},
    }

    alpha: NonNegative = 2.5
    """Weight of the value against cloning."""


@register_algo(TD3BCConfig)
class TD3BC(TD3):
    """TD3 whose ``actor`` also clones the data's actions."""

    algo_config: TD3BCConfig
    LOGS_GRADIENTS = True

    def pi_loss(self, batch: Batch) -> Tensor:
        """Compute the distance of ``pi(s)`` from the data's action, less ``Q(s, pi(s))`` on the
        scale of its mean magnitude (equation 5)."""
        actions = self.nets["actor"](batch["obs"])[0].mode()
        q = self.policy_value(batch["obs"], actions)
        value = q.mean() / self.microbatches.together(q.detach().abs().mean(), Tensor.mean)
        return self.cloning(actions, batch["actions"]) - self.algo_config.alpha * value

    def policy_value(self, obs: Any, actions: Tensor) -> Tensor:
        return self.nets["critic"].first(obs, actions)

    def cloning(self, actions: Tensor, recorded: Tensor) -> Tensor:
        return torch.nn.functional.mse_loss(actions, recorded)

    def update(self, batch: Batch) -> Info:
        """Add the actor's loss to ``loss``; so it is computed at every step, as by robomimic."""
        info = super().update(batch)
        if "Actor/Loss" not in info:
            with torch.no_grad():
                info["Actor/Loss"] = self.pi_loss(batch)
        return info | {"loss": info["loss"] + info["Actor/Loss"].detach()}


TD3_BC = TD3BC  # robomimic's name
