"""Policy heads: features ``[B, T, F]`` to a distribution over actions ``[B, T, A]``.

A head always returns the true distribution; robomimic acts from its ``low_noise()`` at evaluation.
Bounds and parametrisations are robomimic's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from offrl.kernels.layers import Linear
from offrl.models.draws import Generators, draw_index, random_rows
from offrl.registry import HEADS

MEAN_LIMIT, MAX_STD = 9.0, 7.5  # of a Gaussian: of its mean before the tanh, and of its std
EVAL_STD = 1e-4  # the standard deviation of the mixtures that robomimic acts from at evaluation
STD_ACTIVATIONS: dict[str, Any] = {"softplus": F.softplus, "exp": torch.exp}
Self = TypeVar("Self", bound="ActionDistribution")


class Outputs(nn.Module):
    """A head with outputs ``{name: [B, T, *shape]}``: parameters, or predicted observations."""

    def __init__(self, input_dim: int, shapes: Mapping[str, Sequence[int]]):
        super().__init__()
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        for name, shape in self.shapes.items():
            self.add_module(name, Linear(input_dim, math.prod(shape)))

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        """Map features ``[B, T, F]`` to the outputs."""
        return {
            name: self.get_submodule(name)(features).unflatten(-1, shape)
            for name, shape in self.shapes.items()
        }


class ActionDistribution:
    """Interface of a head's output; subclasses are dataclasses of tensors ``[B, T, ...]``."""

    LOSSES: ClassVar[tuple[str, ...]] = ("nll",)

    def at(self: Self, step: int) -> Self:
        """Return the distribution at one time step, over actions ``[B, A]``."""
        return type(self)(*(getattr(self, f.name)[:, step] for f in fields(self)))  # type: ignore[arg-type]

    def repeated(self: Self, times: int) -> Self:
        """Repeat the distribution of one step for so many steps."""
        parts = (getattr(self, f.name) for f in fields(self))  # type: ignore[arg-type]
        return type(self)(*(x.expand(-1, times, *x.shape[2:]) for x in parts))

    def loss(self, term: str, actions: Tensor) -> Tensor:
        """Compute one of ``LOSSES`` per time step, ``[B, T]``."""
        return -self.log_prob(actions)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Compute the log density ``[B, T]`` of actions ``[B, T, A]``."""
        raise NotImplementedError(type(self).__name__)

    def entropy(self) -> Tensor:
        """Compute the entropy ``[B, T]`` in nats."""
        raise NotImplementedError(type(self).__name__)

    def sample(self, generators: Generators = None) -> Tensor:
        """Draw actions ``[B, T, A]`` (see ``random_rows``)."""
        raise NotImplementedError(type(self).__name__)

    def mode(self) -> Tensor:
        """Return the most likely action (of a mixture: the mean of its heaviest component)."""
        raise NotImplementedError(type(self).__name__)

    def low_noise(self) -> "ActionDistribution":
        """Return the distribution to act from at evaluation."""
        return self


@dataclass
class Deterministic(ActionDistribution):
    """One action, no density."""

    LOSSES = ("l2", "l1", "cos")
    action: Tensor

    def loss(self, term: str, actions: Tensor) -> Tensor:
        """Compute the squared error, the Huber error ("l1" in robomimic) or the angle between the
        first three components, the translation of the end effector by convention."""
        if term == "cos":
            return 1.0 - F.cosine_similarity(self.action[..., :3], actions[..., :3], dim=-1)
        error = {"l2": F.mse_loss, "l1": F.smooth_l1_loss}[term]
        return error(self.action, actions, reduction="none").mean(-1)

    def sample(self, generators: Generators = None) -> Tensor:
        return self.action

    def mode(self) -> Tensor:
        return self.action


@dataclass
class Gaussian(ActionDistribution):
    """Independent normal variables, ``mean`` and ``std`` ``[B, T, A]``."""

    mean: Tensor
    std: Tensor

    def log_prob(self, actions: Tensor) -> Tensor:
        z = (actions - self.mean) / self.std
        return (-0.5 * z * z - self.std.log()).sum(-1) - 0.5 * math.log(2 * math.pi) * z.shape[-1]

    def entropy(self) -> Tensor:
        return self.std.log().sum(-1) + 0.5 * math.log(2 * math.pi * math.e) * self.std.shape[-1]

    def sample(self, generators: Generators = None) -> Tensor:
        return self.mean + self.std * random_rows("randn", self.mean, generators)

    def rsample(self, num_samples: int) -> tuple[Tensor, Tensor]:
        """Draw actions ``[B, num_samples, A]`` through which gradients flow, with their log
        densities ``[B, num_samples]``, from a distribution for one step, ``T = 1``."""
        noise = torch.randn((num_samples, *self.mean.shape), device=self.mean.device)
        actions = (self.mean + self.std * noise).squeeze(2).movedim(0, 1)
        return actions, Gaussian.log_prob(self, actions)

    def mode(self) -> Tensor:
        return self.mean

    def low_noise(self) -> ActionDistribution:
        return Deterministic(self.mode())


class Squashed(ActionDistribution):
    """The tanh of a random variable, with its density in (-1, 1) (Haarnoja et al., 2018,
    arXiv:1801.01290, appendix C). A mixin before the class of the variable."""

    MARGIN = 1e-6  # keeps the atanh of actions at the bounds finite; robomimic's value

    def log_prob(self, actions: Tensor) -> Tensor:
        above, below = (1 + actions).clamp(self.MARGIN), (1 - actions).clamp(self.MARGIN)
        before = 0.5 * (above / below).log()  # atanh, exact near the bounds
        return super().log_prob(before) - self._log_slope(actions)

    def entropy(self) -> Tensor:
        return ActionDistribution.entropy(self)  # it has no closed form

    def sample(self, generators: Generators = None) -> Tensor:
        return self._action(torch.tanh(super().sample(generators)))

    def mode(self) -> Tensor:
        return self._action(torch.tanh(super().mode()))

    def _action(self, squashed: Tensor) -> Tensor:
        return squashed

    def _log_slope(self, squashed: Tensor) -> Tensor:
        return torch.log(1 - squashed.square() + self.MARGIN).sum(-1)


@dataclass
class TanhGaussian(Squashed, Gaussian):
    """The tanh of a normal variable."""

    def rsample(self, num_samples: int) -> tuple[Tensor, Tensor]:
        before, log_prob = super().rsample(num_samples)
        squashed = torch.tanh(before)
        return self._action(squashed), log_prob - self._log_slope(squashed)


@dataclass
class Corrected(TanhGaussian):
    """A ``base`` action plus ``scale`` times the tanh of a normal variable, all ``[B, T, A]``.
    Densities are those of the correction."""

    base: Tensor
    scale: Tensor

    def _action(self, squashed: Tensor) -> Tensor:
        return (self.base + self.scale * squashed).clamp(-1.0, 1.0)


@dataclass
class GaussianMixture(ActionDistribution):
    """``mean`` and ``std`` ``[B, T, M, A]``, ``logits`` ``[B, T, M]`` (normalised log-weights)."""

    mean: Tensor
    std: Tensor
    logits: Tensor

    def log_prob(self, actions: Tensor) -> Tensor:
        components = Gaussian(self.mean, self.std).log_prob(actions[..., None, :])
        return torch.logsumexp(self.logits + components, dim=-1)

    def sample(self, generators: Generators = None) -> Tensor:
        index = draw_index(self.logits.exp(), generators)
        mean, std = _component(self.mean, index), _component(self.std, index)
        return mean + std * random_rows("randn", mean, generators)

    def mode(self) -> Tensor:
        return _component(self.mean, self.logits.argmax(-1))

    def low_noise(self) -> "GaussianMixture":
        return replace(self, std=torch.full_like(self.std, EVAL_STD))


@dataclass
class TanhMixture(Squashed, GaussianMixture):
    """The tanh of a variable whose distribution is a mixture."""


@dataclass
class Categorical(ActionDistribution):
    """One of ``A`` actions, each a one-hot vector; ``logits`` ``[B, T, A]``."""

    logits: Tensor

    @cached_property
    def log_probs(self) -> Tensor:
        """Compute the log-probabilities of all actions, ``[B, T, A]``."""
        return self.logits.log_softmax(-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        return (self.log_probs * actions).sum(-1)

    def entropy(self) -> Tensor:
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def sample(self, generators: Generators = None) -> Tensor:
        return self._one_hot(draw_index(self.logits.softmax(-1), generators))

    def mode(self) -> Tensor:
        return self._one_hot(self.logits.argmax(-1))

    def low_noise(self) -> ActionDistribution:
        return Deterministic(self.mode())

    def _one_hot(self, index: Tensor) -> Tensor:
        return torch.zeros_like(self.logits).scatter_(-1, index[..., None], 1.0)


def _component(values: Tensor, index: Tensor) -> Tensor:
    """Take the components ``index`` ``[...]`` of ``[..., M, A]``."""
    return values.take_along_dim(index[..., None, None], dim=-2).squeeze(-2)


@HEADS.register("deterministic")
class DeterministicHead(nn.Module):
    """One action, ``tanh(linear)``."""

    def __init__(self, input_dim: int, ac_dim: int):
        super().__init__()
        self.action = Linear(input_dim, ac_dim)

    def forward(self, features: Tensor) -> Deterministic:
        """Map features ``[B, T, F]`` to a distribution over actions ``[B, T, A]``."""
        return Deterministic(torch.tanh(self.action(features)))


@HEADS.register("gaussian")
class GaussianHead(nn.Module):
    """A Gaussian of mean ``tanh(linear)``. Its std is fixed at ``init_std`` (``fixed_std``), or
    learned, starting at ``init_std`` (``softplus``) or one (``exp``).

    use_tanh: the tanh of the whole distribution instead of the mean's, which is clamped.
    init_last_fc_weight: the weights start uniformly between this and its negative.
    """

    def __init__(
        self,
        input_dim: int,
        ac_dim: int,
        init_std: float = 0.1,
        min_std: float = 0.01,
        std_activation: str = "softplus",
        fixed_std: bool = False,
        use_tanh: bool = False,
        init_last_fc_weight: float | None = None,
    ):
        super().__init__()
        self.mean = Linear(input_dim, ac_dim)
        self.scale = Linear(input_dim, ac_dim)  # in robomimic's weights even if fixed
        if init_last_fc_weight is not None:
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -init_last_fc_weight, init_last_fc_weight)
        self.init_std, self.min_std, self.std_activation = init_std, min_std, std_activation
        self.fixed_std, self.use_tanh = fixed_std, use_tanh

    def forward(self, features: Tensor) -> Gaussian:
        """Map features ``[B, T, F]`` to a distribution over actions ``[B, T, A]``."""
        mean = self.mean(features)
        distribution = TanhGaussian if self.use_tanh else Gaussian
        mean = mean.clamp(-MEAN_LIMIT, MEAN_LIMIT) if self.use_tanh else torch.tanh(mean)
        if self.fixed_std:
            return distribution(mean, torch.full_like(mean, self.init_std))
        std = STD_ACTIVATIONS[self.std_activation](self.scale(features))
        if self.std_activation == "softplus":  # the network's zero means init_std
            std = std * (self.init_std / math.log(2.0))
        return distribution(mean, std.clamp(self.min_std, MAX_STD))


@HEADS.register("free_gaussian")
class FreeGaussianHead(nn.Module):
    """A Gaussian of mean ``linear``. Its learned std, ``exp(log_std_init)`` at first, is the same
    in all states (Schulman et al., 2015, arXiv:1502.05477, appendix D)."""

    def __init__(self, input_dim: int, ac_dim: int, log_std_init: float = 0.0):
        super().__init__()
        self.mean = Linear(input_dim, ac_dim)
        self.log_std = nn.Parameter(torch.full((ac_dim,), log_std_init))

    def forward(self, features: Tensor) -> Gaussian:
        """Map features ``[B, T, F]`` to a distribution over actions ``[B, T, A]``."""
        mean = self.mean(features)
        return Gaussian(mean, self.log_std.exp().expand_as(mean))

    def draw(self, mean: NDArray[np.float32]) -> NDArray[np.float32]:
        """Draw samples ``[R, A]`` around means ``[R, A]``, in NumPy."""
        return mean + self.log_std.detach().exp().numpy() * torch.randn(mean.shape).numpy()


@HEADS.register("gmm")
class GMMHead(nn.Module):
    """A mixture of ``num_modes`` Gaussians with means in [-1, 1].

    use_tanh: the tanh of the whole mixture instead of its means'.
    """

    def __init__(
        self,
        input_dim: int,
        ac_dim: int,
        num_modes: int = 5,
        min_std: float = 1e-4,
        std_activation: str = "softplus",
        use_tanh: bool = False,
    ):
        super().__init__()
        self.mean = Linear(input_dim, num_modes * ac_dim)
        self.scale = Linear(input_dim, num_modes * ac_dim)
        self.logits = Linear(input_dim, num_modes)
        self.num_modes, self.min_std, self.use_tanh = num_modes, min_std, use_tanh
        self.std_activation = std_activation

    def forward(self, features: Tensor) -> GaussianMixture:
        """Map features ``[B, T, F]`` to a distribution over actions ``[B, T, A]``."""
        per_mode = (self.num_modes, -1)
        mean = self.mean(features).unflatten(-1, per_mode)
        distribution = TanhMixture if self.use_tanh else GaussianMixture
        mean = mean if self.use_tanh else torch.tanh(mean)
        scale = self.scale(features).unflatten(-1, per_mode)
        std = STD_ACTIVATIONS[self.std_activation](scale) + self.min_std
        return distribution(mean, std, F.log_softmax(self.logits(features), dim=-1))


@HEADS.register("categorical")
class CategoricalHead(nn.Module):
    """Probabilities of actions, ``softmax(linear)``."""

    def __init__(self, input_dim: int, ac_dim: int):
        super().__init__()
        self.logits = Linear(input_dim, ac_dim)

    def forward(self, features: Tensor) -> Categorical:
        """Map features ``[B, T, F]`` to a distribution over actions ``[B, T, A]``."""
        return Categorical(self.logits(features))

    def draw(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Draw samples ``[R, A]`` by logits ``[R, A]``, in NumPy: with Gumbel noise, minus the
        logarithm of an exponential number, the largest is a sample of their softmax."""
        noise = torch.empty(logits.shape).exponential_().numpy()
        index = (logits - np.log(noise)).argmax(-1)
        return (index[:, None] == np.arange(logits.shape[-1])).astype(np.float32)
