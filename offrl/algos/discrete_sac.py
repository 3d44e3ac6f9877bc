"""Soft actor-critic for discrete actions (Christodoulou, 2019, arXiv:1910.07207): where SAC draws
an action, the expectation over all of them takes its place."""

import math
from dataclasses import replace
from typing import Any, Literal

from offrl import models
from offrl.algos.base import Batch, register_algo
from offrl.algos.sac_n import SACN, SACCriticConfig
from offrl.algos.shared.masks import allowed, masked
from offrl.config import Count
from offrl.config.algo import DISCRETE, TDConfig, while_acting
from offrl.config.networks import LayersConfig
from offrl.lazy import Tensor, torch
from offrl.specs import ObsSpec

SHARE = 0.98  # target entropy, as a share of the largest


class DiscreteSACActorConfig(LayersConfig):
    layer_dims: list[Count] = [256, 256]
    target_entropy: float | Literal["default"] | None = "default"
    """Entropy of the policy that the weight of the entropy is tuned to hold. "default": 0.98 times
    that of allowed actions at random. null: no tuning, the weight is 1."""


class DiscreteSACConfig(TDConfig):
    ALGO_NAME = "discrete_sac"
    DEFAULTS = while_acting(
        {"random_steps": 1000, "replay": {"capacity": 100_000}},
        batch_size=256,
        action_config=DISCRETE,
    )

    OPTIMIZERS = {"critic": 3e-4, "actor": 3e-4}
    critic: SACCriticConfig = SACCriticConfig(layer_dims=[256, 256])
    actor: DiscreteSACActorConfig = DiscreteSACActorConfig()
    """The policy."""


@register_algo(DiscreteSACConfig)
class DiscreteSAC(SACN):
    algo_config: DiscreteSACConfig  # type: ignore[assignment]

    ACTIONS = ("discrete",)
    LOGS_GRADIENTS = False

    def add_stochastic_actor(self, spec: ObsSpec | None = None) -> None:
        dims = self.algo_config.actor.layer_dims
        self.nets["actor"] = models.mlp_actor(
            spec or self.obs_spec, self.ac_dim, dims, "categorical", self.num_frames
        )

    def add_critics(self, network: type | None = None, **options: Any) -> None:
        super().add_critics(network or models.DiscreteCritics, **options)

    def policy(self, obs: Any, state: Any = None) -> tuple[Any, Any]:
        pi, state = super().policy(obs, state)
        return replace(pi, logits=masked(pi.logits[:, 0], obs)[:, None]), state

    def target_entropy(self, obs: Any) -> Any:
        given, mask = self.algo_config.actor.target_entropy, allowed(obs)
        if given != "default":
            return given
        largest = math.log(self.ac_dim) if mask is None else mask.sum(1, keepdim=True).log()
        return SHARE * largest

    def q_and_log_pi(self, critic: str, obs: Any, pi: Any) -> tuple[Tensor, Tensor]:
        """Compute the expectations of both over the actions of the policy, ``[B, 1]`` each."""
        log_pi = pi.logits[:, 0].log_softmax(-1)
        share = log_pi.exp()
        with torch.no_grad():
            q = self.nets[critic].values(obs).amin(0)
        return tuple((share * x).sum(-1, keepdim=True) for x in (q, log_pi))

    def pi_loss(self, batch: Batch, alpha: Tensor) -> tuple[Tensor, Tensor]:
        q, log_pi = self.q_and_log_pi("critic", batch["obs"], self.policy(batch["obs"])[0])
        return (alpha * log_pi - q).mean(), log_pi
