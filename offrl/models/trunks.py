"""Trunks: features ``[B, T, F]`` and a recurrent state to features ``[B, T, output_dim]``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from offrl.models.linear import Linear
from offrl.registry import TRUNKS


@TRUNKS.register("mlp")
class MLP(nn.Module):
    """Fully connected layers with a ReLU behind each; every time step by itself, no state."""

    def __init__(self, input_dim: int, layer_dims: Sequence[int]):
        super().__init__()
        dims = [input_dim, *layer_dims]
        layers: list[nn.Module] = []
        for size_in, size_out in zip(dims, dims[1:], strict=False):
            layers += [Linear(size_in, size_out), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.output_dim = dims[-1]

    def forward(self, features: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        return self.layers(features), state
