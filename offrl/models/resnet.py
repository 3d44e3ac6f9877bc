"""ResNets (He et al., 2016, arXiv:1512.03385) without their classifier, as image backbones.

Layers are named and ordered as in torchvision, whose ImageNet weights therefore load; torchvision
itself is not needed, and must not be, since its builds fit one build of PyTorch each.
"""

from collections.abc import Sequence
from typing import TypeVar
from urllib.error import URLError

import torch
from torch import Tensor, nn

from offrl.kernels.linear import Linear

T = TypeVar("T", bound=nn.Module)

WEIGHTS = {
    18: "https://download.pytorch.org/models/resnet18-f37072fd.pth",
    50: "https://download.pytorch.org/models/resnet50-11ad3fa6.pth",
}


class Residual(nn.Module):
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
    """ResNet 18, 34 or 50: ``[B, C, H, W]`` to ``[B, 512 (50: 2048), H / 32, W / 32]``.

    first: a layer to take the place of the first convolution.
    """
    counts = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}[depth]
    stages: list[nn.Module] = []
    size = 64
    for stage, count in enumerate(counts):
        width, blocks = 64 * 2**stage, []
        for block in range(count):
            stride = 2 if stage and not block else 1
            if depth < 50:
                layers = [(width, 3, stride), (width, 3, 1)]
            else:
                layers = [(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)]
            blocks.append(Residual(size, layers))
            size = layers[-1][0]
        stages.append(nn.Sequential(*blocks))
    first = first or nn.Conv2d(input_channel, 64, 7, 2, 3, bias=False)
    net = nn.Sequential(first, nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1), *stages)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net


class FiLMResNet(nn.Module):
    """A ResNet 18 (``resnet(18)``) that an instruction steers: its embedding ``[B, E]`` scales and
    shifts the channels behind every residual block (Perez et al., 2018, arXiv:1709.07871)."""

    def __init__(self, net: nn.Sequential, language_dim: int):
        super().__init__()
        self.stem = net[:4]
        self.blocks = nn.ModuleList(block for stage in net[4:] for block in stage)
        self.films = nn.ModuleList(
            Linear(language_dim, 2 * block.bn2.num_features) for block in self.blocks
        )

    def forward(self, images: Tensor, language: Tensor) -> Tensor:
        x = self.stem(images)
        for block, film in zip(self.blocks, self.films, strict=True):
            shift, scale = film(language)[..., None, None].chunk(2, dim=1)
            x = ((1 + scale) * block(x) + shift).relu()
        return x


def with_group_norms(net: T) -> T:
    """Put group normalisations in the place of those of batches that learn: running statistics and
    averaged weights do not go together (Chi et al., 2023). Groups have 16 channels."""
    for name, module in list(net.named_modules()):
        if isinstance(module, nn.BatchNorm2d) and module.weight.requires_grad:
            size = module.num_features
            net.set_submodule(name, nn.GroupNorm(max(1, size // 16), size))
    return net


def load_imagenet(net: nn.Sequential, depth: int) -> None:
    """Weights trained on ImageNet, from torch's cache or the internet.

    A first convolution of another shape keeps its own.
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
