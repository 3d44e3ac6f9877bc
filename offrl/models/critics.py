"""Value functions: ensembles of critics ``Q(s, a, g)`` as one batched network, and ``V(s, g)``."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offrl.kernels.layers import Linear, affine, first_members
from offrl.models.encoder import Encoder, Obs
from offrl.models.heads import DeterministicHead
from offrl.models.trunks import MLP
from offrl.specs import ObsSpec


class EnsembleLinear(nn.Module):
    """``N`` linear layers in one product: weights ``[N, I, O]``, biases ``[N, O]``.

    Weights have the memory layout of their gradients, which need no copy.
    """

    def __init__(self, num_members: int, input_dim: int, output_dim: int):
        super().__init__()
        members = [nn.Linear(input_dim, output_dim) for _ in range(num_members)]
        self.weight = nn.Parameter(torch.stack([member.weight.detach().t() for member in members]))
        self.bias = nn.Parameter(torch.stack([member.bias.detach() for member in members]))

    def forward(self, x: Tensor) -> Tensor:
        """Map rows ``[R, I]`` for all members, or ``[N, R, I]``, to ``[N, R, O]``. Fewer than ``N``
        sets of rows belong to the first members."""
        if x.ndim == 2:
            x = x.expand(self.weight.shape[0], -1, -1)
        return affine(x, *first_members(x.shape[0], self.weight, self.bias))


class EnsembleLayerNorm(nn.Module):
    """Layer normalisation of ``[N, R, F]`` with weights and biases ``[N, F]`` per member."""

    def __init__(self, num_members: int, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_members, dim))
        self.bias = nn.Parameter(torch.zeros(num_members, dim))

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = first_members(x.shape[0], self.weight, self.bias)
        normal = F.layer_norm(x, x.shape[-1:])
        return torch.addcmul(bias.unsqueeze(1), normal, weight.unsqueeze(1))


class Ensemble(nn.Module):
    """``N`` fully connected networks of the same shape, a ReLU behind each hidden layer."""

    def __init__(
        self, num_members: int, input_dim: int, layer_dims: Sequence[int], layer_norm: bool = False
    ):
        super().__init__()
        dims = [input_dim, *layer_dims]
        layers: list[nn.Module] = []
        for size_in, size_out in zip(dims, dims[1:], strict=False):
            layers += [EnsembleLinear(num_members, size_in, size_out), nn.ReLU()]
            if layer_norm:
                layers.append(EnsembleLayerNorm(num_members, size_out))
        self.layers = nn.Sequential(*layers)
        self.output_dim = dims[-1]

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Critics(nn.Module):
    """``num_critics`` functions ``Q(s, a, g)``, each with weights of its own.

    layer_dims: sizes of the hidden layers.
    num_critics: how many functions, ``N`` in the shapes.
    value_bounds: the outputs are squashed between these two by a tanh.
    num_frames: how many frames ``[B, num_frames, ...]`` of observations make a state.
    num_outputs: numbers of the last layer for each action; more than one in subclasses only.
    layer_norm: normalise the outputs of each hidden layer.
    """

    OUTPUT = "value"  # robomimic's name of the last layer

    def __init__(
        self,
        spec: ObsSpec,
        ac_dim: int,
        layer_dims: Sequence[int],
        num_critics: int = 2,
        value_bounds: Sequence[float] | None = None,
        num_frames: int = 1,
        num_outputs: int = 1,
        layer_norm: bool = False,
    ):
        super().__init__()
        self.num_critics, self.value_bounds = num_critics, value_bounds
        first = Encoder(spec, num_frames=num_frames)
        num_encoders = num_critics if first.has_weights else 1
        others = (Encoder(spec, num_frames=num_frames) for _ in range(num_encoders - 1))
        self.encoders = nn.ModuleList([first, *others])
        self.trunk = Ensemble(num_critics, first.output_dim + ac_dim, layer_dims, layer_norm)
        output = EnsembleLinear(num_critics, self.trunk.output_dim, num_outputs)
        self.head = nn.ModuleDict({self.OUTPUT: output})

    def forward(self, obs: Obs | Tensor, actions: Tensor, goal: Obs | None = None) -> Tensor:
        """Compute values ``[N, B, K]`` of ``K`` actions in each state, ``[B, K, A]``, or of other
        actions for each critic, ``[N, B, K, A]``."""
        return self.as_values(self.outputs(obs, actions, goal))

    def first(self, obs: Obs, actions: Tensor, goal: Obs | None = None) -> Tensor:
        """Compute only the first critic's values, ``[B, K]``, at the cost of one critic."""
        return self(self.encoders[0](obs, goal)[None], actions)[0]

    def encode(self, obs: Obs, goal: Obs | None = None) -> Tensor:
        """Encode observations as features ``[B, 1, F]``, or ``[N, B, 1, F]`` per critic. Pass them
        as ``obs`` to let all actions share one draw of an augmentation."""
        features = [encoder(obs, goal) for encoder in self.encoders]
        return features[0] if len(features) == 1 else torch.stack(features)

    def outputs(self, obs: Obs | Tensor, actions: Tensor, goal: Obs | None = None) -> Tensor:
        """Compute the outputs of the last layers, ``[N, B, K, outputs]``, with one encoding of the
        observations for all ``K`` actions."""
        features = obs if isinstance(obs, Tensor) else self.encode(obs, goal)
        if features.ndim > actions.ndim:
            actions = actions.expand(len(features), -1, -1, -1)
        rows = with_actions(features, actions, self.encoders[0]).flatten(-3, -2)
        return self.head[self.OUTPUT](self.trunk(rows)).unflatten(1, actions.shape[-3:-1])

    def as_values(self, outputs: Tensor) -> Tensor:
        """Turn ``outputs`` into values."""
        values = outputs.squeeze(-1)
        if self.value_bounds is None:
            return values
        low, high = self.value_bounds
        return (high + low) / 2 + (high - low) / 2 * torch.tanh(values)

    def clip_gradients(self, limit: float | None) -> Tensor:
        """Clip each critic's gradient to the norm ``limit``. Returns the norms then, ``[N]``."""
        stacked = gradients(self.trunk) + gradients(self.head)  # [N, ...]
        norms = [torch.linalg.vector_norm(g.flatten(1), dim=1) for g in stacked]
        zero = next(self.parameters()).new_zeros(1)  # where all of these are frozen
        norm = torch.linalg.vector_norm(torch.stack(norms), dim=0) if norms else zero
        own = [gradients(encoder) for encoder in self.encoders]
        if any(own):
            theirs = torch.stack([torch.nn.utils.get_total_norm(parts) for parts in own])
            norm = torch.hypot(norm, theirs)
        if limit is not None:
            factors = (limit / (norm + 1e-6)).clamp(max=1.0)
            for gradient in stacked:
                gradient.mul_(factors.view(-1, *[1] * (gradient.ndim - 1)))
            for parts, factor in zip(own, factors, strict=False):
                for gradient in parts:
                    gradient.mul_(factor)
            norm = norm * factors
        return norm


