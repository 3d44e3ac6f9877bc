"""torch's random numbers replaced by recorded ones.

A recording tells of each draw the function that made it. What offrl draws takes the next one of
the same kind and size; what robomimic drew for nothing is passed over.
"""

from collections import deque
from dataclasses import dataclass
from unittest import mock

import torch

from offrl.models import heads, vae

KINDS = {
    "uniform": ("rand", "rand_like", "uniform_"),
    "normal": ("randn", "randn_like", "normal", "normal_"),
    "exponential": ("exponential_",),
    "index": ("multinomial", "randint"),
}


@dataclass
class Draw:
    """is_noise: whether it is still to be multiplied with a standard deviation, as what
    ``torch.normal(mean, std)`` returns is not; ``None`` where nothing tells."""

    kind: str
    values: torch.Tensor
    is_noise: bool | None = None

    @classmethod
    def recorded(cls, values, source="", meaning=""):
        """By its source (``"torch.rand"``, ``"Tensor.normal_"``), or else by its values."""
        values = torch.as_tensor(values)
        name = source.rpartition(".")[2]
        kind = next((k for k, names in KINDS.items() if name in names), None)
        if kind is None and not values.is_floating_point():
            kind = "index"
        elif kind is None:
            kind = "normal" if values.min() < 0 else "exponential"
            kind = "uniform" if 0 <= values.min() and values.max() < 1 else kind
        if kind == "uniform" and values.min() < 0:  # in (-1, 1)
            values = (values + 1) / 2
        is_noise = name != "normal" or "standard" in meaning if name else None
        return cls(kind, values, is_noise)


class Replay:
    """A context in which torch draws the numbers of ``draws``."""

    def __init__(self, draws):
        self.queues = {kind: deque() for kind in KINDS}
        for draw in draws:
            self.queues[draw.kind].append(draw)
        self._pi = None  # the distribution being sampled
        self._index = None  # of the components drawn last

    def __enter__(self):
        replaced = {
            (torch, "rand"): lambda *shape, **_: self._next("uniform", _size(shape)),
            (torch, "randint"): lambda low, high, shape, **_: self._next("index", shape),
            (torch, "randn"): lambda *shape, **_: self._normal(_size(shape)),
            (torch, "randn_like"): lambda like, **_: self._normal(like.shape),
            (torch.Tensor, "exponential_"): lambda x: x.copy_(self._next("exponential", x.shape)),
            (heads, "draw_index"): self._draw_index(heads.draw_index),
            (vae, "draw_index"): self._draw_index(vae.draw_index),
            (heads.Gaussian, "sample"): self._sample(heads.Gaussian.sample),
            (heads.GaussianMixture, "sample"): self._sample(heads.GaussianMixture.sample),
        }
        self._patches = [mock.patch.object(*place, new) for place, new in replaced.items()]
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *_):
        for patch in reversed(self._patches):
            patch.stop()

    def _next(self, kind, *shapes):
        """The next recorded numbers of one of these shapes, rows arranged as in that."""
        while self.queues[kind]:
            self._draw = draw = self.queues[kind].popleft()
            for shape in map(torch.Size, shapes):
                # robomimic's keypoint noise, that nobody uses, may have the size of a latent.
                fits = kind != "normal" or draw.values.shape[-1:] == shape[-1:]
                if fits and draw.values.numel() == shape.numel():
                    return draw.values.reshape(shape)
        raise AssertionError(f"offrl draws {kind} numbers of shape {shapes}, not recorded")

    def _normal(self, shape):
        """Noise: of one component of a mixture where it was drawn for all, and of the samples where
        those were recorded."""
        if self._pi is None:
            return self._next("normal", shape)
        mean, std = self._pi.mean, self._pi.std
        values = self._next("normal", shape, mean.shape)
        if values.shape != mean.shape:  # of the chosen components alone
            mean, std = (_component(x, self._index) for x in (mean, std))
        is_noise, noise = self._draw.is_noise, (values - mean) / std
        if is_noise is None:
            is_noise = _distance_from_normal(values) < _distance_from_normal(noise)
        values = values if is_noise else noise
        return values if values.shape == shape else _component(values, self._index)

    def _draw_index(self, original):
        def draw_index(weights, generators):
            shape = weights.shape[:-1]
            if self.queues["index"]:
                self._index = self._next("index", shape)
            elif self.queues["uniform"]:
                self._index = original(weights, generators)
            else:  # robomimic's uniform prior of one categorical latent: all classes in turn
                assert torch.equal(weights, weights[..., :1].expand_as(weights)), "not recorded"
                num_classes = weights.shape[-1]
                self._index = torch.arange(shape.numel()).remainder(num_classes).reshape(shape)
            return self._index

        return draw_index

    def _sample(self, original):
        def sample(pi, generators=None):
            self._pi = pi
            try:
                return original(pi, generators)
            finally:
                self._pi = None

        return sample


def _component(x, index):
    """``[..., M, A]`` at ``index`` ``[...]``."""
    rows = x.reshape(-1, *x.shape[-2:])[torch.arange(index.numel()), index.flatten()]
    return rows.reshape(*index.shape, x.shape[-1])


def _size(shape):
    return shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape


def _distance_from_normal(values):
    return abs(float(values.square().mean().log()))
