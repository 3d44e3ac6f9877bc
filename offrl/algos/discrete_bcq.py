"""Discrete batch-constrained Q-learning (Fujimoto et al., 2019, arXiv:1910.01708): double DQN that
chooses among the actions that the data would take.

The imitation has a network of its own; the paper's, for images, shares the first layers.
"""

from typing import Any

from offrl import models
from offrl.algos.base import Batch, Info, register_algo
from offrl.algos.ddqn import DDQN, DDQNConfig
from offrl.algos.shared.masks import masked
from offrl.config import NonNegative, Share
from offrl.lazy import Tensor, torch


class DiscreteBCQConfig(DDQNConfig):
    ALGO_NAME = "discrete_bcq"

    OPTIMIZERS = {"critic": 3e-4, "imitation": 3e-4}
    threshold: Share = 0.3
    """Least likelihood of actions, as a share of the likeliest one's. 0: double DQN; 1: cloning."""
    logit_weight: NonNegative = 1e-2
    """Weight of the squared logits of the network that imitates."""


@register_algo(DiscreteBCQConfig)
class DiscreteBCQ(DDQN):
    """``imitation`` is ``G(a | s)``, cloned from the data."""

    algo_config: DiscreteBCQConfig

    def _create_networks(self) -> None:
        super()._create_networks()
        dims = self.algo_config.critic.layer_dims
        self.nets["imitation"] = models.mlp_actor(
            self.obs_spec, self.ac_dim, dims, "categorical", self.num_frames
        )

    def scores(self, obs: Any) -> Tensor:
        """Return the values of the actions that the data would take; others are forbidden."""
        log_g = masked(self.nets["imitation"](obs)[0].logits[:, 0], obs)
        ratio = (log_g - log_g.amax(-1, keepdim=True)).exp()  # G(a | s) / max G
        excluded = ratio < self.algo_config.threshold
        return super().scores(obs).masked_fill(excluded, -torch.inf)

    def update(self, batch: Batch) -> Info:
        info = super().update(batch)
        pi, _ = self.nets["imitation"](batch["obs"])
        nll = -pi.log_prob(batch["actions"]).mean()
        loss = nll + self.algo_config.logit_weight * pi.logits.square().mean()
        return info | {
            "loss": info["loss"] + loss.detach(),
            "Imitation/Loss": loss,
            "Imitation/Grad_Norms": self.optimize("imitation", loss),
        }
