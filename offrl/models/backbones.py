"""Image backbones: ``[B, C, H, W]`` to ``[B, C', H', W']``, by their names in configs."""

from collections.abc import Collection, Sequence
from functools import partial
from importlib import import_module
from typing import Any, TypeVar
from urllib.error import URLError

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offrl.kernels.layers import Linear
from offrl.registry import BACKBONES

T = TypeVar("T", bound=nn.Module)

WEIGHTS = {
    18: "https://download.pytorch.org/models/resnet18-f37072fd.pth",
    50: "https://download.pytorch.org/models/resnet50-11ad3fa6.pth",
}
R3M_MODELS = {"resnet18": 18, "resnet34": 34, "resnet50": 50}
MVP_MODELS = (
    "vits-mae-hoi",
    "vits-mae-in",
    "vits-sup-in",
    "vitb-mae-egosoup",
    "vitl-256-mae-egosoup",
)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@BACKBONES.register("ShallowConv")
def shallow_conv(input_channel: int = 3, output_channel: int = 32) -> nn.Module:
    """Make four convolutions (Finn et al., 2016, arXiv:1509.06113)."""
    return nn.Sequential(
        nn.Conv2d(input_channel, 64, 7, 2, 3),
        nn.ReLU(),
        nn.Conv2d(64, 32, 1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, output_channel, 3, padding=1),
    )


# -- ResNets (He et al., 2016, arXiv:1512.03385) without their classifier ------------------------
# Layers are named and ordered as in torchvision, whose ImageNet weights therefore load; torchvision
# itself is not needed, and must not be, since its builds fit one build of PyTorch each.


class ResidualBlock(nn.Module):
    """Convolutions ``(channels, kernel, stride)`` with a shortcut around them."""

    def __init__(self, size_in: int, layers: Sequence[tuple[int, int, int]]):
        super().__init__()
        size, total_stride = size_in, 1
        for i, (channels, kernel, stride) in enumerate(layers, start=1):
            conv = nn.Conv2d(size, channels, kernel, stride, kernel // 2, bias=False)
            self.add_module(f"conv{i}", conv)
            self.add_module(f"bn{i}", nn.BatchNorm2d(channels))
            size, total_stride = channels, total_stride * stride
        self.depth = len(layers)
        self.downsample: nn.Module | None = None
        if total_stride != 1 or size != size_in:
            shortcut = nn.Conv2d(size_in, size, 1, total_stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(size))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for i in range(1, self.depth + 1):
            y = self.get_submodule(f"bn{i}")(self.get_submodule(f"conv{i}")(y))
            y = y.relu() if i < self.depth else y
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


def resnet(depth: int, input_channel: int = 3, first: nn.Module | None = None) -> nn.Sequential:
    """Make ResNet 18, 34 or 50: ``[B, C, H, W]`` to ``[B, 512 (50: 2048), H / 32, W / 32]``.

    first: a layer in the place of the first convolution.
    """
    counts = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}[depth]
    stages: list[nn.Module] = []
    size = 64
    for stage, count in enumerate(counts):
        width, blocks = 64 * 2**stage, []
        for block in range(count):
            stride = 2 if stage and not block else 1
            layers = [(width, 3, stride), (width, 3, 1)]
            if depth == 50:
                layers = [(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)]
            blocks.append(ResidualBlock(size, layers))
            size = layers[-1][0]
        stages.append(nn.Sequential(*blocks))
    first = first or nn.Conv2d(input_channel, 64, 7, 2, 3, bias=False)
    net = nn.Sequential(first, nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1), *stages)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net


class CoordConv2d(nn.Conv2d):
    """A convolution that sees each pixel's row and column (Liu et al., 2018, arXiv:1807.03247)."""

    def __init__(self, in_channels: int, *args: Any, **kwargs: Any):
        super().__init__(in_channels + 2, *args, **kwargs)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(append_coordinates(input))


def append_coordinates(images: Tensor) -> Tensor:
    """Append two channels: row and column of each pixel, from 0 to 1 (exclusive)."""
    axes = (torch.arange(n, device=images.device) / n for n in images.shape[-2:])
    grid = torch.stack(torch.meshgrid(*axes, indexing="ij"))
    return torch.cat([images, grid.expand(*images.shape[:-3], -1, -1, -1)], dim=-3)


def resnet_conv(
    depth: int, input_channel: int = 3, pretrained: bool = False, input_coord_conv: bool = False
) -> nn.Sequential:
    """Make the backbone of a config, a ``resnet``.

    pretrained: with weights that were trained on ImageNet.
    input_coord_conv: with a ``CoordConv2d`` as its first layer.
    """
    first = CoordConv2d(input_channel, 64, 7, 2, 3, bias=False) if input_coord_conv else None
    net = resnet(depth, input_channel, first)
    if pretrained:
        load_imagenet(net, depth)
    return net


for _depth in (18, 50):
    BACKBONES.register(f"ResNet{_depth}Conv")(partial(resnet_conv, _depth))


class FiLMResNet(nn.Module):
    """A ResNet 18 (``resnet(18)``) that an instruction steers: its embedding ``[B, E]`` scales and
    shifts the channels behind every residual block (Perez et al., 2018, arXiv:1709.07871)."""

    def __init__(self, net: Any, language_dim: int):
        super().__init__()
        self.stem = net[:4]
        self.blocks = nn.ModuleList(block for stage in net[4:] for block in stage)
        sizes = [block.bn2.num_features for stage in net[4:] for block in stage]
        self.films = nn.ModuleList(Linear(language_dim, 2 * size) for size in sizes)

    def forward(self, images: Tensor, language: Tensor) -> Tensor:
        x = self.stem(images)
        for block, film in zip(self.blocks, self.films, strict=True):
            shift, scale = film(language)[..., None, None].chunk(2, dim=1)
            x = ((1 + scale) * block(x) + shift).relu()
        return x


