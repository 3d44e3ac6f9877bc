"""Image backbones that others trained, through their own packages, which offrl does not install."""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offrl.models.resnet import resnet
from offrl.registry import BACKBONES

R3M_MODELS = {"resnet18": 18, "resnet34": 34, "resnet50": 50}
MVP_MODELS = (
    "vits-mae-hoi",
    "vits-mae-in",
    "vits-sup-in",
    "vitb-mae-egosoup",
    "vitl-256-mae-egosoup",
)
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class R3M(nn.Sequential):
    """Images of any size in [0, 1] through a ResNet to ``[B, F, 1, 1]``."""

    frozen = False

    def train(self, mode: bool = True) -> "R3M":
        """Frozen, it stays in eval mode: the statistics of its normalisation are weights, too."""
        return super().train(mode and not self.frozen)


class R3MImages(nn.Module):
    """The middle ``[B, 3, 224, 224]`` of the images at 256 pixels, normalised as ImageNet's."""

    def __init__(self) -> None:
        super().__init__()
        for name, values in (("mean", IMAGENET_MEAN), ("std", IMAGENET_STD)):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        images = resize(images, 256)
        top, left = ((extent - 224) // 2 for extent in images.shape[-2:])
        return (images[..., top : top + 224, left : left + 224] - self.mean) / self.std


def resize(images: Tensor, size: int) -> Tensor:
    """The shorter side to ``size`` pixels."""
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
    """R3M (Nair et al., 2022, arXiv:2203.12601), a ResNet trained on videos of people at work.

    pretrained: with R3M's weights, which need its package; without, to load a checkpoint's.
    """
    _check("R3MConv", input_channel, "r3m_model_class", r3m_model_class, tuple(R3M_MODELS))
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
    """MVP (Radosavovic et al., 2022, arXiv:2210.03109), a masked autoencoder's Transformer: one
    vector ``[B, F]`` per image."""
    _check("MVPConv", input_channel, "mvp_model_class", mvp_model_class, MVP_MODELS)
    load = _load("MVPConv", "mvp", "https://github.com/ir413/mvp", "load")
    net = load(mvp_model_class)
    size = 256 if "256" in mvp_model_class else 224
    net.register_forward_pre_hook(lambda module, inputs: (resize(inputs[0], size),))
    return net.requires_grad_(not freeze)


def _check(backbone: str, channels: int, option: str, name: str, known: tuple[str, ...]) -> None:
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
