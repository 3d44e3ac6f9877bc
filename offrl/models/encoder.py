"""Observations to one feature vector per time step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor, nn

from offrl.specs import ObsSpec


class Encoder(nn.Module):
    """Joins the observations of each group, in the order of the spec: ``[B, T, F]``.

    Goals ``[B, ...]`` have no time of their own and repeat over ``T``.
    """

    def __init__(self, spec: ObsSpec, groups: Sequence[str] = ("obs", "goal")):
        super().__init__()
        self.keys = {group: spec.keys(group) for group in groups if spec.keys(group)}
        specs = [spec.groups[group][key] for group, keys in self.keys.items() for key in keys]
        for obs in specs:
            if obs.modality != "low_dim":
                raise ValueError(
                    f"observation.modalities: {obs.modality} observations have no encoder in this "
                    "version of offrl; use low_dim keys"
                )
        if not self.keys.get("obs"):
            raise ValueError("observation.modalities.obs: name at least one observation key")
        self.output_dim = sum(prod(obs.shape) for obs in specs)

    def forward(
        self, obs: Mapping[str, Tensor], goal: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        features = [obs[key].flatten(2) for key in self.keys["obs"]]
        if "goal" in self.keys:
            if goal is None:
                raise ValueError(
                    "this policy is conditioned on a goal (observation.modalities.goal): pass one, "
                    'or train with train.goal_mode "last"'
                )
            time = features[0].shape[1]
            features += [
                goal[key].flatten(1)[:, None].expand(-1, time, -1) for key in self.keys["goal"]
            ]
        return torch.cat(features, dim=-1)
