"""Random numbers, of which each row of a batch has a source of its own."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Generators = Sequence[torch.Generator | None] | None  # a source of randomness per row


class StandIns(list[torch.Generator]):
    """Sources of rows whose draws are replaced one by one, where a CUDA graph is captured."""


def random_rows(sample: Literal["randn", "rand"], like: Tensor, generators: Generators) -> Tensor:
    """Draw random numbers ``[B, ...]`` shaped as ``like``; row ``i`` from ``generators[i]`` alone.

    So an episode's actions depend on its own seed, not on other rows. Without generators the global
    random state is used; a row whose generator is ``None`` is zero.
    """
    if generators is None:
        return getattr(torch, sample)(like.shape, device=like.device)
    if isinstance(generators, StandIns):
        draw = getattr(torch, sample)
        return torch.stack([draw(like.shape[1:], generator=x) for x in generators]).to(like.device)
    fill = {"randn": Tensor.normal_, "rand": Tensor.uniform_}[sample]
    rows = torch.zeros(like.shape)
    for row, generator in zip(rows, generators, strict=True):
        if generator is not None:
            fill(row, generator=generator)
    return rows.to(like.device)


def draw_index(weights: Tensor, generators: Generators) -> Tensor:
    """Draw indices ``[B, ...]`` by probabilities ``[B, ..., K]``: cumulative ones are inverted."""
    uniform = random_rows("rand", weights[..., 0], generators)
    index = (uniform[..., None] > weights.cumsum(-1)).sum(-1)
    return index.clamp(max=weights.shape[-1] - 1)
