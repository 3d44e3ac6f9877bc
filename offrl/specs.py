"""Descriptions of observations. An ``ObsSpec`` is passed as an argument, never a global."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offrl.config import EncoderConfig, ObservationConfig
from offrl.registry import MODALITIES

LANGUAGE = "lang_emb"  # robomimic's name of the observation that says what to do
GOAL = "/goal"  # the place of a goal {key: [B, ...]} among the observations that networks see

Shapes = Mapping[str, Sequence[int]]  # of observations, by their keys


def with_goal(obs: Any, goal: Any) -> Any:
    """Put a goal, if there is one, among observations, where networks find it."""
    return obs if goal is None else {**obs, GOAL: goal}


@MODALITIES.register("low_dim")
@MODALITIES.register("scan")
class Modality:
    """A kind of observation, which turns stored arrays into network inputs.

    Derive from it and register the class under a name (``MODALITIES.register("touch")``) to use
    that name in ``observation.modalities`` and ``observation.encoder``.
    """

    def shape(self, stored: Sequence[int]) -> tuple[int, ...]:
        """Return the shape per time step after ``process``, for the ``stored`` shape."""
        return tuple(stored)

    def process(self, x: Any) -> Any:
        """Turn tensors ``[..., *stored]`` into float tensors ``[..., *shape]``."""
        return x.float()


def register_obs_key(target_class: type[Modality]) -> type[Modality]:
    """Register a class under its ``name``; ``ValueError`` unless it derives from ``Modality``."""
    name = getattr(target_class, "name", None)
    if not issubclass(target_class, Modality) or not isinstance(name, str):
        raise ValueError(
            f"register_obs_key: {target_class.__name__} must derive from offrl.specs.Modality "
            "(shape and process) and have a name"
        )
    return MODALITIES.register(name)(target_class)


TURN = "those of a file are turned by images in train.data, or by offrl edit pixels"


@MODALITIES.register("depth")
class ImageModality(Modality):
    """``[H, W, C]`` to ``[C, H, W]``."""

    CHANNELS: tuple[int, ...] = (1,)

    def shape(self, stored: Sequence[int]) -> tuple[int, ...]:
        if len(stored) != 3 or stored[-1] not in self.CHANNELS:
            allowed = " or ".join(map(str, self.CHANNELS))
            is_turned = len(stored) == 2 or (len(stored) == 3 and stored[0] in self.CHANNELS)
            remedy = TURN
            if not is_turned:
                remedy = (
                    "name colours in rgb and maps [H, W, 1] in depth; of stacked frames store the "
                    "last one alone, and set train.frame_stack"
                )
            raise ValueError(
                f"images of shape {list(stored)}; images are stored as [H, W, C] with {allowed} "
                f"channels last; {remedy}"
            )
        height, width, channels = stored
        return channels, height, width

    def process(self, x: Any) -> Any:
        return x.movedim(-1, -3).float()


@MODALITIES.register("rgb")
class RGB(ImageModality):
    """uint8 ``[H, W, C]`` to ``[C, H, W]`` in [0, 1]."""

    CHANNELS = (3, 1, 4)

    def process(self, x: Any) -> Any:
        if x.is_floating_point():
            remedy = TURN
            if x.shape[-1] == 1:  # ``TURN`` leaves these as they are
                remedy = "numbers of one channel are depth maps (observation.modalities.obs.depth)"
            raise ValueError(f"images of {x.dtype}; rgb is uint8, 0 to 255, as recorded; {remedy}")
        return super().process(x) / 255.0


@dataclass(frozen=True)
class ObsKey:
    """One observation: its modality, shape per time step and the config of its encoder."""

    modality: str
    shape: tuple[int, ...]
    encoder: EncoderConfig

    @property
    def is_image(self) -> bool:
        return is_image(self.modality)


def is_image(modality: str) -> bool:
    """Say whether observations of a modality are images."""
    return issubclass(MODALITIES[modality], ImageModality)


@dataclass(frozen=True)
class ObsSpec:
    """The observation keys of each group (``obs``, ``goal``, ...), in alphabetical order.

    Features are concatenated in this order, on which the weights therefore depend.
    """

    groups: Mapping[str, Mapping[str, ObsKey]]

    @classmethod
    def from_config(cls, config: ObservationConfig, shapes: Shapes) -> "ObsSpec":
        """Make the spec of a config. ``shapes`` are as networks see them: images ``[C, H, W]``."""
        groups: dict[str, dict[str, ObsKey]] = {}
        for place, part in config.parts():
            for group, modality_of in modalities(part).items():
                keys = groups.get(group, {})
                for key, modality in modality_of.items():
                    if key not in shapes:
                        raise ValueError(
                            f"{place}.modalities.{group}.{modality}: no shape is known for "
                            f"{key!r}; known: {', '.join(sorted(shapes))}"
                        )
                    if modality not in part.encoder:
                        raise ValueError(
                            f"{place}.encoder: says nothing about {modality!r} observations; "
                            f"known: {', '.join(part.encoder)}"
                        )
                    _check_channels_first(key, modality, shapes[key])
                    keys[key] = ObsKey(modality, tuple(shapes[key]), part.encoder[modality])
                groups[group] = dict(sorted(keys.items()))
        return cls(groups)

    def keys(self, group: str) -> list[str]:
        """List the names of a group's observations, in order."""
        return list(self.groups.get(group, {}))

    def shapes(self, group: str) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a group's observations, as networks see them, in order."""
        return {key: spec.shape for key, spec in self.groups.get(group, {}).items()}

    def check_shapes(self, stored: Shapes, group: str) -> None:
        """Raise ``ValueError`` if an observation is missing, or not of the networks' shape."""
        for key, spec in self.groups.get(group, {}).items():
            if key not in stored:
                raise ValueError(
                    f"observation {key!r}: missing, but the policy sees it; there are "
                    f"{', '.join(stored) or 'none'}"
                )
            shape = _processed_shape(key, spec.modality, stored[key])
            if shape != spec.shape:
                raise ValueError(
                    f"observation {key!r}: of shape {list(shape)}, but the policy was made for "
                    f"{list(spec.shape)}"
                )

    def process(self, obs: Mapping[str, Any], group: str) -> dict[str, Any]:
        """Return a group's observations as networks see them; leave out others."""
        processed = {}
        for key, spec in self.groups.get(group, {}).items():
            try:
                processed[key] = MODALITIES[spec.modality]().process(obs[key])
            except ValueError as error:
                raise ValueError(f"observation {key!r}: {error}") from None
        return processed


