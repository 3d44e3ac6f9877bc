"""Critics that learn how likely each return is (C51: Bellemare et al., 2017, arXiv:1707.06887)."""

from typing import Any

from offrl import models
from offrl.algos.shared.td import TDLearner
from offrl.lazy import Tensor, torch


class DistributionalCritic(TDLearner):
    """Before an algorithm with ``backup`` and ``critic_losses``: these with one critic that
    gives a probability to each of some returns."""

    def add_critics(self, network: type | None = None, **options: Any) -> None:
        config = self.algo_config.critic
        super().add_critics(
            network or models.DistributionalCritics,
            num_critics=1,
            num_outputs=config.distributional.num_atoms,
            **options,
        )

    def backup(self, batch: dict[str, Any], next_actions: Tensor) -> Tensor:
        """Probabilities ``[B, atoms]`` of the returns of the best of ``next_actions``."""
        critic = self.nets["critic_target"]
        probabilities = critic.probabilities(batch["next_obs"], next_actions)[0]
        best = (probabilities * critic.atoms).sum(-1).argmax(1)
        chosen = probabilities[torch.arange(len(best), device=best.device), best]
        returns = batch["rewards"] + batch["discounts"] * critic.atoms
        return critic.project(returns, chosen)

    def critic_losses(self, batch: dict[str, Any], target: Tensor) -> tuple[Tensor, Tensor]:
        """KL divergence from the target, ``[1]``, and the expected returns ``[1, B, 1]``."""
        critic = self.nets["critic"]
        outputs = critic.outputs(batch["obs"], batch["actions"])
        log_p = outputs.log_softmax(-1)[:, :, 0]
        entropy = torch.special.entr(target).sum(-1)
        divergence = -(target * log_p).sum(-1) - entropy
        self.td_errors = None
        if "weights" in batch:
            self.td_errors = divergence.detach()[0].abs()
            divergence = batch["weights"].squeeze(1) * divergence
        return divergence.mean(1), critic.as_values(outputs.detach())
