"""Observations to one feature vector per time step."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from offrl.models import randomizers, vision  # noqa: F401 (it fills the registry)
from offrl.registry import CORES, RANDOMIZERS
from offrl.specs import GOAL, LANGUAGE, ObsKey, ObsSpec

Obs = Mapping[str, Tensor]


class Encoder(nn.Module):
    """Joins the features of each group's observations, in the order of the spec: ``[B, T, F]``.

    An observation goes through its modality's core, if any, time step by time step. Goals
    ``[B, ...]`` repeat over ``T``. The embedding of an instruction, ``LANGUAGE``, goes into the
    cores that take it, or else is a feature of its own. Observations of the group ``input``,
    ``[B, T, ...]``, come first.

    core_relu: a ReLU after each core, as in robomimic except before Transformers.
    num_frames: the number of observations that make one step: ``[B, num_frames, ...]`` to
        ``[B, 1, F]``. Cores that stack frames see them as one, and their features come first.
    """

    def __init__(
        self,
        spec: ObsSpec,
        groups: Sequence[str] = ("obs", "goal"),
        core_relu: bool = True,
        num_frames: int = 1,
    ):
        super().__init__()
        self.num_frames = num_frames
        self.keys = {group: spec.keys(group) for group in groups if spec.keys(group)}
        if not self.keys.get("obs"):
            raise ValueError("observation.modalities.obs: name at least one observation key")
        language = spec.groups["obs"].get(LANGUAGE)
        language_dim = prod(language.shape) if language else None
        self.cores: Any = nn.ModuleDict()
        self.obs_dim = self.output_dim = 0
        for group, keys in self.keys.items():
            frames = num_frames if group == "obs" else 1
            cores = {
                key: _key_encoder(key, spec.groups[group][key], core_relu, language_dim, frames)
                for key in keys
            }
            if any(core.sees_language for core in cores.values()):
                cores.pop(LANGUAGE, None)
            self.cores[group] = nn.ModuleDict(cores)
            dims = (x.output_dim * (1 if x.stacks_frames else frames) for x in cores.values())
            dim = sum(dims)
            self.obs_dim += dim if group == "obs" else 0
            self.output_dim += dim

    @property
    def has_weights(self) -> bool:
        return any(True for _ in self.parameters())

    def forward(self, obs: Obs, goal: Obs | None = None, given: Obs | None = None) -> Tensor:
        """Encode observations ``{key: [B, T, ...]}``, a goal ``{key: [B, ...]}`` where the spec
        has goals (by default the one at ``obs[GOAL]``), and the group ``input`` (``given``) as
        features ``[B, T, F]``."""
        language = obs.get(LANGUAGE)
        features = [core(obs[key], language) for key, core in self.cores["obs"].items()]
        if self.num_frames > 1:
            by_frame = [x for x in features if x.shape[1] > 1]
            features = [x for x in features if x.shape[1] == 1]
            if by_frame:
                features.append(torch.cat(by_frame, dim=-1).flatten(1)[:, None])
        if given is not None:
            features = [core(given[k], None) for k, core in self.cores["input"].items()] + features
        if "goal" in self.keys:
            steps = features[0].shape[1]
            goal, language = goal_frame(obs.get(GOAL) if goal is None else goal, language)
            features += [
                core(goal[key], language).expand(-1, steps, -1)
                for key, core in self.cores["goal"].items()
            ]
        return features[0] if len(features) == 1 else torch.cat(features, dim=-1)


def goal_frame(goal: Any, language: Tensor | None) -> tuple[dict[str, Tensor], Tensor | None]:
    """Give a goal ``{key: [B, ...]}`` and an instruction ``[B, T, D]`` one time step:
    ``{key: [B, 1, ...]}`` and ``[B, 1, D]``. Raises ``ValueError`` if there is no goal."""
    if goal is None:
        raise ValueError(
            "this policy is conditioned on a goal (observation.modalities.goal): pass one, "
            'or train with train.goal_mode "last"'
        )
    first = None if language is None else language[:, :1]
    return {key: x[:, None] for key, x in goal.items()}, first


class KeyEncoder(nn.Module):
    """One observation ``[B, T, ...]`` to features ``[B, T, F]``: randomizers, then a core.

    Without both, the features are the observation itself. A core that ``stacks_frames`` sees
    ``num_frames`` of them as one: ``[B, T, ...]`` to ``[B, T / num_frames, F]``.
    """

    def __init__(
        self, obs: ObsKey, core_relu: bool, language_dim: int | None = None, num_frames: int = 1
    ):
        super().__init__()
        self.core_relu, self.num_frames = core_relu, num_frames
        config, shape = obs.encoder, obs.shape
        core_class = None if config.core_class is None else CORES[config.core_class]
        self.stacks_frames = num_frames > 1 and getattr(core_class, "stacks_frames", False)
        if self.stacks_frames:
            shape = (num_frames * shape[0], *shape[1:])
        self.core: Any = None
        self.randomizers: Any = nn.ModuleList()
        for name, kwargs in config.randomizers():
            randomizer = RANDOMIZERS.build(name, shape, **kwargs)
            if randomizer.num_samples < 1:
                raise ValueError("num_crops, num_samples: of each image one is needed at least")
            shape = vision.output_shape(randomizer, shape)
            self.randomizers.append(randomizer)
        self.output_dim = prod(shape)
        if config.core_class is not None:
            options = {} if language_dim is None else {"language_dim": language_dim}
            self.core = CORES.build(config.core_class, shape, **config.core_kwargs, **options)
            self.output_dim = self.core.output_dim
        self.sees_language = getattr(self.core, "sees_language", False)

    def forward(self, x: Tensor, language: Tensor | None = None) -> Tensor:
        if self.core is None and not self.randomizers:
            return x.flatten(2)
        if self.stacks_frames:
            x = x.unflatten(1, (-1, self.num_frames)).flatten(2, 3)
        features = x.flatten(0, 1)
        for randomizer in self.randomizers:
            features = randomizer(features)
        if self.core is not None:
            inputs = [features]
            if self.sees_language and language is not None:
                steps = language.flatten(0, 1)
                inputs.append(steps.repeat_interleave(len(features) // len(steps), dim=0))
            features = self.core(*inputs)
            features = features.relu() if self.core_relu else features
        features = features.flatten(1)
        for randomizer in reversed(self.randomizers):
            features = randomizer.average(features)
        return features.unflatten(0, x.shape[:2])


def _key_encoder(key: str, obs: ObsKey, *options: Any) -> KeyEncoder:
    try:
        return KeyEncoder(obs, *options)
    except (ValueError, TypeError, LookupError, ArithmeticError, RuntimeError) as error:
        # The options are free-form, so errors appear only when the network is made.
        raise ValueError(
            f"observation {key!r}: observation.encoder.{obs.modality} does not work for shape "
            f"{list(obs.shape)}: {error}"
        ) from error
