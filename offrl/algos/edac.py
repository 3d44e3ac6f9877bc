"""EDAC (An et al., 2021, arXiv:2110.01548): SAC-N with fewer critics, whose gradients with respect
to the action are pushed apart."""

from typing import Any

from pydantic import Field

from offrl.algos.base import Batch, Info, register_algo
from offrl.algos.sac_n import SACN, SACCriticConfig, SACNConfig
from offrl.config import NonNegative
from offrl.config.algo import EnsembleConfig
from offrl.lazy import Tensor, torch


class SeveralConfig(EnsembleConfig):
    n: int = Field(10, ge=2)
    """Number of critics, two at least."""


class EDACCriticConfig(SACCriticConfig):
    ensemble: SeveralConfig = SeveralConfig()


class EDACConfig(SACNConfig):
    ALGO_NAME = "edac"

    critic: EDACCriticConfig = EDACCriticConfig(layer_dims=[256, 256, 256])
    eta: NonNegative = 1.0
    """Weight of the similarity of the critics' gradients."""


@register_algo(EDACConfig)
class EDAC(SACN):
    algo_config: EDACConfig

    def q_losses(self, batch: Batch, target: Tensor, next_pi: Any) -> tuple[Tensor, Info]:
        critic = self.nets["critic"]
        with torch.enable_grad():  # gradients are part of the loss, in validation as well
            actions = batch["actions"].expand(critic.num_critics, -1, -1, -1).clone()
            actions.requires_grad_()
            q = critic(batch["obs"], actions)
            (gradients,) = torch.autograd.grad(q.sum(), actions, create_graph=True)
        similarity = mean_similarity(gradients.squeeze(2))
        losses = self.td_losses(q, target, batch.get("weights"))
        losses = losses + self.algo_config.eta * similarity / critic.num_critics
        return losses, {"Critic/Similarity": similarity.detach()}


def mean_similarity(gradients: Tensor) -> Tensor:
    """Sum cosine similarities of ``[N, B, A]`` over pairs of critics; divide by N - 1 (eq. 4)."""
    directions = torch.nn.functional.normalize(gradients, dim=-1)
    num = len(directions)
    with_itself = directions.square().sum((0, 2))
    return (directions.sum(0).square().sum(-1) - with_itself).mean() / (num - 1)
