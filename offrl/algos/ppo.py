"""Proximal policy optimisation (Schulman et al., 2017, arXiv:1707.06347): several passes over the
steps of a round, in which no action gains from becoming much likelier or less likely than it was.

The defaults are those of Stable-Baselines3.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from offrl.algos.base import Batch, Info, register_algo
from offrl.algos.shared.policy_gradient import GAEConfig, PolicyGradient, collecting
from offrl.config import Count, Positive
from offrl.lazy import Tensor, torch


class PPOConfig(GAEConfig):
    ALGO_NAME = "ppo"
    DEFAULTS = collecting(2048, batch_size=64)

    num_passes: Count = 10
    """Number of passes over the steps of a round."""
    clip_range: Positive = 0.2
    """Largest distance from 1 (epsilon) of the ratio of an action's probability to that when it was
    taken; beyond it nothing is learned from the action."""
    value_clip_range: Positive | None = None
    """Largest distance to learn values at, from those when the steps were taken. null: no limit."""
    target_kl: Positive | None = None
    """Leave out the rest of the passes when the policy has moved by more than 1.5 times this KL
    divergence. null: make all passes."""


@register_algo(PPOConfig)
class PPO(PolicyGradient):
    algo_config: PPOConfig

    _has_moved_enough = False

    def minibatches(self, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        self._has_moved_enough = False
        for batch in self.shuffled(data, self.algo_config.num_passes):
            if self._has_moved_enough:
                return
            yield batch

    def is_capturable(self) -> bool:
        return super().is_capturable() and self.algo_config.target_kl is None

    def v_loss(self, values: Tensor, batch: Mapping[str, Any]) -> Tensor:
        """Compute the squared error of the values, which move by ``value_clip_range`` at most."""
        clip, old = self.algo_config.value_clip_range, batch["values"]
        if clip is not None:
            values = old + (values - old).clamp(-clip, clip)
        return (values - batch["returns"]).square().mean()

    def _change_info(self, ratio: Tensor, log_ratio: Tensor, clipped: Tensor) -> dict[str, Tensor]:
        """Measure how far the policy is from the one that took the steps."""
        target = self.algo_config.target_kl
        divergence = (ratio - 1 - log_ratio).mean()  # without bias, and never negative
        if target is not None:  # the one reason to wait for the device
            self._has_moved_enough = bool(divergence > 1.5 * target)
        return {"Approx_KL": divergence, "Clip_Fraction": (clipped != ratio).float().mean()}

    def update(self, batch: Batch) -> Info:
        clip = self.algo_config.clip_range
        log_probs, entropy, values = self.evaluate(batch)
        advantages = self.normalized(batch["advantages"])
        log_ratio = log_probs - batch["log_probs"]
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1 - clip, 1 + clip)
        actor_loss = -torch.min(ratio * advantages, clipped * advantages).mean()
        value_loss = self.v_loss(values, batch)

        with torch.no_grad():
            moved = self._change_info(ratio, log_ratio, clipped)
        return self.descend(actor_loss, value_loss, entropy.mean(), batch) | moved
