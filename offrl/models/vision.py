"""Cores: networks that turn one observation of a modality into a feature vector ``[B, F]``.

An image core is a backbone (convolutions), a pooling and a linear layer. Names and arguments are
those of robomimic's configs (``core_class``, ``core_kwargs``).
"""

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from offrl.kernels.layers import Linear
from offrl.models.backbones import FiLMResNet
from offrl.registry import BACKBONES, CORES, POOLINGS


class Core(nn.Module):
    """A backbone, a pooling (or none), and a linear layer to ``feature_dimension`` (or none).

    backbone: its inputs have the shapes ``input_shapes``.
    """

    #: True if it takes the instruction's embedding, too.
    sees_language: ClassVar[bool] = False
    #: True if it sees frames ``[B, F, C, H, W]`` as ``[B, F * C, H, W]``.
    stacks_frames: ClassVar[bool] = False

    def __init__(
        self,
        backbone: nn.Module,
        input_shapes: Sequence[Sequence[int]],
        pool_class: str | None = None,
        pool_kwargs: Mapping[str, Any] | None = None,
        feature_dimension: int | None = None,
        flatten: bool = True,
    ):
        if not flatten:
            raise ValueError("core_kwargs.flatten: a policy's features are vectors; set it to true")
        super().__init__()
        self.backbone = backbone
        shape = output_shape(backbone, *input_shapes)
        is_map = len(shape) == 3 and not (pool_class or feature_dimension)
        #: ``[C, H, W]`` of the features, where they are a map of the image, flattened.
        self.map_shape = shape if is_map else None
        self.pool: nn.Module | None = None
        if pool_class is not None:
            if len(shape) == 1:
                raise ValueError(
                    f"core_kwargs.pool_class: {pool_class} has nothing to pool, the backbone gives "
                    "one vector per image; set it to null"
                )
            shape = (*shape, 1)[:3]  # a scan becomes an image one pixel wide
            self.pool = POOLINGS.build(pool_class, shape, **(pool_kwargs or {}))
            shape = output_shape(self.pool, shape)
        self.output_dim = feature_dimension or math.prod(shape)
        self.linear: nn.Module | None = None
        if feature_dimension is not None:
            self.linear = Linear(math.prod(shape), feature_dimension)

    def forward(self, *inputs: Tensor) -> Tensor:
        features = self.backbone(*inputs)
        if self.pool is not None:
            features = self.pool(features if features.ndim == 4 else features[..., None])
        features = features.flatten(1)
        return features if self.linear is None else self.linear(features)


def output_shape(module: nn.Module, *input_shapes: Sequence[int]) -> tuple[int, ...]:
    """Measure the shape of a module's output ``[1, ...]`` in eval mode, without the batch."""
    was_training = module.training
    with torch.no_grad():
        output = module.eval()(*(torch.zeros(1, *shape) for shape in input_shapes))
    module.train(was_training)
    return tuple(output.shape[1:])


@CORES.register("VisualCore")
class VisualCore(Core):
    """Images ``[B, C, H, W]`` in [0, 1] to features ``[B, feature_dimension]``."""

    BACKBONE = "ResNet18Conv"

    def __init__(
        self,
        input_shape: Sequence[int],
        backbone_class: str | None = None,
        backbone_kwargs: Mapping[str, Any] | None = None,
        pool_class: str | None = "SpatialSoftmax",
        pool_kwargs: Mapping[str, Any] | None = None,
        flatten: bool = True,
        feature_dimension: int | None = 64,
        language_dim: int | None = None,
    ):
        options = {**(backbone_kwargs or {}), "input_channel": input_shape[0]}
        shapes = [input_shape]
        if self.sees_language:
            if language_dim is None:
                raise ValueError(
                    f"core_class: {type(self).__name__} needs the embedding of an instruction; "
                    "add lang_emb to observation.modalities.obs.low_dim"
                )
            options["lang_emb_dim"] = language_dim
            shapes.append((language_dim,))
        name = backbone_class or self.BACKBONE
        backbone = BACKBONES.build(name, **options)
        if isinstance(backbone, FiLMResNet) != self.sees_language:
            raise ValueError(
                f"core_kwargs.backbone_class: {name} does not go with {type(self).__name__}; "
                "ResNet18ConvFiLM goes with VisualCoreLanguageConditioned and no other"
            )
        super().__init__(backbone, shapes, pool_class, pool_kwargs, feature_dimension, flatten)


@CORES.register("VisualCoreLanguageConditioned")
class VisualCoreLanguageConditioned(VisualCore):
    """A ``VisualCore`` whose backbone also sees the embedding of an instruction, ``[B, E]``."""

    BACKBONE = "ResNet18ConvFiLM"
    sees_language = True


@CORES.register("NatureCNN")
class NatureCNN(Core):
    """The network of Mnih et al. (2015, doi:10.1038/nature14236) for Atari: images
    ``[B, C, H, W]``, 84 x 84 in the paper, to ``[B, feature_dimension]``.

    Stacked frames are channels of one image, so that each is stored only once.
    """

    stacks_frames = True

    def __init__(self, input_shape: Sequence[int], feature_dimension: int | None = 512):
        backbone = nn.Sequential(
            nn.Conv2d(input_shape[0], 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1),
            nn.ReLU(),
        )
        super().__init__(backbone, [input_shape], feature_dimension=feature_dimension)