def modalities(config: ObservationConfig) -> dict[str, dict[str, str]]:
    """Return the modality of each key, by group, for all parts of a hierarchy."""
    groups: dict[str, dict[str, str]] = {}
    for _, part in config.parts():
        for group, by_modality in part.modalities.to_dict().items():
            of_key = {key: modality for modality, keys in by_modality.items() for key in keys}
            groups[group] = groups.get(group, {}) | of_key
    return groups


def _check_channels_first(key: str, modality: str, shape: Sequence[int]) -> None:
    """Raise ``ValueError`` if images have the shape in which they are stored."""
    kind = MODALITIES[modality]
    if getattr(kind, "shape", None) is not ImageModality.shape:
        return  # no images, or a user's modality, whose networks may see any shape
    if len(shape) == 3 and shape[0] not in kind.CHANNELS and shape[-1] in kind.CHANNELS:
        raise ValueError(
            f"observation {key!r}: networks see images as [C, H, W], not as stored, {list(shape)}; "
            "give offrl.specs.processed_shapes(config.observation, dataset.obs_shapes)"
        )


def processed_shapes(config: ObservationConfig, stored: Shapes) -> dict[str, tuple[int, ...]]:
    """Return the shapes that networks see, for the shapes of a file or an environment."""
    return {
        key: _processed_shape(key, modality, stored[key])
        for modality_of in modalities(config).values()
        for key, modality in modality_of.items()
    }


def _processed_shape(key: str, modality: str, stored: Sequence[int]) -> tuple[int, ...]:
    try:
        return MODALITIES[modality]().shape(stored)
    except ValueError as error:
        raise ValueError(f"observation {key!r} ({modality}): {error}") from None
