"""The network of the Decision Transformer (Chen et al., 2021, arXiv:2106.01345)."""

import torch
from torch import Tensor, nn

from offrl.kernels.dropout import Dropout
from offrl.kernels.linear import Linear
from offrl.models import heads  # noqa: F401 (it fills the registry)
from offrl.models.encoder import Encoder
from offrl.models.transformer import Block, initialize
from offrl.registry import HEADS
from offrl.specs import ObsSpec


class DecisionTransformer(nn.Module):
    """A causal Transformer over ``returns-to-go, state, action, returns-to-go, ...``: what it makes
    of a state, which sees all before it but not its own action, predicts that action.

    return_scale: what returns are divided by.
    target_return: the return that is asked for while acting.
    """

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
        """Returns-to-go ``[B, T, 1]``, encoded states ``[B, T, F]``, actions ``[B, T, A]`` and the
        steps' numbers in their episodes ``[B, T]`` to features for the head, ``[B, T, D]``."""
        tokens = [
            self.embed_return(returns / self.return_scale),
            self.embed_state(states),
            self.embed_action(actions),
        ]
        time = self.embed_timestep(timesteps.clamp(max=self.embed_timestep.num_embeddings - 1))
        x = (torch.stack(tokens, dim=2) + time[:, :, None]).flatten(1, 2)
        x = self.blocks(self.embed_dropout(self.embed_norm(x)))
        return self.output_norm(x[:, 1::3])
