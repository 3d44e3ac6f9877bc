"""Trunks: features ``[B, T, F]`` and a recurrent state to features ``[B, T, output_dim]``.

A state is a dict of tensors ``[B, ...]``, one row per environment; a row of zeros is the start of
an episode. ``answers`` selects the steps of the output; others are not computed if possible.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from offrl.kernels.layers import Linear, tanh_layers, tanh_layers_pay
from offrl.registry import TRUNKS

EVERY_STEP = slice(None)
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh}


@TRUNKS.register("mlp")
class MLP(nn.Module):
    """Fully connected layers with an activation after each, for every time step by itself."""

    def __init__(self, input_dim: int, layer_dims: Sequence[int], activation: str = "relu"):
        super().__init__()
        dims = [input_dim, *layer_dims]
        layers: list[nn.Module] = []
        for size_in, size_out in pairwise(dims):
            layers += [Linear(size_in, size_out), ACTIVATIONS[activation]()]
        self.layers = nn.Sequential(*layers)
        self._affine: list[Any] = layers[::2]
        self.output_dim = dims[-1]
        self._is_tanh = activation == "tanh" and len(layers) > 0

    def forward(
        self, features: Tensor, state: Any = None, answers: slice = EVERY_STEP
    ) -> tuple[Tensor, Any]:
        """Map features ``[B, T, F]`` to ``[B, T, output_dim]``; the state is returned as it is."""
        return self._run(features if answers is EVERY_STEP else features[:, answers]), state

    def _run(self, features: Tensor) -> Tensor:
        if not self._is_tanh or not tanh_layers_pay(features):
            return self.layers(features)
        rows = features.flatten(0, 1)
        parameters = [p for layer in self._affine for p in (layer.weight, layer.bias)]
        return tanh_layers(rows, parameters).unflatten(0, features.shape[:2])


@TRUNKS.register("rnn")
class RNN(MLP):
    """An LSTM or GRU over time, then fully connected layers at every step.

    It is trained on windows that start from a state of zeros, so while acting the state is reset
    every ``horizon`` steps (``None``: never). With ``open_loop`` it sees only the first observation
    of a window.
    """

    def __init__(
        self,
        input_dim: int,
        layer_dims: Sequence[int],
        hidden_dim: int = 400,
        num_layers: int = 2,
        rnn_type: str = "LSTM",
        horizon: int | None = 10,
        open_loop: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ):
        cell = {"LSTM": nn.LSTM, "GRU": nn.GRU}[rnn_type]
        options = {**(kwargs or {}), "batch_first": True}
        rnn = cell(input_dim, hidden_dim, num_layers, **options)
        super().__init__(hidden_dim * (2 if rnn.bidirectional else 1), layer_dims)
        self.rnn = rnn
        self.horizon, self.open_loop = horizon, open_loop

    def forward(
        self,
        features: Tensor,
        state: Mapping[str, Tensor] | None = None,
        answers: slice = EVERY_STEP,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Map features ``[B, T, F]`` to ``[B, T, output_dim]``, and return the next state."""
        # PyTorch's memory is ``[L, B, H]``, an LSTM's two of these; a state has ``[B, L, H]``.
        first = features[:, :1]
        hidden: Any = None
        age = torch.zeros(len(features), dtype=torch.long, device=features.device)
        if state is not None:
            age = state["age"]
            goes_on = ((age if self.horizon is None else age % self.horizon) != 0)[:, None, None]
            first = torch.where(goes_on, state["first"], first)
            kept = [state[name] * goes_on for name in "hc" if name in state]
            parts = tuple(part.transpose(0, 1).contiguous() for part in kept)
            hidden = parts if len(parts) == 2 else parts[0]
        if self.open_loop:
            features = first.expand_as(features)
        output, hidden = self.rnn(features, hidden)
        parts = hidden if isinstance(hidden, tuple) else (hidden,)
        named = {name: part.transpose(0, 1) for name, part in zip("hc", parts, strict=False)}
        state = {"age": age + features.shape[1], "first": first, **named}
        return self._run(output[:, answers]), state


def perceptron(input_dim: int, layer_dims: Sequence[int], output_dim: int) -> nn.Sequential:
    """Make an ``MLP`` with a linear layer: ``[..., input_dim]`` to ``[..., output_dim]``."""
    trunk = MLP(input_dim, layer_dims)
    return nn.Sequential(trunk.layers, Linear(trunk.output_dim, output_dim))


def over_episodes(
    trunk: nn.Module, features: Tensor, state: Mapping[str, Tensor] | None, starts: Tensor
) -> tuple[Tensor, Any]:
    """Run a trunk over segments ``[B, L, F]``, from a state of zeros at each step that ``starts``
    ``[B, L]`` marks as the first of an episode.

    All segments advance together, up to the next step at which one of them starts anew.
    """
    num_steps, outputs = features.shape[1], []
    cuts = [0, *(starts[:, 1:].any(0).nonzero().flatten() + 1).tolist(), num_steps]
    for first, last in pairwise(cuts):
        if state is not None:
            goes_on = ~starts[:, first]
            state = {k: x * goes_on.view(-1, *[1] * (x.ndim - 1)) for k, x in state.items()}
        output, state = trunk(features[:, first:last], state)
        outputs.append(output)
    return torch.cat(outputs, dim=1), state
