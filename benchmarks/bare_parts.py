"""What the bare loops of online RL are made of: environments, a replay, parameters that lie end to
end, and networks that are multiplied in a batch."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from bare_rl import Critics
from torch import Tensor, nn

# -- environments and what is remembered of them --------------------------------------------------


class Outcome(NamedTuple):
    """Of a step of each environment; ``next_obs`` are those before a new episode starts."""

    next_obs: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class Environments:
    """A list of environments, whose episodes start anew when they end; ``obs`` are the present."""

    def __init__(self, env_id: str, num_envs: int, seed: int):
        self.envs = [gym.make(env_id, disable_env_checker=True) for _ in range(num_envs)]
        self.obs = np.stack([env.reset(seed=seed + i)[0] for i, env in enumerate(self.envs)])
        self.sums = np.zeros(num_envs)
        self.returns: deque[float] = deque(maxlen=20)

    def step(self, actions: np.ndarray) -> Outcome:
        results = [env.step(action)[:4] for env, action in zip(self.envs, actions, strict=True)]
        outcome = Outcome(*(np.array(values) for values in zip(*results, strict=True)))
        self.sums += outcome.rewards
        self.obs = outcome.next_obs.copy()
        for i in (outcome.terminated | outcome.truncated).nonzero()[0]:
            self.obs[i] = self.envs[i].reset()[0]
            self.returns.append(float(self.sums[i]))
            self.sums[i] = 0
        return outcome


class Batch(NamedTuple):
    obs: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    next_obs: Tensor


class Replay:
    """A ring of transitions, a row of numbers each, so that a batch is gathered at once."""

    def __init__(self, capacity: int, obs_dim: int, ac_dim: int):
        self.widths = [obs_dim, ac_dim, 1, 1, obs_dim]
        self.rows = torch.zeros(capacity, sum(self.widths))
        self.columns = [part.numpy() for part in self.rows.split(self.widths, dim=1)]
        self.count = 0

    def add(self, *parts: Any) -> None:
        """What a ``Batch`` has, of one transition."""
        i = self.count % len(self.rows)
        for column, part in zip(self.columns, parts, strict=True):
            column[i] = part
        self.count += 1

    def sample(self, size: int) -> Batch:
        indices = torch.randint(min(self.count, len(self.rows)), (size,))
        parts = self.rows.index_select(0, indices).split(self.widths, dim=1)
        obs, actions, rewards, terminated, next_obs = parts
        return Batch(obs, actions, rewards.squeeze(1), terminated.squeeze(1), next_obs)


# -- parameters -----------------------------------------------------------------------------------


def laid_end_to_end(parameters: Iterable[nn.Parameter]) -> nn.Parameter:
    """One parameter that the others, and their gradients, become views of."""
    parameters = list(parameters)
    flat = nn.Parameter(torch.cat([p.detach().flatten() for p in parameters]))
    flat.grad = torch.zeros_like(flat)
    sizes = [p.numel() for p in parameters]
    places = zip(flat.detach().split(sizes), flat.grad.split(sizes), strict=True)
    for p, (values, gradient) in zip(parameters, places, strict=True):
        p.data, p.grad = values.view_as(p), gradient.view_as(p)
    return flat


class Learner:
    """Descends along the gradient of some parameters and of no others."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, rms_prop: bool = False):
        self.parameters = list(parameters)
        self.flat = laid_end_to_end(self.parameters)
        if rms_prop:
            self.optimizer: Any = torch.optim.RMSprop([self.flat], lr=lr, alpha=0.99, eps=1e-5)
        else:
            self.optimizer = torch.optim.Adam([self.flat], lr=lr, fused=True)

    def descend(self, loss: Tensor, max_norm: float = math.inf) -> None:
        self.flat.grad.zero_()
        loss.backward(inputs=self.parameters)
        if max_norm < math.inf:
            nn.utils.clip_grad_norm_(self.flat, max_norm)
        self.optimizer.step()


class SlowCopy:
    """A network's copy, ``net``, that moves by ``tau`` of the way at a time."""

    def __init__(self, net: nn.Module, learner: Learner, tau: float):
        self.net = copy.deepcopy(net).requires_grad_(False)
        self.flat, self.source = laid_end_to_end(self.net.parameters()).detach(), learner.flat
        self.tau = tau

    def follow(self) -> None:
        self.flat.lerp_(self.source.detach(), self.tau)


# -- networks -------------------------------------------------------------------------------------


class TwinCritics(Critics):
    """The same values with fewer passes over memory: activations in place, and the last product,
    which is slow with one column, by elements."""

    def forward(self, obs: Tensor, actions: Tensor, only_first: bool = False) -> Tensor:
        parameters = list(self.weights) + list(self.biases)
        if only_first:
            parameters = [p[:1] for p in parameters]
        w1, w2, w3, b1, b2, b3 = parameters
        x = torch.cat([obs, actions], dim=-1).expand(len(w1), -1, -1)
        x = torch.baddbmm(b1, x, w1).relu_()
        x = torch.baddbmm(b2, x, w2).relu_()
        return (x * w3.mT).sum(-1) + b3.squeeze(-1)


class PolicyAndValue(nn.Module):
    """``[R, O]`` to logits ``[R, A]`` and values ``[R]``: two networks of 2 x 64 tanh, batched."""

    def __init__(self, obs_dim: int, num_actions: int):
        super().__init__()
        dims = [obs_dim, 64, 64, num_actions]
        gains = [(math.sqrt(2), math.sqrt(2))] * 2 + [(0.01, 1.0)]
        shapes = list(zip(dims, dims[1:], strict=False))
        self.weights = nn.ParameterList(
            torch.stack([nn.init.orthogonal_(torch.empty(shape), gain) for gain in pair])
            for shape, pair in zip(shapes, gains, strict=True)
        )
        self.biases = nn.ParameterList(torch.zeros(2, 1, size) for size in dims[1:])

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        (w1, w2, w3), (b1, b2, b3) = self.weights, self.biases
        # tanh(x) = 2 sigmoid(2 x) - 1, which PyTorch computes several times faster.
        x = torch.baddbmm(b1, obs.expand(2, -1, -1), w1, beta=2, alpha=2).sigmoid()
        x = torch.baddbmm(b2, 2 * x - 1, w2, beta=2, alpha=2).sigmoid()
        x = torch.baddbmm(b3, 2 * x - 1, w3)
        return x[0], x[1, :, 0]