@BACKBONES.register("ResNet18ConvFiLM")
def resnet18_conv_film(
    input_channel: int = 3,
    pretrained: bool = False,
    input_coord_conv: bool = False,
    lang_emb_dim: int = 768,
) -> FiLMResNet:
    """Make a ``FiLMResNet`` for embeddings of the size ``lang_emb_dim``."""
    return FiLMResNet(resnet_conv(18, input_channel, pretrained, input_coord_conv), lang_emb_dim)


def with_group_norms(net: T) -> T:
    """Replace batch normalisations that learn by group normalisations of 16 channels per group:
    running statistics do not work with averaged weights (Chi et al., 2023)."""
    for name, module in list(net.named_modules()):
        if isinstance(module, nn.BatchNorm2d) and module.weight.requires_grad:
            size = module.num_features
            net.set_submodule(name, nn.GroupNorm(max(1, size // 16), size))
    return net


def load_imagenet(net: nn.Sequential, depth: int) -> None:
    """Load weights that were trained on ImageNet, from torch's cache or the internet.

    A first convolution of another shape keeps its weights. ``ValueError`` if none can be fetched.
    """
    url = WEIGHTS[depth]
    try:
        weights = torch.hub.load_state_dict_from_url(url, map_location="cpu", check_hash=True)
    except (URLError, OSError) as error:
        folder = torch.hub.get_dir()
        raise ValueError(
            f"backbone_kwargs.pretrained: ImageNet weights are not at hand and cannot be fetched "
            f"({error}); download {url} into {folder}/checkpoints, or set it to false"
        ) from None
    place = {"conv1": "0", "bn1": "1", "layer1": "4", "layer2": "5", "layer3": "6", "layer4": "7"}
    own = net.state_dict()
    for name, value in weights.items():
        part, _, rest = name.partition(".")
        key = f"{place.get(part)}.{rest}"
        if key in own and own[key].shape == value.shape:
            own[key] = value
    net.load_state_dict(own)


# -- pretrained backbones from packages of their own, which offrl does not install -----


class R3M(nn.Sequential):
    """A ResNet that maps images of any size, in [0, 1], to ``[B, F, 1, 1]``."""

    frozen = False

    def train(self, mode: bool = True) -> "R3M":
        """Stay in eval mode if it is frozen: statistics of the normalisation are weights, too."""
        return super().train(mode and not self.frozen)


class R3MImages(nn.Module):
    """Scales images to 256 pixels, crops ``[B, 3, 224, 224]`` and normalises as for ImageNet."""

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name, values in (("mean", IMAGENET_MEAN), ("std", IMAGENET_STD)):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        images = resize(images, 256)
        top, left = ((extent - 224) // 2 for extent in images.shape[-2:])
        return (images[..., top : top + 224, left : left + 224] - self.mean) / self.std


def resize(images: Tensor, size: int) -> Tensor:
    """Scale images so that their shorter side has ``size`` pixels."""
    height, width = images.shape[-2:]
    shape = [round(extent * size / min(height, width)) for extent in (height, width)]
    return F.interpolate(images, shape, mode="bilinear", antialias=True)


@BACKBONES.register("R3MConv")
def r3m_conv(
    input_channel: int = 3,
    r3m_model_class: str = "resnet18",
    freeze: bool = True,
    pretrained: bool = True,
) -> nn.Module:
    """Make R3M (Nair et al., 2022, arXiv:2203.12601), a ResNet trained on videos of people at work.

    pretrained: load R3M's weights, by its package; false if a checkpoint has the weights.
    """
    _check("R3MConv", input_channel, "r3m_model_class", r3m_model_class, R3M_MODELS)
    if pretrained:
        r3m = _load("R3MConv", "r3m", "https://github.com/facebookresearch/r3m", "load_r3m")
        layers = list(r3m(r3m_model_class).module.convnet.children())
    else:
        layers = [*resnet(R3M_MODELS[r3m_model_class]), nn.AdaptiveAvgPool2d(1)]
    net = R3M(R3MImages(), *layers)
    net.frozen = freeze
    return net.requires_grad_(not freeze).train()


@BACKBONES.register("MVPConv")
def mvp_conv(
    input_channel: int = 3, mvp_model_class: str = "vitb-mae-egosoup", freeze: bool = True
) -> nn.Module:
    """Make MVP (Radosavovic et al., 2022, arXiv:2210.03109), a masked autoencoder's Transformer:
    one vector ``[B, F]`` per image."""
    _check("MVPConv", input_channel, "mvp_model_class", mvp_model_class, MVP_MODELS)
    net = _load("MVPConv", "mvp", "https://github.com/ir413/mvp", "load")(mvp_model_class)
    size = 256 if "256" in mvp_model_class else 224
    net.register_forward_pre_hook(lambda module, inputs: (resize(inputs[0], size),))
    return net.requires_grad_(not freeze)


def _check(backbone: str, channels: int, option: str, name: str, known: Collection[str]) -> None:
    if channels != 3:
        raise ValueError(f"{backbone}: for images of 3 channels, not {channels}")
    if name not in known:
        raise ValueError(f"backbone_kwargs.{option}: {name!r}; known: {', '.join(known)}")


def _load(backbone: str, package: str, home: str, function: str) -> Any:
    try:
        return getattr(import_module(package), function)
    except (ImportError, AttributeError) as error:
        raise ImportError(
            f"{backbone}: needs the package {package} ({error}); install it from {home}, or "
            "choose another core_kwargs.backbone_class"
        ) from error
