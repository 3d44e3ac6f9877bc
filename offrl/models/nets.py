"""Networks put together from encoder, trunk and head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from offrl.config import AlgoConfig
from offrl.models import heads, trunks  # noqa: F401 (they fill the registries)
from offrl.models.encoder import Encoder
from offrl.models.heads import ActionDistribution
from offrl.registry import HEADS, TRUNKS
from offrl.specs import ObsSpec


class Actor(nn.Module):
    """``pi(a | s, g)``: observations ``[B, T, ...]`` to a distribution over ``[B, T, A]``."""

    def __init__(self, encoder: nn.Module, trunk: nn.Module, head: nn.Module):
        super().__init__()
        self.encoder, self.trunk, self.head = encoder, trunk, head

    def forward(
        self, obs: Mapping[str, Tensor], goal: Mapping[str, Tensor] | None = None, state: Any = None
    ) -> tuple[ActionDistribution, Any]:
        """The distribution, and the trunk's state after the last step (``None`` if it has none)."""
        features, state = self.trunk(self.encoder(obs, goal), state)
        return self.head(features), state


def actor_from_config(config: AlgoConfig, spec: ObsSpec, ac_dim: int) -> Actor:
    """The actor that robomimic's switches (``gaussian.enabled``, ``rnn.enabled``, ...) describe.

    The one place where the switches are read.
    """
    for switch in ("vae", "rnn", "transformer"):
        if switch in config and config[switch].enabled:
            raise ValueError(
                f"algo.{switch}.enabled: this version of offrl trains MLP policies only; "
                "set it to false"
            )
    encoder = Encoder(spec)
    trunk = TRUNKS["mlp"](encoder.output_dim, config["actor_layer_dims"])
    name = next((h for h in ("gaussian", "gmm") if config[h].enabled), "deterministic")
    options = {} if name == "deterministic" else config[name].to_dict()
    for consumed_elsewhere in ("enabled", "low_noise_eval"):
        options.pop(consumed_elsewhere, None)
    return Actor(encoder, trunk, HEADS[name](trunk.output_dim, ac_dim, **options))