class DistributionalCritics(Critics):
    """Critics that give a probability to each of ``num_outputs`` returns, the ``atoms``, evenly
    spaced between the value bounds (Bellemare et al., 2017, arXiv:1707.06887)."""

    OUTPUT = "log_probs"
    atoms: Tensor

    def __init__(self, *args: Any, num_outputs: int, **options: Any):
        super().__init__(*args, num_outputs=num_outputs, **options)  # type: ignore[misc]
        assert self.value_bounds is not None
        low, high = self.value_bounds
        self.register_buffer("atoms", torch.linspace(low, high, num_outputs), persistent=False)

    def as_values(self, outputs: Tensor) -> Tensor:
        """Compute expected returns."""
        return (outputs.softmax(-1) * self.atoms).sum(-1)

    def probabilities(self, obs: Obs, actions: Tensor, goal: Obs | None = None) -> Tensor:
        """Compute the probabilities of returns, ``[N, B, K, atoms]``."""
        return self.outputs(obs, actions, goal).softmax(-1)

    def project(self, returns: Tensor, probabilities: Tensor) -> Tensor:
        """Project each row's probabilities of its ``returns``, both ``[B, atoms]``, onto the atoms:
        each goes to the two nearest, in proportion to their nearness (algorithm 1)."""
        low, high = self.atoms[0], self.atoms[-1]
        spacing = (high - low) / (len(self.atoms) - 1)
        distance = returns.clamp(low, high)[:, None, :] - self.atoms[None, :, None]
        nearness = (1 - distance.abs() / spacing).clamp(min=0)
        return (nearness * probabilities[:, None, :]).sum(-1)


class DiscreteCritics(Critics):
    """``num_critics`` networks that value all ``num_actions`` (one-hot) at once.

    dueling: the last layer gives the value of the state, and the advantage of each action over
        the average of all (Wang et al., 2016, arXiv:1511.06581, equation 9).
    """

    def __init__(
        self,
        spec: ObsSpec,
        num_actions: int,
        *args: Any,
        num_outputs: int = 1,
        dueling: bool = False,
        **options: Any,
    ):
        options["num_outputs"] = (num_actions + dueling) * num_outputs
        super().__init__(spec, 0, *args, **options)
        self.num_outputs, self.dueling = num_outputs, dueling

    def values(self, obs: Obs, goal: Obs | None = None) -> Tensor:
        """Compute the values of all actions, ``[N, B, A]``."""
        return self.as_values(self.all_outputs(obs, goal))

    def all_outputs(self, obs: Obs, goal: Obs | None = None) -> Tensor:
        """Compute the outputs of the last layers for all actions, ``[N, B, A, outputs]``."""
        rows = self.encode(obs, goal).squeeze(-2)
        outputs = self.head[self.OUTPUT](self.trunk(rows))
        outputs = outputs.view(*outputs.shape[:2], -1, self.num_outputs)
        if not self.dueling:
            return outputs
        value, advantage = outputs[:, :, :1], outputs[:, :, 1:]
        return value + advantage - advantage.mean(2, keepdim=True)

    def outputs(self, obs: Obs, actions: Tensor, goal: Obs | None = None) -> Tensor:  # type: ignore[override]
        return (self.all_outputs(obs, goal)[:, :, None] * actions[..., None]).sum(-2)

    def first(self, obs: Obs, actions: Tensor, goal: Obs | None = None) -> Tensor:
        return self(obs, actions, goal)[0]


