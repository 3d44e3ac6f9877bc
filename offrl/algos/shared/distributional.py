"""Critics that learn how likely each return is (C51: Bellemare et al., 2017, arXiv:1707.06887)."""

from collections.abc import Callable
from typing import Any, TypeVar

from offrl import models
from offrl.algos.base import Algo, Batch
from offrl.algos.shared.td import TDLearner
from offrl.config.algo import TDConfig
from offrl.lazy import Tensor, torch
from offrl.registry import ALGOS

AlgoClass = TypeVar("AlgoClass", bound=type[Algo])


class DistributionalCritic(TDLearner):
    """A mixin that gives an algorithm one critic with a probability for each of several returns, by
    ``backup`` and ``critic_losses`` of its own."""

    algo_config: Any  # of a subclass, with ``critic.distributional``

    def add_critics(self, network: type | None = None, **options: Any) -> None:
        own = models.DistributionalCritics
        if network is models.DiscreteCritics:
            own = models.DiscreteDistributionalCritics
        num_atoms = self.algo_config.critic.distributional.num_atoms
        super().add_critics(own, num_critics=1, num_outputs=num_atoms, **options)

    def backup(self, batch: Batch, next_actions: Tensor) -> Tensor:
        """Compute probabilities ``[B, atoms]`` of the returns of the best of ``next_actions``."""
        critic = self.nets["critic_target"]
        probabilities = critic.probabilities(batch["next_obs"], next_actions)[0]
        best = (probabilities * critic.atoms).sum(-1).argmax(1)
        chosen = probabilities[torch.arange(len(best), device=best.device), best]
        returns = batch["rewards"] + batch["discounts"] * critic.atoms
        return critic.project(returns, chosen)

    def critic_losses(self, batch: Batch, target: Tensor) -> tuple[Tensor, Tensor]:
        """Compute KL divergences from the target, ``[1]``, and expected returns ``[1, B, 1]``."""
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


def register_distributional(
    config_class: type[TDConfig], plain: type[Algo]
) -> Callable[[AlgoClass], AlgoClass]:
    """Register the decorated class for ``critic.distributional.enabled``, else ``plain``."""

    def register(distributional: AlgoClass) -> AlgoClass:
        def choose(algo_config: Any) -> tuple[type[Algo], dict[str, Any]]:
            return (distributional if algo_config.critic.distributional.enabled else plain), {}

        ALGOS.register(config_class.ALGO_NAME, plain.__module__)(choose)
        return distributional

    return register
