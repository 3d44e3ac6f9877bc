"""Offline RL in plain PyTorch, written down as directly as can be: what a step's arithmetic costs.

Networks of 2 x 256, the critics one batched ensemble. Each function of ``STEPS`` makes networks and
fused optimizers for ``obs_dim`` and ``ac_dim`` on the default device, and returns a step: from a
batch, a row per transition, to updated weights. Losses that share no weights share a backward pass;
those of an actor do not compute the gradients of the critics that they go through.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DISCOUNT, HIDDEN, TAU = 0.99, 256, 0.005


class Transitions(NamedTuple):
    obs: Tensor
    actions: Tensor
    rewards: Tensor
    dones: Tensor
    next_obs: Tensor
    next_actions: Tensor


Step = Callable[[Transitions], None]


class Critics(nn.Module):
    """``[R, O]`` and ``[R, A]`` to the values ``[N, R]`` of all critics, or ``[1, R]``."""

    def __init__(self, obs_dim: int, ac_dim: int, num: int = 2, layer_norm: bool = False):
        super().__init__()
        dims = [obs_dim + ac_dim, HIDDEN, HIDDEN, 1]
        sizes = list(zip(dims, dims[1:], strict=False))
        layers = [[nn.Linear(i, o) for _ in range(num)] for i, o in sizes]
        self.weights = nn.ParameterList(
            torch.stack([m.weight.detach().t() for m in layer]) for layer in layers
        )
        self.biases = nn.ParameterList(
            torch.stack([m.bias.detach()[None] for m in layer]) for layer in layers
        )
        self.norms = nn.ParameterList()
        if layer_norm:
            shape = (num, 1, HIDDEN)
            self.norms.extend([torch.ones(shape), torch.zeros(shape)] * 2)

    def forward(self, obs: Tensor, actions: Tensor, only_first: bool = False) -> Tensor:
        weights, biases, norms = list(self.weights), list(self.biases), list(self.norms)
        if only_first:
            weights, biases, norms = ([p[:1] for p in some] for some in (weights, biases, norms))
        x = torch.cat([obs, actions], dim=-1)
        x = x.expand(len(weights[0]), *x.shape[-2:])
        for i in range(2):
            x = torch.baddbmm(biases[i], x, weights[i]).relu()
            if norms:
                normal = F.layer_norm(x, x.shape[-1:])
                x = torch.addcmul(norms[2 * i + 1], normal, norms[2 * i])
        return torch.baddbmm(biases[2], x, weights[2]).squeeze(-1)


def mlp(input_dim: int, output_dim: int, hidden: Sequence[int] = (HIDDEN, HIDDEN)) -> nn.Sequential:
    dims = [input_dim, *hidden]
    layers: list[nn.Module] = []
    for size_in, size_out in zip(dims, dims[1:], strict=False):
        layers += [nn.Linear(size_in, size_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(dims[-1], output_dim))


def log_normal(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    z = (x - mean) / std
    return (-0.5 * z * z - std.log()).sum(-1) - 0.5 * math.log(2 * math.pi) * x.shape[-1]


class GaussianActor(nn.Module):
    """Means in [-1, 1] and standard deviations ``[R, A]``."""

    def __init__(self, obs_dim: int, ac_dim: int):
        super().__init__()
        self.trunk = mlp(obs_dim, HIDDEN, (HIDDEN,)).append(nn.ReLU())
        self.mean, self.scale = nn.Linear(HIDDEN, ac_dim), nn.Linear(HIDDEN, ac_dim)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(obs)
        mean, scale = self.mean(features), self.scale(features)
        return torch.tanh(mean), (F.softplus(scale) * (0.3 / math.log(2))).clamp(0.007, 7.5)


class TanhActor(GaussianActor):
    """Mean and standard deviation before a tanh."""

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(obs)
        mean, scale = self.mean(features), self.scale(features)
        return mean.clamp(-9, 9), scale.exp().clamp(0.007, 7.5)


def tanh_sample(mean: Tensor, std: Tensor, shape: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """Actions ``[*shape, R, A]`` and their log densities."""
    before = mean + std * torch.randn(*shape, *mean.shape, device=mean.device)
    actions = torch.tanh(before)
    slope = torch.log(1 - actions.square() + 1e-6).sum(-1)
    return actions, log_normal(before, mean, std) - slope


def adam(*parts: Any) -> torch.optim.Optimizer:
    parameters = [p for part in parts for p in part.parameters()]
    return torch.optim.Adam(parameters, lr=3e-4, fused=True, capturable=parameters[0].is_cuda)


def descend(loss: Tensor, *optimizers: torch.optim.Optimizer) -> None:
    """A step of each, for the sum of their losses."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    groups = [group["params"] for optimizer in optimizers for group in optimizer.param_groups]
    loss.backward(inputs=[p for group in groups for p in group])
    for optimizer in optimizers:
        optimizer.step()


