"""Normalisation by recorded statistics: ``(x - offset) / scale`` and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

Stats = Mapping[str, Mapping[str, Any]]  # key -> {"scale": [1, D], "offset": [1, D]}


class Normalizer:
    """Statistics per key, as tensors on one device. Keys without statistics pass unchanged."""

    def __init__(self, stats: Stats | None = None, device: Any = "cpu"):
        self.stats = {
            key: {n: torch.as_tensor(v, dtype=torch.float32, device=device) for n, v in s.items()}
            for key, s in (stats or {}).items()
        }

    def normalize(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Nested values ``{key: [..., D]}``, key by key."""
        if not self.stats:
            return dict(values)
        return {
            k: (v - self.stats[k]["offset"]) / self.stats[k]["scale"] if k in self.stats else v
            for k, v in values.items()
        }

    def unnormalize_vector(self, vector: Any) -> Any:
        """Undo the normalisation of ``[..., D]``, the keys' values joined in their order."""
        if not self.stats:
            return vector
        scale = torch.cat([s["scale"] for s in self.stats.values()], dim=-1)
        offset = torch.cat([s["offset"] for s in self.stats.values()], dim=-1)
        return vector * scale + offset
