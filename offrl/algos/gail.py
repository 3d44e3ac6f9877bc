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
from offrl.tree import map_leaves

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
            num_frames=self.global_config.train.frame_stack,
        )

    def process_batch_for_training(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Process a round (see ``PolicyGradient``) with ``demos``, a batch of as many recorded
        steps as there are rows, ``N L``."""
        rewards = REWARDS[self.algo_config.reward](self._logits_of(batch)).cpu()
        ready = super().process_batch_for_training({**batch, "rewards": rewards})
        now, demos, mask = self.global_config.train.frame_stack - 1, batch["demos"], batch["mask"]
        shown = {
            "demo_obs": self.prepare_obs(frames_from(demos["obs"], 0, now + 1)),
            "demo_actions": self.to_device(demos["actions"][:, now : now + 1]),
        }
        if self.learns_segments:
            return ready | map_leaves(lambda x: x.unflatten(0, mask.shape), shown)
        taken = mask.flatten().to(self.device)
        return ready | map_leaves(lambda x: x[taken], shown)

    def _logits_of(self, batch: Mapping[str, Any]) -> Tensor:
        """Compute the logits of ``D`` of the rows of a round, ``[N, L]``."""
        with torch.no_grad():
            obs = self.prepare_obs(map_leaves(lambda x: x.flatten(0, 1), batch["obs"]))
            actions = self.to_device(batch["actions"]).flatten(0, 1)[:, None]
            logits = self.nets["discriminator"].first(obs, self._bounded(actions))
            return logits.view(batch["mask"].shape)

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
        own = discriminator.encode(batch["obs"]), self._bounded(batch["actions"])
        shown = discriminator.encode(batch["demo_obs"]), self._bounded(batch["demo_actions"])
        if self.learns_segments:  # without the rows between episodes
            mask = batch["mask"]
            own, shown = (own[0][mask], own[1][mask]), (shown[0][mask], shown[1][mask])
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
