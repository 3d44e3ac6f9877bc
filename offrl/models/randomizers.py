"""Random changes of images as data augmentation (``obs_randomizer_class``).

A randomizer maps ``[B, C, H, W]`` to ``[B * N, C', H', W']``, ``N = num_samples`` versions of each
image, whose features are averaged afterwards. In eval mode there is one version: the centre of
the image, or the image itself. They run on the images' device.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from offrl.models.backbones import append_coordinates
from offrl.registry import RANDOMIZERS

Interval = float | Sequence[float] | None
GREY = (0.299, 0.587, 0.114)  # ITU-R BT.601


class Randomizer(nn.Module):
    num_samples = 1

    def forward(self, images: Tensor) -> Tensor:
        return self.randomize(images) if self.training else self.plain(images)

    def randomize(self, images: Tensor) -> Tensor:
        raise NotImplementedError(type(self).__name__)

    def plain(self, images: Tensor) -> Tensor:
        return images

    def average(self, features: Tensor) -> Tensor:
        """Average ``[B * N, F]`` over the copies: ``[B, F]``."""
        if not self.training or self.num_samples == 1:
            return features
        return features.unflatten(0, (-1, self.num_samples)).mean(1)


@RANDOMIZERS.register("CropRandomizer")
class CropRandomizer(Randomizer):
    """``num_crops`` random crops; the centre in eval mode. ``pos_enc`` appends each pixel's row
    and column in the whole image."""

    def __init__(
        self,
        input_shape: Sequence[int],
        crop_height: int = 76,
        crop_width: int = 76,
        num_crops: int = 1,
        pos_enc: bool = False,
    ):
        super().__init__()
        _, height, width = input_shape
        if crop_height > height or crop_width > width:
            raise ValueError(
                f"obs_randomizer_kwargs: a crop of {crop_height} x {crop_width} does not fit into "
                f"images of {height} x {width}; lower crop_height and crop_width"
            )
        self.size, self.num_samples, self.pos_enc = (crop_height, crop_width), num_crops, pos_enc

    def randomize(self, images: Tensor) -> Tensor:
        images = append_coordinates(images) if self.pos_enc else images
        # robomimic never draws the last place.
        places = [n - size for n, size in zip(images.shape[-2:], self.size, strict=True)]
        return random_crops(images, self.size, places, self.num_samples)

    def plain(self, images: Tensor) -> Tensor:
        images = append_coordinates(images) if self.pos_enc else images
        (height, width), (rows, columns) = images.shape[-2:], self.size
        top, left = (height - rows) // 2, (width - columns) // 2
        return images[..., top : top + rows, left : left + columns]


@RANDOMIZERS.register("ShiftRandomizer")
class ShiftRandomizer(Randomizer):
    """Shifts images by up to ``pad`` pixels to each side; pixels of the edge fill the rest (DrQ:
    Kostrikov et al., 2020, arXiv:2004.13649)."""

    def __init__(self, input_shape: Sequence[int], pad: int = 4, num_samples: int = 1):
        super().__init__()
        _, *sides = input_shape
        if not 1 <= pad <= min(sides):
            raise ValueError(
                f"obs_randomizer_kwargs: a shift of up to {pad} pixels, of images of "
                f"{' x '.join(map(str, sides))}; set pad to 1 or more, and to less than that"
            )
        self.pad, self.num_samples = pad, num_samples

    def randomize(self, images: Tensor) -> Tensor:
        padded = nn.functional.pad(images, [self.pad] * 4, mode="replicate")
        return random_crops(padded, images.shape[-2:], [2 * self.pad + 1] * 2, self.num_samples)


def random_crops(
    images: Tensor, size: Sequence[int], places: Sequence[int], num: int = 1
) -> Tensor:
    """Cut ``num`` random crops of a ``size`` out of each image: ``[B, C, H, W]`` to ``[B * num, C,
    *size]``. Their corners are among the first ``places`` rows and columns."""
    corners = []
    for n in places:
        uniform = torch.rand(len(images), num, device=images.device)
        corners.append((uniform * n).long())
    crops = images.unfold(2, size[0], 1).unfold(3, size[1], 1)
    image = torch.arange(len(images), device=images.device)[:, None]
    return crops[image, :, corners[0], corners[1]].flatten(0, 1)


@RANDOMIZERS.register("ColorRandomizer")
class ColorRandomizer(Randomizer):
    """Changes brightness, contrast, saturation and hue by random amounts, in random order.

    A number ``x`` stands for the factors ``[1 - x, 1 + x]``, for hue for the shifts ``[-x, x]`` in
    turns; ``None`` leaves the property as it is.
    """

    #: Python draws the order, as a GPU that drew it would have to compute every change each time.
    DRAWN_BY_PYTHON = True

    def __init__(
        self,
        input_shape: Sequence[int],
        brightness: Interval = 0.3,
        contrast: Interval = 0.3,
        saturation: Interval = 0.3,
        hue: Interval = 0.3,
        num_samples: int = 1,
    ):
        super().__init__()
        if input_shape[0] != 3:
            raise ValueError(
                f"ColorRandomizer: for images of 3 channels, not {input_shape[0]}; set "
                "obs_randomizer_class to null for this modality"
            )
        given = {
            adjust_brightness: _interval(brightness, around=1.0),
            adjust_contrast: _interval(contrast, around=1.0),
            adjust_saturation: _interval(saturation, around=1.0),
            adjust_hue: _interval(hue, around=0.0),
        }
        self.adjustments = [(adjust, limits) for adjust, limits in given.items() if limits]
        self.num_samples = num_samples

    def randomize(self, images: Tensor) -> Tensor:
        images = images.repeat_interleave(self.num_samples, dim=0)
        for i in torch.randperm(len(self.adjustments)).tolist():
            adjust, (low, high) = self.adjustments[i]
            amount = low + (high - low) * torch.rand(len(images), 1, 1, 1, device=images.device)
            images = adjust(images, amount)
        return images


@RANDOMIZERS.register("GaussianNoiseRandomizer")
class GaussianNoiseRandomizer(Randomizer):
    """Adds normal noise to every value, clipped to ``limits``."""

    def __init__(
        self,
        input_shape: Sequence[int],
        noise_mean: float = 0.0,
        noise_std: float = 0.3,
        limits: Sequence[float] | None = None,
        num_samples: int = 1,
    ):
        super().__init__()
        self.noise_mean, self.noise_std, self.limits = noise_mean, noise_std, limits
        self.num_samples = num_samples

    def randomize(self, images: Tensor) -> Tensor:
        images = images.repeat_interleave(self.num_samples, dim=0)
        noisy = images + self.noise_mean + self.noise_std * torch.randn_like(images)
        return noisy if self.limits is None else noisy.clamp(*self.limits)


# -- colours: images [B, 3, H, W] in [0, 1], amounts [B, 1, 1, 1] ---------------------------------


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    return (images * factor).clamp(0, 1)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(images, _grey(images).mean((-1, -2), keepdim=True), factor)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(images, _grey(images), factor)


def adjust_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Shift the hue of HSV by a number of full turns."""
    high, low = images.amax(1, keepdim=True), images.amin(1, keepdim=True)
    chroma = (high - low).clamp(min=1e-12)
    red, green, blue = images.split(1, dim=1)
    sector = torch.where(
        high == red,
        (green - blue) / chroma,
        torch.where(high == green, 2 + (blue - red) / chroma, 4 + (red - green) / chroma),
    )
    # Each channel is a trapezoid of the hue, a third of a turn apart.
    offset = torch.arange(5.0, 0.0, -2.0, device=images.device).view(1, 3, 1, 1)
    position = (sector + 6 * turns + offset) % 6
    return high - (high - low) * torch.minimum(position, 4 - position).clamp(0, 1)


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return (factor * images + (1 - factor) * other).clamp(0, 1)


def _grey(images: Tensor) -> Tensor:
    weights = torch.cat([images.new_full((1, 1, 1, 1), weight) for weight in GREY], dim=1)
    return (images * weights).sum(1, keepdim=True)


def _interval(value: Interval, around: float) -> tuple[float, float] | None:
    if value is None:
        return None
    if isinstance(value, (int, float)):
        return max(0.0, around - value) if around else -value, around + value
    return tuple(value)  # type: ignore[return-value]
