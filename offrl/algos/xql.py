"""Extreme Q-learning (Garg et al., 2023, arXiv:2301.02328): as IQL, but ``V`` is the soft maximum
of ``Q`` over the data's actions, found by Gumbel regression."""

from collections.abc import Callable

from offrl.algos.base import register_algo
from offrl.algos.iql import IQL, InSampleConfig
from offrl.config import Positive
from offrl.lazy import Tensor


class XQLConfig(InSampleConfig):
    ALGO_NAME = "xql"

    beta: Positive = 2.0
    """Temperature of the soft maximum over the data's actions. A small one is near the maximum."""
    max_clip: Positive = 7.0
    """Largest error over beta, so that its exponential stays finite."""


@register_algo(XQLConfig)
class XQL(IQL):
    algo_config: XQLConfig  # type: ignore[assignment]

    def v_loss(self, error: Tensor) -> Tensor:
        return gumbel_loss(error / self.algo_config.beta, self.algo_config.max_clip, self._largest)

    def _largest(self, z: Tensor) -> Tensor:
        return self.microbatches.together(z.amax(), Tensor.amax)


def gumbel_loss(
    z: Tensor, max_clip: float, largest_of: Callable[[Tensor], Tensor] = lambda z: z.amax()
) -> Tensor:
    """Compute ``mean(exp(z) - z - 1)`` (equation 10), divided by the batch's largest exponential,
    or 1 if that is more, for stability (the authors: or ``e^-1``)."""
    z = z.clamp(max=max_clip)
    largest = largest_of(z.detach()).clamp(min=0.0)
    return ((z - largest).exp() - z * (-largest).exp() - (-largest).exp()).mean()
