"""A Transformer as a trunk (Radford et al., 2018; as a policy Mandlekar et al., 2021)."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offrl.kernels.dropout import Dropout
from offrl.kernels.linear import Linear
from offrl.models.trunks import EVERY_STEP
from offrl.registry import TRUNKS


@TRUNKS.register("transformer")
class Transformer(nn.Module):
    """Each step sees itself and those before it, up to ``context_length`` of them, no state; or,
    unless it is ``causal``, all steps of what it is given.

    Positions are a free parameter (``nn_parameter_for_timesteps``), an embedding table or sines.
    """

    def __init__(
        self,
        input_dim: int,
        context_length: int = 10,
        embed_dim: int = 512,
        num_layers: int = 6,
        num_heads: int = 8,
        emb_dropout: float = 0.1,
        attn_dropout: float = 0.1,
        block_output_dropout: float = 0.1,
        sinusoidal_embedding: bool = False,
        activation: str = "gelu",
        nn_parameter_for_timesteps: bool = True,
        causal: bool = True,
    ):
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(
                f"algo.transformer: embed_dim ({embed_dim}) must be a multiple of num_heads "
                f"({num_heads})"
            )
        self.context_length, self.output_dim = context_length, embed_dim
        self.embed = Linear(input_dim, embed_dim)
        if sinusoidal_embedding:
            self.register_buffer("positions", sines(context_length, embed_dim), persistent=False)
        elif nn_parameter_for_timesteps:
            self.positions = nn.Parameter(torch.zeros(1, context_length, embed_dim))
        else:
            self.position_table = nn.Embedding(context_length, embed_dim)
        self.embed_norm = nn.LayerNorm(embed_dim)
        self.embed_dropout = Dropout(emb_dropout)
        self.blocks = nn.ModuleList(
            Block(embed_dim, num_heads, attn_dropout, block_output_dropout, activation, causal)
            for _ in range(num_layers)
        )
        self.output_norm = nn.LayerNorm(embed_dim)
        self.blocks.apply(initialize)

    def forward(
        self, features: Tensor, state: Any = None, answers: slice = EVERY_STEP
    ) -> tuple[Tensor, Any]:
        steps = features.shape[1]
        if steps > self.context_length:
            raise ValueError(
                f"algo.transformer.context_length: {self.context_length} steps, but the input has "
                f"{steps}; set train.frame_stack to the context length"
            )
        table = getattr(self, "position_table", None)
        positions = self.positions if table is None else table.weight[None]
        x = self.embed(features) + positions[:, :steps]
        x = self.embed_dropout(self.embed_norm(x))
        *blocks, last_block = self.blocks
        for block in blocks:
            x = block(x)
        x = last_block(x, answers)
        return self.output_norm(x), state


class Block(nn.Module):
    """Pre-norm self-attention and a two-layer network, each added to its input."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        attn_dropout: float,
        output_dropout: float,
        activation: str,
        causal: bool = True,
    ):
        super().__init__()
        self.num_heads, self.causal = num_heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(embed_dim), nn.LayerNorm(embed_dim)
        self.qkv = Linear(embed_dim, 3 * embed_dim, bias=False)
        self.attn_dropout = Dropout(attn_dropout)
        self.output = Linear(embed_dim, embed_dim)
        gated = activation == "geglu"
        self.mlp = nn.Sequential(
            Linear(embed_dim, 4 * embed_dim * (2 if gated else 1)),
            {"gelu": nn.GELU, "geglu": GEGLU, "relu": nn.ReLU}[activation](),
            Linear(4 * embed_dim, embed_dim),
        )
        self.dropout = Dropout(output_dropout)

    def forward(self, x: Tensor, answers: slice = EVERY_STEP) -> Tensor:
        x = x[:, answers] + self.dropout(self._attend(self.norm1(x), answers))
        return x + self.dropout(self.mlp(self.norm2(x)))

    def _attend(self, x: Tensor, answers: slice) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).unbind(2)  # [B, T, H, D / H]
        scores = torch.einsum("bqhe,bthe->bhqt", q[:, answers], k) / math.sqrt(q.shape[-1])
        if self.causal:
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later[answers], -torch.inf)
        shares = scores.softmax(-1)
        return self.output(torch.einsum("bhqt,bthe->bqhe", self.attn_dropout(shares), v).flatten(2))


class GEGLU(nn.Module):
    """One half gates the other (Shazeer, 2020, arXiv:2002.05202)."""

    def forward(self, x: Tensor) -> Tensor:
        values, gates = x.chunk(2, dim=-1)
        return values * F.gelu(gates)


def sines(steps: int, dim: int) -> Tensor:
    """Sinusoidal positions ``[1, T, D]``, sine and cosine alternating (Vaswani et al., 2017)."""
    rates = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
    angles = torch.arange(steps)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[None, :, :dim]


def initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
