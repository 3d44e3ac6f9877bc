"""GAIL (Ho & Ermon, 2016, arXiv:1606.03476): proximal policy optimisation whose rewards come from a
discriminator ``D(s, a)``, which tells the steps of demonstrations from the policy's own.

The rewards of a round are those of the discriminator before it; then both learn from its steps,
with one step of each optimizer per batch.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from offrl import models
from offrl.algos.base import Batch, Info, register_algo
from offrl.algos.ppo import PPO, PPOConfig
from offrl.algos.shared.policy_gradient import one_optimizer
from offrl.algos.shared.td import frames_from
from offrl.config import Count, NonNegative, Section
from offrl.config.algo import learning_rates
from offrl.lazy import Tensor, torch

REWARDS = {
    "positive": lambda logits: torch.nn.functional.softplus(logits),  # -log(1 - D)
    "negative": lambda logits: torch.nn.functional.logsigmoid(logits),  # log D
    "both": lambda logits: logits,  # log D - log(1 - D)
}


class DiscriminatorConfig(Section):
    layer_dims: list[Count] = [100, 100]
    """Sizes of the hidden layers."""
    gradient_penalty: NonNegative = 1.0
    """Weight of the squared gradient of the logits between steps of both kinds. It keeps rewards
    finite where the kinds are easily told apart."""


class GAILConfig(PPOConfig):
    ALGO_NAME = "gail"

    OPTIMIZERS = one_optimizer(3e-4) | learning_rates(discriminator=3e-4)
    discriminator: DiscriminatorConfig = DiscriminatorConfig()
    """Network that tells demonstrations from steps of the policy."""
    reward: Literal["positive", "negative", "both"] = "positive"
    """Reward of the policy for D, the probability that a step is a demonstration's. "positive":
    -log(1 - D), the paper's, which also rewards that an episode goes on; "negative": log D, which
    also rewards that it ends; "both": the sum of the two, without either bias at D = 1/2."""


@register_algo(GAILConfig)
class GAIL(PPO):
    algo_config: GAILConfig
    NEEDS_DEMOS = True

    def _create_networks(self) -> None:
        super()._create_networks()
        self.nets["discriminator"] = models.Critics(
            self.obs_spec,
            self.ac_dim,
            self.algo_config.discriminator.layer_dims,
            num_critics=1,
            num_frames=self.num_frames,
        )

    def estimates(
        self, batch: Mapping[str, Any], mask: Tensor, rows: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Compute the same by rewards of the discriminator, and add a recorded step for each row.
        ``demos`` of a round is a batch of as many, ``N L``."""
        rewards = REWARDS[self.algo_config.reward](self._logits_of(rows).view(mask.shape)).cpu()
        demos, now = batch["demos"], self.num_frames - 1
        return {
            **super().estimates({**batch, "rewards": rewards}, mask, rows),
            "demo_obs": self.prepare_obs(frames_from(demos["obs"], 0, self.num_frames)),
            "demo_actions": self.to_device(demos["actions"][:, now : now + 1]),
        }

    def _logits_of(self, steps: Mapping[str, Any]) -> Tensor:
        """Compute the logits of ``D`` of steps, ``[M, 1]``."""
        return self.nets["discriminator"].first(steps["obs"], self._bounded(steps["actions"]))

    def _bounded(self, actions: Tensor) -> Tensor:
        """Clip actions as the environment does; unclipped ones would give the policy away."""
        return actions if self.is_discrete else actions.clamp(-1.0, 1.0)

    def gradient_penalty(self, own: Sequence[Tensor], shown: Sequence[Tensor]) -> Tensor:
        """Compute the mean squared gradient of logits at random places between both kinds of
        steps."""
        share = torch.rand(len(own[0]), 1, 1, device=self.device)
        between = [
            torch.lerp(a.detach(), b.detach(), share).requires_grad_()
            for a, b in zip(own, shown, strict=True)
        ]
        with torch.enable_grad():
            logits = self.nets["discriminator"](*between).sum()
            gradients = torch.autograd.grad(logits, between, create_graph=True)
        return torch.cat(gradients, dim=-1).square().sum(-1).mean()

    def update(self, batch: Batch) -> Info:
        info = super().update(batch)
        discriminator = self.nets["discriminator"]
        own = [discriminator.encode(batch["obs"]), self._bounded(batch["actions"])]
        shown = [discriminator.encode(batch["demo_obs"]), self._bounded(batch["demo_actions"])]
        if self.learns_segments:  # without the rows between episodes
            own, shown = ([x[batch["mask"]] for x in steps] for steps in (own, shown))
        logits, demo_logits = discriminator(*own), discriminator(*shown)
        softplus = torch.nn.functional.softplus
        # -log(1 - D) of its own steps and -log D of demonstrations
        loss = softplus(logits).mean() + softplus(-demo_logits).mean()
        penalty = self.gradient_penalty(own, shown)
        total = loss + self.algo_config.discriminator.gradient_penalty * penalty
        return info | {
            "loss": info["loss"].detach() + total.detach(),
            "Discriminator/Loss": loss,
            "Discriminator/Gradient": penalty,
            "Discriminator/Own": logits.sigmoid().mean(),
            "Discriminator/Demos": demo_logits.sigmoid().mean(),
            "Discriminator/Grad_Norms": self.optimize("discriminator", total),
        }
