"""Deep Q-learning (Mnih et al., 2015, doi:10.1038/nature14236): values of actions are regressed on
rewards and the next state's value by a target network that is renewed now and then.

By switches: double DQN (van Hasselt et al., 2016, arXiv:1509.06461), dueling networks (Wang et al.,
2016, arXiv:1511.06581) and distributions of returns (C51: Bellemare et al., 2017,
arXiv:1707.06887). The defaults are for vectors and not for the paper's images.
"""

from collections.abc import Mapping
from typing import Any

from offrl import models
from offrl.algos.base import Batch, Info, Seen
from offrl.algos.shared.action_values import ActionValues, highest
from offrl.algos.shared.distributional import DistributionalCritic, register_distributional
from offrl.algos.shared.masks import allowed, masked
from offrl.config import Count, Section
from offrl.config.algo import (
    DISCRETE,
    DistributionalCriticConfig,
    EnsembleConfig,
    TDConfig,
    while_acting,
)
from offrl.config.section import Share
from offrl.lazy import Tensor, torch


class ExplorationConfig(Section):
    initial: Share = 1.0
    """Share of random actions at the start."""
    final: Share = 0.05
    """Share of random actions in the end."""
    steps: Count = 20_000
    """Number of steps in the environment from the one share to the other."""


class DQNConfig(TDConfig):
    ALGO_NAME = "dqn"
    DEFAULTS = while_acting(
        {"collect_steps": 4, "random_steps": 1000, "replay": {"capacity": 100_000}},
        batch_size=128,
        action_config=DISCRETE,
    )

    OPTIMIZERS = {"critic": 3e-4}
    double: bool = False
    """Let the network choose the next action, and the target network value it (double DQN)."""
    dueling: bool = False
    """Let the last layer give the value of the state, and apart from it how much better each action
    is than the others (dueling networks)."""
    target_every: Count = 250
    """Number of updates from one renewal of the target networks to the next, at the least: batches
    of a round that are drawn together have the same targets."""
    target_tau: Share = 1.0
    exploration: ExplorationConfig = ExplorationConfig()
    """Share of actions that are drawn at random while learning online (train.num_steps)."""
    critic: DistributionalCriticConfig = DistributionalCriticConfig(
        use_huber=True, layer_dims=[256, 256], ensemble=EnsembleConfig(n=1)
    )


class DQN(ActionValues):
    """Deep Q-learning.

    The target network is renewed before the first update whose batch was processed when this was
    due. So it is the same for batches that are processed together, and renewed later than
    ``target_every`` says if these are more. Targets that depend on it alone are computed when a
    batch is processed, unless it is about to be renewed.
    """

    algo_config: DQNConfig

    COUNTERS = ("num_updates", "renewed_at")
    LOGS_GRADIENTS = False
    renewed_at = 0  # num_updates

    def _create_networks(self) -> None:
        self.add_critics(models.DiscreteCritics, dueling=self.algo_config.dueling)

    def process_batch_for_training(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        ready = super().process_batch_for_training(batch)
        # A tensor, so that it is split with the rest, but on the CPU, where nothing waits for it.
        ready["processed_at"] = torch.full((len(ready["dones"]),), self.num_updates)
        waits = self.algo_config.double or self._is_renewal_due(self.num_updates)
        return ready if waits else ready | {"targets": self._targets_of(ready)}

    def _is_renewal_due(self, num_updates: int) -> bool:
        return num_updates - self.renewed_at >= self.algo_config.target_every

    def update(self, batch: Batch) -> Info:
        if self.trains("critic") and self._is_renewal_due(self.num_updates):
            processed_at, *_ = batch["processed_at"].tolist()  # at most ``num_updates``
            if self._is_renewal_due(processed_at):
                self.update_targets()
                self.renewed_at = self.num_updates
        target = batch["targets"] if "targets" in batch else self._targets_of(batch)
        losses, q = self.critic_losses(batch, target)
        info = self.optimize_critics(batch, losses) | {"Critic/Q_Values": q.detach().mean()}
        self.num_updates += self.trains("critic")
        return info

    def is_capturable(self) -> bool:
        """Say no where targets may be renewed, as ``renewed_at`` does not count updates."""
        return super().is_capturable() and not self._is_renewal_due(self.num_updates)

    def _targets_of(self, batch: Batch) -> Tensor:
        with torch.no_grad():
            next_obs = batch["next_obs"]
            if self.algo_config.double:
                return self.backup(batch, self.best_guess(next_obs))
            return self.backup(batch, self._choices(next_obs, len(batch["dones"])))

    def _choices(self, obs: Any, size: int) -> Tensor:
        """Return all actions, one-hot ``[B, A, A]``, with an allowed one for each forbidden one."""
        index = torch.arange(self.ac_dim, device=self.device).expand(size, -1)
        mask = allowed(obs)
        if mask is not None:
            index = torch.where(mask, index, mask.int().argmax(-1, keepdim=True))
        return torch.nn.functional.one_hot(index, self.ac_dim).float()

    # -- exploring --------------------------------------------------------------------------------

    def explore(self, seen: Seen) -> tuple[Tensor, Any]:
        """Choose the best action, or by chance (epsilon-greedy) the best by random values."""
        obs = self.prepare(seen.obs, seen.goal)
        like = torch.empty(len(next(iter(obs.values()))), self.ac_dim + 1, device=self.device)
        drawn = models.random_rows("rand", like, seen.generators)
        chance, scores = drawn.tensor_split([1], dim=-1)
        explores = chance < self._share_of_random_actions(seen.num_steps)
        if not explores.all():
            scores = torch.where(explores, scores, self.scores(obs))
        return highest(masked(scores, obs)), seen.state

    def _share_of_random_actions(self, num_steps: int) -> float:
        config = self.algo_config.exploration
        ahead = max(0.0, 1 - num_steps / config.steps)
        return config.final + ahead * (config.initial - config.final)


@register_distributional(DQNConfig, plain=DQN)
class DistributionalDQN(DistributionalCritic, DQN):
    """DQN whose network learns distributions of returns (C51)."""
