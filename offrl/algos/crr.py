"""Critic-regularized regression (Wang et al., 2020, arXiv:2006.15134): clone the actions that the
critic finds better than the policy's own."""

from typing import Literal

from offrl.algos.awac import AWAC
from offrl.algos.shared.distributional import DistributionalCritic, register_distributional
from offrl.config import Count, Positive
from offrl.config.algo import DistributionalCriticConfig, TDConfig
from offrl.config.networks import ActorConfig
from offrl.lazy import Tensor


class CRRConfig(TDConfig):
    ALGO_NAME = "crr"
    DEFAULTS = {"train": {"batch_size": 1024}}

    OPTIMIZERS = {"critic": 3e-4, "actor": 3e-4}
    f: Literal["exp", "binary"] = "exp"
    """Weight of an action by its advantage A: exp(A / beta), or with "binary" 1 if A > 0."""
    beta: Positive = 1.0
    """Temperature of the weights "exp"."""
    max_weight: Positive = 20.0
    """Largest weight, of "exp"."""
    m: Count = 4
    """Number of the policy's actions that the one in the data is compared with."""
    # The paper's is distributional.
    critic: DistributionalCriticConfig = DistributionalCriticConfig(layer_dims=[256, 256])
    actor: ActorConfig = ActorConfig(layer_dims=[256, 256, 256, 256])
    """The policy."""


class CRR(AWAC):
    algo_config: CRRConfig  # type: ignore[assignment]

    NEXT_ACTOR = "actor_target"

    def _create_networks(self) -> None:
        super()._create_networks()
        self.add_target("actor")

    @property
    def num_policy_actions(self) -> int:  # type: ignore[override]
        return self.algo_config.m

    def weight(self, advantage: Tensor) -> Tensor:
        config = self.algo_config
        if config.f == "binary":
            return (advantage > 0).float()
        return (advantage / config.beta).exp().clamp(max=config.max_weight)


@register_distributional(CRRConfig, plain=CRR)
class DistributionalCRR(DistributionalCritic, CRR):
    """CRR whose critic learns distributions of returns, as the paper's does."""