def slow_copy(net: nn.Module) -> tuple[nn.Module, Callable[[], None]]:
    """The copy, and what moves it."""
    target = copy.deepcopy(net).requires_grad_(False)
    weights = list(target.parameters()), list(net.parameters())
    average = torch.optim.swa_utils.get_ema_multi_avg_fn(1 - TAU)
    return target, lambda: average(*weights, 0)


def iql(obs_dim: int, ac_dim: int) -> Step:
    critic, actor = Critics(obs_dim, ac_dim), GaussianActor(obs_dim, ac_dim)
    vf = mlp(obs_dim, 1)
    target, follow = slow_copy(critic)
    optimizers = [adam(net) for net in (critic, vf, actor)]

    def step(b: Transitions) -> None:
        with torch.no_grad():
            q_min = target(b.obs, b.actions).amin(0)
            backup = b.rewards + DISCOUNT * (1 - b.dones) * vf(b.next_obs).squeeze(-1)
        q_losses = (critic(b.obs, b.actions) - backup).square().mean(1)
        error = q_min - vf(b.obs).squeeze(-1)
        v_loss = (torch.where(error > 0, 0.9, 0.1) * error.square()).mean()
        weight = error.detach().exp().clamp(max=100)
        actor_loss = -(weight * log_normal(b.actions, *actor(b.obs))).mean()
        descend(q_losses.sum() + v_loss + actor_loss, *optimizers)
        follow()

    return step


def awac(obs_dim: int, ac_dim: int) -> Step:
    critic, actor = Critics(obs_dim, ac_dim), GaussianActor(obs_dim, ac_dim)
    target, follow = slow_copy(critic)
    critic_optimizer, actor_optimizer = adam(critic), adam(actor)

    def sample(mean: Tensor, std: Tensor) -> Tensor:
        return mean + std * torch.randn_like(mean)

    def step(b: Transitions) -> None:
        with torch.no_grad():
            next_q = target(b.next_obs, sample(*actor(b.next_obs))).amin(0)
            backup = b.rewards + DISCOUNT * (1 - b.dones) * next_q
        q = critic(b.obs, b.actions)
        mean, std = actor(b.obs)
        with torch.no_grad():
            v = critic(b.obs, sample(mean, std)).amin(0)
            weight = (q.amin(0) - v).exp().clamp(max=100)
        q_losses = (q - backup).square().mean(1)
        actor_loss = -(weight * log_normal(b.actions, mean, std)).mean()
        descend(q_losses.sum() + actor_loss, critic_optimizer, actor_optimizer)
        follow()

    return step


def td3_bc(obs_dim: int, ac_dim: int, rebrac: bool = False) -> Step:
    """TD3+BC; with ``rebrac`` its penalties and layer normalisation. The actor's turn is every
    second step."""
    critic, actor = Critics(obs_dim, ac_dim, layer_norm=rebrac), mlp(obs_dim, ac_dim)
    actor.append(nn.Tanh())
    target, follow = slow_copy(critic)
    actor_target, actor_follow = slow_copy(actor)
    critic_optimizer, actor_optimizer = adam(critic), adam(actor)
    count = 0

    def step(b: Transitions) -> None:
        nonlocal count
        with torch.no_grad():
            noise = (torch.randn_like(b.actions) * 0.2).clamp(-0.5, 0.5)
            next_actions = (actor_target(b.next_obs) + noise).clamp(-1, 1)
            next_q = target(b.next_obs, next_actions).amin(0)
            if rebrac:
                next_q -= 0.01 * (next_actions - b.next_actions).square().sum(-1)
            backup = b.rewards + DISCOUNT * (1 - b.dones) * next_q
        q_losses = (critic(b.obs, b.actions) - backup).square().mean(1)
        descend(q_losses.sum(), critic_optimizer)
        count += 1
        if count % 2:
            return
        policy = actor(b.obs)
        q = critic(b.obs, policy, only_first=not rebrac).amin(0)
        distance = (policy - b.actions).square()
        cloning = 0.01 * distance.sum(-1).mean() if rebrac else distance.mean()
        descend(cloning - 2.5 * q.mean() / q.detach().abs().mean(), actor_optimizer)
        follow()
        actor_follow()

    return step


