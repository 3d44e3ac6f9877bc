"""Fitted Q evaluation (Le et al., 2019, arXiv:1903.08738): the value of a given policy,
regressed on ``r + gamma Q(s', pi(s'))`` over recorded transitions."""

from collections.abc import Mapping
from typing import Any

from offrl.algos.base import Batch, Info
from offrl.algos.shared.td import TDLearner
from offrl.config.algo import CriticConfig, EnsembleConfig, TDConfig
from offrl.lazy import torch


class FQEConfig(TDConfig):
    OPTIMIZERS = {"critic": 3e-4}
    critic: CriticConfig = CriticConfig(layer_dims=[256, 256], ensemble=EnsembleConfig(n=1))


class FQE(TDLearner):
    """Critics of a fixed policy. It learns no policy, and so has no name in the registry of
    algorithms. Batches also hold the policy's ``next_actions`` ``[B, 1, A]``."""

    algo_config: FQEConfig

    def _create_networks(self) -> None:
        self.add_critics()

    def process_batch_for_training(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        ready = super().process_batch_for_training(batch)
        return ready | {"next_actions": self.to_device(batch["next_actions"])}

    def update(self, batch: Batch) -> Info:
        with torch.no_grad():
            target = self.backup(batch, batch["next_actions"])
        losses, _ = self.critic_losses(batch, target)
        info = self.optimize_critics(batch, losses)
        self.update_targets()
        return info
