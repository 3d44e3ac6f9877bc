"""RLPD (Ball et al., 2023, arXiv:2302.02948): soft actor-critic that learns from its own steps and
from recorded ones, half of each batch.

Many updates for each step are made stable by critics with layer normalisation, and by targets that
are the least of a few critics drawn at random from many (Chen et al., 2021, arXiv:2101.05982). The
normalisation is behind each ReLU, where the authors' is before it.
"""

from typing import Any

from offrl.algos.base import Batch, Info, register_algo
from offrl.algos.sac import SAC, SACConfig
from offrl.algos.sac_n import SACActorConfig, SACCriticConfig
from offrl.config import Count
from offrl.config.algo import EnsembleConfig, while_acting
from offrl.lazy import Tensor, torch


class RLPDCriticConfig(SACCriticConfig):
    num_in_target: Count = 2
    """Number of critics, drawn at random for each update, of which the least value is a target."""


class RLPDActorConfig(SACActorConfig):
    update_freq: Count = 20
    """Number of critic updates for each update of the actor."""


class RLPDConfig(SACConfig):
    ALGO_NAME = "rlpd"
    DEFAULTS = while_acting(
        {"random_steps": 5000, "num_updates": 20, "replay": {"demo_share": 0.5}}, batch_size=256
    )

    critic: RLPDCriticConfig = RLPDCriticConfig(
        layer_dims=[256, 256], ensemble=EnsembleConfig(n=10)
    )
    actor: RLPDActorConfig = RLPDActorConfig(layer_dims=[256, 256])


@register_algo(RLPDConfig)
class RLPD(SAC):
    algo_config: RLPDConfig

    ENTROPY = -0.5
    LAYER_NORM = True

    def update(self, batch: Batch) -> Info:
        """Train the critics, whose loss is logged, and in some updates the actor."""
        info = self._train_critics(batch)
        self.num_updates += not self.validates
        if self.validates or self.num_updates % self.algo_config.actor.update_freq == 0:
            info |= self._train_actor(batch)
        return info

    def q_and_log_pi(self, critic: str, obs: Any, pi: Any) -> tuple[Tensor, Tensor]:
        actions, log_pi = pi.rsample(1)
        q = self.nets[critic](obs, actions)
        return (self.least_of_few(q) if critic == "critic_target" else q.mean(0)), log_pi

    def least_of_few(self, q: Tensor) -> Tensor:
        drawn = torch.randperm(len(q), device=q.device)[: self.algo_config.critic.num_in_target]
        return q[drawn].amin(0)
