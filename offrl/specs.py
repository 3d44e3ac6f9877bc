"""What the observations are. An ``ObsSpec`` is passed to whoever needs it, never looked up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from offrl.config import ObservationConfig


@dataclass(frozen=True)
class ObsKey:
    """One observation: its modality (``low_dim``, ``rgb``, ...) and shape per time step."""

    modality: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ObsSpec:
    """The observation keys of each group (``obs``, ``goal``, ...), in alphabetical order.

    The order is that in which features are concatenated, and so part of the weights' meaning.
    """

    groups: Mapping[str, Mapping[str, ObsKey]]

    @classmethod
    def from_config(cls, config: ObservationConfig, shapes: Mapping[str, Sequence[int]]) -> ObsSpec:
        groups = {}
        for group, modalities in config.modalities.to_dict().items():
            keys = {key: modality for modality, keys in modalities.items() for key in keys}
            for key, modality in keys.items():
                if key not in shapes:
                    raise ValueError(
                        f"observation.modalities.{group}.{modality}: no shape is known for "
                        f"{key!r}; known: {', '.join(sorted(shapes))}"
                    )
            groups[group] = {k: ObsKey(keys[k], tuple(shapes[k])) for k in sorted(keys)}
        return cls(groups)

    def keys(self, group: str) -> list[str]:
        return list(self.groups.get(group, {}))
