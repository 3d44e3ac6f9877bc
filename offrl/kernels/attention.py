"""Causal self-attention for some of the steps: 4 % of the step of a Transformer that is trained on
its last."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def attend(x: Tensor, qkv: nn.Linear, num_heads: int, drop: nn.Module, steps: slice) -> Tensor:
    """Mix ``x`` ``[B, T, D]`` for ``steps``, ``[B, Q, D]``, in shares of which ``drop`` drops some;
    ``qkv`` makes queries, keys and values."""
    if steps == slice(None):
        return plain(x, qkv, num_heads, drop, steps)
    # Keys and values are linear in x, so queries and mixtures, which are fewer, are multiplied with
    # their weights instead.
    w_q, w_k, w_v = qkv.weight.unflatten(0, (3, num_heads, -1))  # [H, D / H, D]
    q = torch.einsum("bqd,hed->bqhe", x[:, steps], w_q)
    scores = torch.einsum("bqhd,btd->bhqt", torch.einsum("bqhe,hed->bqhd", q, w_k), x)
    mixed = torch.einsum("bhqt,btd->bqhd", drop(_shares(scores, q, steps)), x)
    return torch.einsum("bqhd,hed->bqhe", mixed, w_v).flatten(2)


def plain(x: Tensor, qkv: nn.Linear, num_heads: int, drop: nn.Module, steps: slice) -> Tensor:
    q, k, v = qkv(x).unflatten(-1, (3, num_heads, -1)).unbind(2)  # [B, T, H, D / H]
    scores = torch.einsum("bqhe,bthe->bhqt", q[:, steps], k)
    return torch.einsum("bhqt,bthe->bqhe", drop(_shares(scores, q, steps)), v).flatten(2)


def _shares(scores: Tensor, q: Tensor, steps: slice) -> Tensor:
    num_steps = scores.shape[-1]
    later = scores.new_ones(num_steps, num_steps, dtype=torch.bool).triu(1)[steps]
    return (scores / math.sqrt(q.shape[-1])).masked_fill(later, -torch.inf).softmax(-1)