@CORES.register("ScanCore")
class ScanCore(Core):
    """One-dimensional scans ``[B, L]`` or ``[B, 1, L]`` through convolutions to ``[B, F]``."""

    CONVOLUTIONS: ClassVar[dict[str, Sequence[int]]] = {
        "out_channels": (32, 64, 64),
        "kernel_size": (8, 4, 2),
        "stride": (4, 2, 1),
    }

    def __init__(
        self,
        input_shape: Sequence[int],
        conv_kwargs: Mapping[str, Sequence[int]] | None = None,
        conv_activation: str | None = "relu",
        pool_class: str | None = None,
        pool_kwargs: Mapping[str, Any] | None = None,
        flatten: bool = True,
        feature_dimension: int | None = None,
    ):
        if conv_activation not in ("relu", None):
            raise ValueError(f'core_kwargs.conv_activation: {conv_activation!r}; "relu" or null')
        per_layer = conv_kwargs or self.CONVOLUTIONS
        layers: dict[str, nn.Module] = {}
        channels = 1
        for i, size in enumerate(per_layer["out_channels"]):
            options: dict[str, Any] = {key: values[i] for key, values in per_layer.items()}
            layers[f"conv{i}"] = nn.Conv1d(channels, **options)
            if conv_activation == "relu":
                layers[f"act{i}"] = nn.ReLU()
            channels = size
        backbone = nn.Sequential(OrderedDict(layers))
        shapes = [(1, math.prod(input_shape))]
        super().__init__(backbone, shapes, pool_class, pool_kwargs, feature_dimension, flatten)

    def forward(self, *inputs: Tensor) -> Tensor:
        return super().forward(inputs[0].flatten(1)[:, None])


# -- pooling: [B, C, H, W] -> [B, ...] ------------------------------------------------------------


@POOLINGS.register("SpatialSoftmax")
class SpatialSoftmax(nn.Module):
    """The place where each of ``num_kp`` feature maps is strongest: its expected position
    ``[B, K, 2]`` (x, y in [-1, 1]) under a softmax over pixels (Finn et al., 2016,
    arXiv:1509.06113); with ``output_variance`` followed by its covariance, ``[B, K, 6]``."""

    pos_x: Tensor
    pos_y: Tensor

    def __init__(
        self,
        input_shape: Sequence[int],
        num_kp: int | None = 32,
        temperature: float = 1.0,
        learnable_temperature: bool = False,
        output_variance: bool = False,
        noise_std: float = 0.0,
    ):
        super().__init__()
        channels, *extents = input_shape
        self.is_blind = math.prod(extents) == 1  # its output is the same for all images
        self.nets = None if num_kp is None else nn.Conv2d(channels, num_kp, 1)
        start = torch.ones(1) * temperature
        if learnable_temperature:
            self.temperature = nn.Parameter(start)
        else:
            self.register_buffer("temperature", start)
        y, x = torch.meshgrid(*(torch.linspace(-1, 1, n) for n in extents), indexing="ij")
        for name, position in (("pos_x", x), ("pos_y", y)):
            # In memory of its own: with one row or column, it would be an expanded view.
            self.register_buffer(name, position.reshape(1, -1).contiguous())
        self.output_variance, self.noise_std = output_variance, noise_std

    def forward(self, features: Tensor) -> Tensor:
        maps = features if self.nets is None else self.nets(features)
        attention = (maps.flatten(2) / self.temperature).softmax(-1)
        grid = torch.cat([self.pos_x, self.pos_y]).t()
        keypoints = noisy = attention @ grid
        if self.training and self.noise_std:
            noisy = keypoints + self.noise_std * torch.randn_like(keypoints)
        if not self.output_variance:
            return noisy
        x, y = grid.unbind(-1)
        moments = attention @ torch.stack([x * x, x * y, x * y, y * y], dim=-1)
        products = (keypoints[..., :, None] * keypoints[..., None, :]).flatten(-2)
        return torch.cat([noisy, moments - products], dim=-1)


def check_sight(nets: nn.Module) -> None:
    """Raise ``ValueError`` if pooling removes all information of an image."""
    for name, layer in nets.named_modules():
        if isinstance(layer, SpatialSoftmax) and layer.is_blind:
            raise ValueError(
                f"observation.encoder: SpatialSoftmax ({name}) gets feature maps of one pixel, and "
                "gives the same for all such images; use larger images or crops, or set "
                "core_kwargs.backbone_class to ShallowConv, or core_kwargs.pool_class to null"
            )


@POOLINGS.register("SpatialMeanPool")
class SpatialMeanPool(nn.Module):
    """The mean over all pixels, ``[B, C]``."""

    def __init__(self, input_shape: Sequence[int]):
        super().__init__()

    def forward(self, features: Tensor) -> Tensor:
        return features.flatten(2).mean(-1)
