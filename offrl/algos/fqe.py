"""Fitted Q evaluation (Le et al., 2019, arXiv:1903.08738): the value of a given policy,
regressed on ``r + gamma Q(s', pi(s'))`` over recorded transitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from offrl.algos.shared.actor_critic import ActorCritic
from offrl.config import Count, OptimConfig
from offrl.config.algo import ActorCriticConfig, CriticConfig, EnsembleConfig, learning_rate


class FQECriticConfig(CriticConfig):
    layer_dims: list[Count] = [256, 256]
    ensemble: EnsembleConfig = EnsembleConfig(n=1)


class FQEConfig(ActorCriticConfig):
    ALGO_NAME: ClassVar[str] = "fqe"

    optim_params: dict[str, OptimConfig] = {"critic": learning_rate(3e-4)}
    critic: FQECriticConfig = FQECriticConfig()


class FQE(ActorCritic):
    """Critics of a policy that is what it is: there is no actor, and so no name in the registry of
    algorithms. Batches hold the policy's ``next_actions`` ``[B, 1, A]``, too."""

    def _create_networks(self) -> None:
        self.add_critics()

    def process_batch_for_training(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        ready = super().process_batch_for_training(batch)
        return ready | {"next_actions": self.to_device(batch["next_actions"])}

    def train_on_batch(
        self, batch: dict[str, Any], epoch: int, validate: bool = False
    ) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            target = self.backup(batch, batch["next_actions"])
        with torch.set_grad_enabled(not validate):
            losses, _ = self.critic_losses(batch, target)
        info = self.critic_info(batch, losses)
        if not validate:
            info |= self.optimize_critics(losses)
            self.update_targets()
        return info