def sac(
    obs_dim: int, ac_dim: int, num_critics: int = 10, eta: float = 0.0, num_random: int = 0
) -> Step:
    """SAC-N; EDAC with ``eta``, the weight of the similarity of the critics' gradients; CQL with
    ``num_random`` actions each of chance and the policy in this state and the next."""
    critic, actor = Critics(obs_dim, ac_dim, num_critics), TanhActor(obs_dim, ac_dim)
    target, follow = slow_copy(critic)
    log_alpha, log_cql = nn.ParameterList([torch.zeros(1)]), nn.ParameterList([torch.zeros(1)])
    alpha_optimizer, cql_optimizer = adam(log_alpha), adam(log_cql)
    critic_optimizer, actor_optimizer = adam(critic), adam(actor)

    def proposals(pi: tuple[Tensor, Tensor], next_pi: tuple[Tensor, Tensor]) -> Any:
        actions, log_prob = tanh_sample(*pi, (num_random,))
        next_actions, next_log_prob = tanh_sample(*next_pi, (num_random,))
        uniform = torch.full_like(log_prob, ac_dim * math.log(0.5))
        random = 2 * torch.rand_like(actions) - 1
        log_density = torch.cat([uniform, next_log_prob, log_prob])
        return torch.cat([random, next_actions, actions]), log_density

    def conservative(b: Transitions, backup: Tensor, next_pi: tuple[Tensor, Tensor]) -> Tensor:
        with torch.no_grad():
            actions, log_density = proposals(actor(b.obs), next_pi)
            actions = torch.cat([b.actions[None], actions])
        obs = b.obs.expand(len(actions), -1, -1)
        q = critic(obs.flatten(0, 1), actions.flatten(0, 1)).unflatten(1, actions.shape[:2])
        gap = torch.logsumexp(q[:, 1:] - log_density, dim=1).mean(1) - q[:, 0].mean(1) - 5.0
        weight = log_cql[0].exp().clamp(max=1e6)
        descend(-(weight * gap.detach()).mean(), cql_optimizer)
        return (q[:, 0] - backup).square().mean(1) + weight.detach() * gap

    def diverse(b: Transitions, backup: Tensor) -> Tensor:
        actions = b.actions.expand(num_critics, -1, -1).clone().requires_grad_()
        q = critic(b.obs.expand(num_critics, -1, -1), actions)
        (gradients,) = torch.autograd.grad(q.sum(), actions, create_graph=True)
        directions = F.normalize(gradients, dim=-1)
        own = directions.square().sum((0, 2))
        similarity = (directions.sum(0).square().sum(-1) - own).mean() / (num_critics - 1)
        return (q - backup).square().mean(1) + eta * similarity / num_critics

    def step(b: Transitions) -> None:
        policy, log_prob = tanh_sample(*actor(b.obs))
        alpha = log_alpha[0].detach().exp()
        actor_loss = (alpha * log_prob - critic(b.obs, policy).amin(0)).mean()
        alpha_loss = -(log_alpha[0] * (log_prob.detach() - ac_dim)).mean()
        descend(actor_loss + alpha_loss, actor_optimizer, alpha_optimizer)
        with torch.no_grad():
            next_pi = actor(b.next_obs)
            next_actions, log_prob = tanh_sample(*next_pi)
            next_q = target(b.next_obs, next_actions).amin(0)
            if not num_random:  # CQL's targets are without the entropy
                next_q -= log_alpha[0].exp() * log_prob
            backup = b.rewards + DISCOUNT * (1 - b.dones) * next_q
        if num_random:
            losses = conservative(b, backup, next_pi)
        elif eta:
            losses = diverse(b, backup)
        else:
            losses = (critic(b.obs, b.actions) - backup).square().mean(1)
        descend(losses.sum(), critic_optimizer)
        follow()

    return step


def bcq(obs_dim: int, ac_dim: int) -> Step:
    """A VAE of (300, 400) with a latent of 14, ten of its actions per target, no perturbation."""
    latent = 14
    encoder = mlp(obs_dim + ac_dim, 2 * latent, (300, 400))
    decoder = mlp(obs_dim + latent, ac_dim, (300, 400))
    decoder.append(nn.Tanh())
    critic = Critics(obs_dim, ac_dim)
    target, follow = slow_copy(critic)
    vae_optimizer, critic_optimizer = adam(encoder, decoder), adam(critic)

    def step(b: Transitions) -> None:
        mean, logvar = encoder(torch.cat([b.actions, b.obs], dim=-1)).chunk(2, dim=-1)
        z = mean + (0.5 * logvar).exp() * torch.randn_like(mean)
        error = F.mse_loss(decoder(torch.cat([z, b.obs], dim=-1)), b.actions)
        kl = 0.5 * (mean.square() + logvar.exp() - logvar - 1).sum(-1).mean()
        descend(error + kl, vae_optimizer)
        with torch.no_grad():
            next_obs = b.next_obs.repeat(10, 1)
            z = torch.randn(len(next_obs), latent, device=next_obs.device)
            actions = decoder(torch.cat([z, next_obs], dim=-1))
            q = target(next_obs, actions)
            next_q = (0.75 * q.amin(0) + 0.25 * q.amax(0)).view(10, -1).amax(0)
            backup = b.rewards + DISCOUNT * (1 - b.dones) * next_q
        q_losses = (critic(b.obs, b.actions) - backup).square().mean(1)
        descend(q_losses.sum(), critic_optimizer)
        follow()

    return step


STEPS: dict[str, Callable[[int, int], Step]] = {
    "iql": iql,
    "awac": awac,
    "td3_bc": td3_bc,
    "rebrac": lambda obs_dim, ac_dim: td3_bc(obs_dim, ac_dim, rebrac=True),
    "sac_n": sac,
    "edac": lambda obs_dim, ac_dim: sac(obs_dim, ac_dim, eta=1.0),
    "cql": lambda obs_dim, ac_dim: sac(obs_dim, ac_dim, num_critics=2, num_random=10),
    "bcq": bcq,
}
