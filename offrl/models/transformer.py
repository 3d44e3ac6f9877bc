"""Transformers (Vaswani et al., 2017, arXiv:1706.03762) whose layers normalise first: a trunk, the
network of the Decision Transformer, and layers that may attend to a memory."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offrl.kernels.layers import Dropout, Linear
from offrl.models import heads  # noqa: F401 (it fills the registry)
from offrl.models.encoder import Encoder
from offrl.models.trunks import EVERY_STEP
from offrl.registry import HEADS, TRUNKS
from offrl.specs import ObsSpec


@TRUNKS.register("transformer")
class Transformer(nn.Module):
    """A trunk without state (Radford et al., 2018; as a policy Mandlekar et al., 2021).

    Each of at most ``context_length`` steps sees itself and earlier ones, or all steps unless
    ``causal``. Positions are a learned parameter (``nn_parameter_for_timesteps``), an embedding
    table or sines.
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
        _check_heads(embed_dim, num_heads)
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
        """Map features ``[B, T, F]`` to ``[B, T, D]``. Raises ``ValueError`` for too many steps."""
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
        return self.output_norm(last_block(x, answers)), state


class DecisionTransformer(nn.Module):
    """A causal Transformer over ``returns-to-go, state, action, returns-to-go, ...`` (Chen et al.,
    2021, arXiv:2106.01345). The features of a state token, which sees all earlier tokens, predict
    its action.

    return_scale: returns are divided by this.
    target_return: the return that the policy asks for while acting.
    """

    return_scale: Tensor
    target_return: Tensor

    def __init__(
        self,
        spec: ObsSpec,
        ac_dim: int,
        head: str = "deterministic",
        embed_dim: int = 128,
        num_layers: int = 3,
        num_heads: int = 1,
        dropout: float = 0.1,
        max_timestep: int = 1000,
    ):
        super().__init__()
        self.encoder = Encoder(spec)
        self.embed_return = Linear(1, embed_dim)
        self.embed_state = Linear(self.encoder.output_dim, embed_dim)
        self.embed_action = Linear(ac_dim, embed_dim)
        self.embed_timestep = nn.Embedding(max_timestep, embed_dim)
        self.embed_norm = nn.LayerNorm(embed_dim)
        self.embed_dropout = Dropout(dropout)
        self.blocks = nn.Sequential(
            *(Block(embed_dim, num_heads, dropout, dropout, "relu") for _ in range(num_layers))
        )
        self.output_norm = nn.LayerNorm(embed_dim)
        self.blocks.apply(initialize)
        self.head = HEADS[head](embed_dim, ac_dim)
        self.register_buffer("return_scale", torch.ones(()))
        self.register_buffer("target_return", torch.ones(()))

    def forward(
        self, returns: Tensor, states: Tensor, actions: Tensor, timesteps: Tensor
    ) -> Tensor:
        """Map returns-to-go ``[B, T, 1]``, encoded states ``[B, T, F]``, actions ``[B, T, A]`` and
        the steps' numbers in their episodes ``[B, T]`` to features for the head ``[B, T, D]``."""
        tokens = [
            self.embed_return(returns / self.return_scale),
            self.embed_state(states),
            self.embed_action(actions),
        ]
        time = self.embed_timestep(timesteps.clamp(max=self.embed_timestep.num_embeddings - 1))
        x = (torch.stack(tokens, dim=2) + time[:, :, None]).flatten(1, 2)
        x = self.blocks(self.embed_dropout(self.embed_norm(x)))
        return self.output_norm(x[:, 1::3])


class Block(nn.Module):
    """Self-attention and a network of two layers, each added to its input."""

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
        """Map ``[B, T, D]`` to the same, of the steps ``answers`` alone."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.num_heads, -1)).unbind(2)
        hidden = None
        if self.causal:
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
            hidden = later[answers]
        x = x[:, answers] + self.dropout(
            self.output(attend(q[:, answers], k, v, hidden, self.attn_dropout))
        )
        return x + self.dropout(self.mlp(self.norm2(x)))


class GEGLU(nn.Module):
    """Gates one half of the input by the GELU of the other (Shazeer, 2020, arXiv:2002.05202)."""

    def forward(self, x: Tensor) -> Tensor:
        values, gates = x.chunk(2, dim=-1)
        return values * F.gelu(gates)


class Attention(nn.Module):
    """Attention of queries ``[B, Q, D]`` to a memory ``[B, M, D]``."""

    def __init__(self, dim: int, num_heads: int, dropout: float):
        super().__init__()
        _check_heads(dim, num_heads)
        self.num_heads = num_heads
        self.queries, self.memory = Linear(dim, dim), Linear(dim, 2 * dim)
        self.dropout = Dropout(dropout)
        self.output = Linear(dim, dim)

    def forward(self, x: Tensor, memory: Tensor, hidden: Tensor | None) -> Tensor:
        q = self.queries(x).unflatten(-1, (self.num_heads, -1))
        k, v = self.memory(memory).unflatten(-1, (2, self.num_heads, -1)).unbind(2)
        return self.output(attend(q, k, v, hidden, self.dropout))


class EncoderLayer(nn.Module):
    """Attention of tokens to each other and a perceptron, each added to its input."""

    def __init__(self, dim: int, num_heads: int, feedforward_dim: int, dropout: float):
        super().__init__()
        self.attention = Attention(dim, num_heads, dropout)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            Linear(dim, feedforward_dim), nn.GELU(), Dropout(dropout), Linear(feedforward_dim, dim)
        )
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        return self._transform(self._attend(x, hidden))

    def _attend(self, x: Tensor, hidden: Tensor | None) -> Tensor:
        own = self.norm1(x)
        return x + self.dropout(self.attention(own, own, hidden))

    def _transform(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.mlp(self.norm2(x)))


class DecoderLayer(EncoderLayer):
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


def attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, dropout: nn.Module) -> Tensor:
    """Compute the attention of queries ``[B, Q, H, E]`` to keys and values ``[B, M, H, E]``: ``[B,
    Q, H * E]``.

    hidden: true where a query does not see a key, in a shape that goes with ``[B, H, Q, M]``.
    """
    scores = torch.einsum("bqhe,bthe->bhqt", q, k) / math.sqrt(q.shape[-1])
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    return torch.einsum("bhqt,bthe->bqhe", dropout(scores.softmax(-1)), v).flatten(2)


def sines(steps: int, dim: int) -> Tensor:
    """Make sinusoidal positions ``[1, T, D]``, sine and cosine alternating."""
    rates = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
    angles = torch.arange(steps)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[None, :, :dim]


def initialize(module: nn.Module) -> None:
    """Draw the weights of a linear layer from N(0, 0.02), without a bias."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _check_heads(embed_dim: int, num_heads: int) -> None:
    if embed_dim % num_heads:
        raise ValueError(
            f"algo.transformer: embed_dim ({embed_dim}) must be a multiple of num_heads "
            f"({num_heads})"
        )
