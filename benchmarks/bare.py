"""Networks in plain PyTorch, written down as directly as can be: what the arithmetic costs.

Each maps windows of observations ``[B, T, O]`` and actions ``[B, T, A]`` to a loss.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class BareMLP(nn.Module):
    """Two layers of 1024, squared error."""

    def __init__(self, obs_dim: int, ac_dim: int, linear: type[nn.Linear] = nn.Linear):
        super().__init__()
        layers = [linear(obs_dim, 1024), nn.ReLU(), linear(1024, 1024), nn.ReLU()]
        self.net = nn.Sequential(*layers, linear(1024, ac_dim), nn.Tanh())

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        return F.mse_loss(self.net(obs), actions)


class BareMixture(nn.Module):
    """Negative log-likelihood of a mixture of five Gaussians."""

    def __init__(self, dim: int, ac_dim: int, linear: type[nn.Linear]):
        super().__init__()
        self.mean, self.scale = linear(dim, 5 * ac_dim), linear(dim, 5 * ac_dim)
        self.logits = linear(dim, 5)

    def forward(self, features: Tensor, actions: Tensor) -> Tensor:
        mean = torch.tanh(self.mean(features)).unflatten(-1, (5, -1))
        std = F.softplus(self.scale(features)).unflatten(-1, (5, -1)) + 1e-4
        z = (actions[..., None, :] - mean) / std
        log_prob = (-0.5 * z * z - std.log() - 0.5 * math.log(2 * math.pi)).sum(-1)
        return -torch.logsumexp(self.logits(features).log_softmax(-1) + log_prob, dim=-1).mean()


class BareGMM(nn.Module):
    """Two layers of 1024, five Gaussians."""

    def __init__(self, obs_dim: int, ac_dim: int, linear: type[nn.Linear] = nn.Linear):
        super().__init__()
        layers = [linear(obs_dim, 1024), nn.ReLU(), linear(1024, 1024), nn.ReLU()]
        self.net, self.head = nn.Sequential(*layers), BareMixture(1024, ac_dim, linear)

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        return self.head(self.net(obs), actions)


class BareVAE(nn.Module):
    """Encoder and decoder of 300 and 400, a latent of 14, the prior N(0, 1)."""

    def __init__(self, obs_dim: int, ac_dim: int, linear: type[nn.Linear] = nn.Linear):
        super().__init__()

        def net(size: int) -> nn.Sequential:
            return nn.Sequential(linear(size, 300), nn.ReLU(), linear(300, 400), nn.ReLU())

        self.encoder, self.mean, self.logvar = (
            net(obs_dim + ac_dim),
            linear(400, 14),
            linear(400, 14),
        )
        self.decoder, self.action = net(obs_dim + 14), linear(400, ac_dim)

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        features = self.encoder(torch.cat([actions, obs], dim=-1))
        mean, logvar = self.mean(features), self.logvar(features)
        z = mean + (0.5 * logvar).exp() * torch.randn_like(mean)
        decoded = torch.tanh(self.action(self.decoder(torch.cat([z, obs], dim=-1))))
        kl = 0.5 * (mean.square() + logvar.exp() - logvar - 1).sum(-1).mean()
        return F.mse_loss(decoded, actions) + kl


class BareRNN(nn.Module):
    """LSTM of 2 x 400, five Gaussians."""

    def __init__(self, obs_dim: int, ac_dim: int, linear: type[nn.Linear] = nn.Linear):
        super().__init__()
        self.rnn = nn.LSTM(obs_dim, 400, 2, batch_first=True)
        self.head = BareMixture(400, ac_dim, linear)

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        return self.head(self.rnn(obs)[0], actions)


class BareTransformer(nn.Module):
    """Six layers of 512 with eight heads, causal, five Gaussians at the last step."""

    def __init__(self, obs_dim: int, ac_dim: int, linear: type[nn.Linear] = nn.Linear):
        super().__init__()
        self.embed = linear(obs_dim, 512)
        self.positions = nn.Parameter(torch.zeros(1, 10, 512))
        self.norms = nn.ModuleList(nn.LayerNorm(512) for _ in range(14))
        self.qkv = nn.ModuleList(linear(512, 1536, bias=False) for _ in range(6))
        self.out = nn.ModuleList(linear(512, 512) for _ in range(6))
        self.up = nn.ModuleList(linear(512, 2048) for _ in range(6))
        self.down = nn.ModuleList(linear(2048, 512) for _ in range(6))
        self.head = BareMixture(512, ac_dim, linear)

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        x = F.dropout(self.norms[12](self.embed(obs) + self.positions), 0.1)
        for i in range(6):
            qkv = self.qkv[i](self.norms[2 * i](x)).unflatten(-1, (3, 8, 64)).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(*qkv, dropout_p=0.1, is_causal=True)
            x = x + F.dropout(self.out[i](mixed.transpose(1, 2).flatten(2)), 0.1)
            x = x + F.dropout(self.down[i](F.gelu(self.up[i](self.norms[2 * i + 1](x)))), 0.1)
        return self.head(self.norms[13](x)[:, -1:], actions[:, -1:])
