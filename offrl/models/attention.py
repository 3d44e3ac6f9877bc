"""Transformer layers (Vaswani et al., 2017, arXiv:1706.03762) that normalise first, and may attend
to a memory."""

import math

import torch
from torch import Tensor, nn

from offrl.kernels.dropout import Dropout
from offrl.kernels.linear import Linear


class Attention(nn.Module):
    """What queries ``[B, Q, D]`` take from a memory ``[B, M, D]``, of which ``hidden`` (where it is
    true, in a shape that goes with ``[B, heads, Q, M]``) says what they do not see."""

    def __init__(self, dim: int, num_heads: int, dropout: float):
        super().__init__()
        if dim % num_heads:
            raise ValueError(
                f"algo.transformer: embed_dim ({dim}) must be a multiple of num_heads ({num_heads})"
            )
        self.num_heads = num_heads
        self.queries, self.memory = Linear(dim, dim), Linear(dim, 2 * dim)
        self.dropout = Dropout(dropout)
        self.output = Linear(dim, dim)

    def forward(self, x: Tensor, memory: Tensor, hidden: Tensor | None) -> Tensor:
        q = self.queries(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        k, v = self.memory(memory).unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if hidden is not None:
            scores = scores.masked_fill(hidden, -torch.inf)
        taken = self.dropout(scores.softmax(-1)) @ v
        return self.output(taken.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention of tokens to each other and two layers of a perceptron, each added to its input."""

    def __init__(self, dim: int, num_heads: int, feedforward_dim: int, dropout: float):
        super().__init__()
        self.attention = Attention(dim, num_heads, dropout)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            Linear(dim, feedforward_dim),
            nn.GELU(),
            Dropout(dropout),
            Linear(feedforward_dim, dim),
        )
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        return self._transform(self._attend(x, hidden))

    def _attend(self, x: Tensor, hidden: Tensor | None) -> Tensor:
        own = self.norm1(x)
        return x + self.dropout(self.attention(own, own, hidden))

    def _transform(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.mlp(self.norm2(x)))


class DecoderLayer(Layer):
    """A layer whose tokens then attend to a memory ``[B, M, D]`` as well."""

    def __init__(self, dim: int, num_heads: int, feedforward_dim: int, dropout: float):
        super().__init__(dim, num_heads, feedforward_dim, dropout)
        self.memory_attention = Attention(dim, num_heads, dropout)
        self.memory_norm = nn.LayerNorm(dim)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        memory: Tensor,
        hidden: Tensor | None = None,
        hidden_memory: Tensor | None = None,
    ) -> Tensor:
        x = self._attend(x, hidden)
        taken = self.memory_attention(self.memory_norm(x), memory, hidden_memory)
        return self._transform(x + self.dropout(taken))