class DiscreteDistributionalCritics(DistributionalCritics, DiscreteCritics):
    """Critics that give the probabilities of returns of every action at once."""


class StateValue(nn.Module):
    """The value of a state, ``V(s, g)``."""

    def __init__(self, spec: ObsSpec, layer_dims: Sequence[int], num_frames: int = 1):
        super().__init__()
        self.encoder = Encoder(spec, num_frames=num_frames)
        self.trunk = MLP(self.encoder.output_dim, layer_dims)
        self.head = nn.ModuleDict({"value": Linear(self.trunk.output_dim, 1)})

    def forward(self, obs: Obs, goal: Obs | None = None) -> Tensor:
        """Compute values ``[B, 1]``."""
        features, _ = self.trunk(self.encoder(obs, goal))
        return self.head["value"](features).squeeze(-1)


class GoalValues(nn.Module):
    """``num_values`` functions ``V(s, phi(s, g))`` of one representation of goals, vectors of the
    length ``sqrt(R)`` (HIQL: Park et al., 2023, arXiv:2307.11949, section 5)."""

    def __init__(
        self,
        spec: ObsSpec,
        representation_dim: int,
        layer_dims: Sequence[int],
        num_values: int = 2,
        value_bounds: Sequence[float] | None = None,
        num_frames: int = 1,
    ):
        super().__init__()
        self.encoder = Encoder(spec, num_frames=num_frames)
        self.trunk = Ensemble(1, self.encoder.output_dim, layer_dims, layer_norm=True)
        self.head = Linear(self.trunk.output_dim, representation_dim)
        # A value takes a representation where a critic takes an action.
        states, dim = ObsSpec({"obs": spec.groups["obs"]}), representation_dim
        options = layer_dims, num_values, value_bounds, num_frames
        self.values = Critics(states, dim, *options, layer_norm=True)

    def representation(self, obs: Obs, goal: Obs) -> Tensor:
        """Compute ``phi(s, g)``: ``[B, 1, R]``."""
        features = self.trunk(self.encoder(obs, goal)[:, 0])[0]
        return normalized(self.head(features))[:, None]

    def forward(self, obs: Obs, goal: Obs) -> Tensor:
        """Compute values ``[N, B, 1]``."""
        return self.values(obs, self.representation(obs, goal))


def normalized(representation: Tensor) -> Tensor:
    """Scale vectors ``[..., R]`` to the length ``sqrt(R)``, so that each number is about 1."""
    return F.normalize(representation, dim=-1) * math.sqrt(representation.shape[-1])


class PerturbationActor(nn.Module):
    """A network that perturbs each given action a little (Fujimoto et al., 2019, arXiv:1812.02900,
    section 5)."""

    def __init__(
        self,
        spec: ObsSpec,
        ac_dim: int,
        layer_dims: Sequence[int],
        scale: float,
        num_frames: int = 1,
    ):
        super().__init__()
        self.encoder = Encoder(spec, num_frames=num_frames)
        self.trunk = MLP(self.encoder.output_dim + ac_dim, layer_dims)
        self.head = DeterministicHead(self.trunk.output_dim, ac_dim)
        self.scale = scale

    def forward(self, obs: Obs, actions: Tensor, goal: Obs | None = None) -> Tensor:
        """Perturb actions ``[B, K, A]``, within [-1, 1]."""
        features = with_actions(self.encoder(obs, goal), actions, self.encoder)
        step = self.head(self.trunk(features)[0]).mode()
        return (actions + self.scale * step).clamp(-1.0, 1.0)


def gradients(net: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in net.parameters() if parameter.grad is not None]


def with_actions(features: Tensor, actions: Tensor, encoder: Any) -> Tensor:
    """Join features of a state ``[B, 1, F]`` with each action ``[B, K, A]``, which comes between
    observations and goals: ``[B, K, F + A]``. Both may have a critic axis, ``[N, ...]``."""
    repeated = features.expand(*actions.shape[:-1], -1)
    if encoder.obs_dim == encoder.output_dim:  # no goal
        return torch.cat([repeated, actions], dim=-1)
    obs, goal = repeated.tensor_split([encoder.obs_dim], dim=-1)
    return torch.cat([obs, actions, goal], dim=-1)


class Scalar(nn.Module):
    """A learned number."""

    def __init__(self, value: float):
        super().__init__()
        self.param = nn.Parameter(torch.tensor([value]))

    def forward(self) -> Any:
        return self.param
