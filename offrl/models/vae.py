"""Conditional variational autoencoders as policies (Kingma & Welling, 2014; Sohn et al., 2015).

``posterior(z | a, s)`` and ``decoder(a | z, s)`` are trained together; while acting the latent
comes from the prior. Latents are ``[B, T, Z]``, one per time step.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offrl.config import Section
from offrl.models.draws import Generators, draw_index, random_rows
from offrl.models.encoder import Encoder, Obs
from offrl.models.heads import DeterministicHead, Outputs
from offrl.models.nets import Actor, encoder_from_config, mlp_outputs, trunk_from_config
from offrl.models.trunks import MLP
from offrl.specs import ObsSpec

Parts = Mapping[str, Tensor]
Shapes = dict[str, tuple[int, ...]]


class VAE(nn.Module):
    """Posterior, decoder and prior; ``losses`` trains them, ``sample`` acts."""

    def __init__(self, posterior: Actor, decoder: Actor, prior: "Prior", sum_errors: bool = False):
        super().__init__()
        self.posterior, self.decoder, self.prior = posterior, decoder, prior
        self.sum_errors = sum_errors  # true: sum errors over action dimensions; false: mean

    def losses(
        self, obs: Obs, actions: Any, temperature: float = 1.0, is_posterior_frozen: bool = False
    ) -> dict[str, Tensor]:
        """Compute the reconstruction error, the KL divergence and, for the log, the posterior's
        variance or the ``temperature`` of categorical latents, per time step ``[B, T]``."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not is_posterior_frozen):
            posterior, _ = self.posterior(obs, given=actions)
        z = self.prior.draw(posterior, temperature)
        output, _ = self.decoder(obs, given=z)
        return {
            "reconstruction": self.error(self.reconstruction(output), actions),
            **self.prior.losses(posterior, z, self.prior.parameters_for(obs), temperature),
        }

    def sample(
        self,
        obs: Obs,
        state: Any = None,
        generators: Generators = None,
        num_samples: int | None = None,
    ) -> tuple[Any, Any]:
        """Decode ``latents``. Returns actions ``[B, T, A]``, or ``[B, num_samples, A]``, and the
        decoder's state."""
        z = self.latents(obs, generators, num_samples)
        output, state = self.decoder(obs, None, state, given=z)
        return self.reconstruction(output), state

    def latents(
        self, obs: Obs, generators: Generators = None, num_samples: int | None = None
    ) -> Tensor:
        """Draw latents ``[B, T, Z]`` from the prior, or ``num_samples`` for one step."""
        some = next(iter(obs.values()))
        shape = len(some), some.shape[1] if num_samples is None else num_samples
        like = torch.empty(*shape, self.prior.latent_size, device=some.device)
        return self.prior.sample(self.prior.parameters_for(obs), like, generators)

    def reconstruction(self, output: Any) -> Any:
        """Return the actions that the decoder's output represents."""
        return output.mode()

    def error(self, reconstruction: Any, target: Any) -> Tensor:
        """Measure the squared error of each time step, ``[B, T]``."""
        errors = (reconstruction - target).square()
        return errors.sum(-1) if self.sum_errors else errors.mean(-1)


class ObservationVAE(VAE):
    """A VAE over observations ``{key: [B, T, ...]}``, such as subgoals, instead of actions."""

    def reconstruction(self, output: Parts) -> Parts:
        return output

    def error(self, reconstruction: Parts, target: Parts) -> Tensor:
        """Take the mean over the observations, or the sum (``sum_errors``)."""
        errors = [(reconstruction[key] - target[key]).square().flatten(2) for key in reconstruction]
        if self.sum_errors:
            return torch.stack([error.sum(-1) for error in errors]).sum(0)
        return torch.stack([error.mean(-1) for error in errors]).mean(0)


class ObservationPosterior(Actor):
    """``q(z | x, s)`` for observations ``x``, the group ``input`` of its encoder."""

    def forward(self, obs: Obs, given: Obs) -> tuple[Any, None]:  # type: ignore[override]
        features, _ = self.trunk(self.encoder(obs, None, given), None)  # type: ignore[misc]
        return self.head(features), None


class Prior(nn.Module):
    """``p(z)``, or ``p(z | s)`` with a network from observations to the parameters.

    Without either, the parameters are constants: N(0, 1), or uniform over classes.
    """

    posterior_shapes: Shapes  # of the parameters of q(z | a, s)
    latent_size: int

    def __init__(self, shapes: Shapes, learn: bool, net: Actor | None):
        super().__init__()
        self.learn, self.net = learn, net
        self.params = nn.ParameterDict()
        if learn and net is None:
            for name, shape in shapes.items():
                scale = 1 / math.sqrt(math.prod(shape))
                self.params[name] = nn.Parameter(torch.randn(1, *shape) * scale)

    def parameters_for(self, obs: Obs) -> Parts:
        """Compute ``{name: [B or 1, T or 1, *shape]}``; empty if they are constants."""
        if self.net is not None:
            return self.net(obs)[0] if self.learn else {}
        return {name: value[None] for name, value in self.params.items()}

    def draw(self, posterior: Parts, temperature: float) -> Tensor:
        """Draw a latent of the posterior, through which gradients flow."""
        raise NotImplementedError(type(self).__name__)

    def losses(
        self, posterior: Parts, z: Tensor, prior: Parts, temperature: float
    ) -> dict[str, Tensor]:
        """Compute ``kl``, ``KL(posterior || prior)`` in nats, for a sample ``z`` of the posterior,
        and a number for the log, ``[B, T]`` each."""
        raise NotImplementedError(type(self).__name__)

    def sample(self, prior: Parts, like: Tensor, generators: Generators) -> Tensor:
        """Draw latents of the shape of ``like``, ``[B, T, Z]``."""
        raise NotImplementedError(type(self).__name__)


class GaussianPrior(Prior):
    """N(0, 1), a learned Gaussian, or a mixture of ``num_modes`` of them."""

    def __init__(
        self, shapes: Shapes, learn: bool, net: Actor | None, latent_clip: float | None = None
    ):
        super().__init__(shapes, learn, net)
        self.num_modes, self.latent_size = shapes["mean"]
        self.posterior_shapes = dict.fromkeys(("mean", "logvar"), (self.latent_size,))
        self.latent_clip = latent_clip

    def draw(self, posterior: Parts, temperature: float) -> Tensor:
        noise = random_rows("randn", posterior["mean"], None)
        return _reparameterize(posterior["mean"], posterior["logvar"], noise)

    def losses(
        self, posterior: Parts, z: Tensor, prior: Parts, temperature: float
    ) -> dict[str, Tensor]:
        kl, variance = self._kl(posterior, z, prior), posterior["logvar"].detach().exp().mean(-1)
        return {"kl": kl, "variance": variance}

    def _kl(self, posterior: Parts, z: Tensor, prior: Parts) -> Tensor:
        mean, logvar = posterior["mean"], posterior["logvar"]
        if not self.learn:
            return 0.5 * (mean.square() + logvar.exp() - logvar - 1).sum(-1)
        if self.num_modes == 1:
            shift = (prior["mean"][..., 0, :] - mean).square()
            prior_logvar = prior["logvar"][..., 0, :]
            ratio = (shift + logvar.exp()) / prior_logvar.exp()
            return 0.5 * (ratio + prior_logvar - logvar - 1).sum(-1)
        # A mixture's divergence has no closed form: estimated at the sample.
        own = _log_normal(z, mean, logvar)
        modes = _log_normal(z[..., None, :], prior["mean"], prior["logvar"])
        return own - torch.logsumexp(self._log_weights(prior) + modes, dim=-1)

    def sample(self, prior: Parts, like: Tensor, generators: Generators) -> Tensor:
        if not self.learn:
            z = random_rows("randn", like, generators)
        else:
            weights = self._log_weights(prior).exp().expand(*like.shape[:2], -1)
            chosen = F.one_hot(draw_index(weights, generators), self.num_modes)[..., None]
            mean, logvar = ((prior[name] * chosen).sum(-2) for name in ("mean", "logvar"))
            z = _reparameterize(mean, logvar, random_rows("randn", like, generators))
        return z if self.latent_clip is None else z.clamp(-self.latent_clip, self.latent_clip)

    def _log_weights(self, prior: Parts) -> Tensor:
        weight = prior.get("weight", torch.zeros_like(prior["mean"][..., 0]))
        return F.log_softmax(weight, dim=-1)


class CategoricalPrior(Prior):
    """``latent_dim`` variables of ``num_classes`` each, as one vector of their one-hot codes;
    in training relaxed (Jang et al., 2017, arXiv:1611.01144)."""

    def __init__(self, shapes: Shapes, learn: bool, net: Actor | None, hard: bool = False):
        super().__init__(shapes, learn, net)
        self.latent_dim, self.num_classes = shapes["logit"]
        self.latent_size = self.latent_dim * self.num_classes
        self.posterior_shapes = {"logit": (self.latent_size,)}
        self.hard = hard

    def draw(self, posterior: Parts, temperature: float) -> Tensor:
        logits = posterior["logit"].unflatten(-1, (self.latent_dim, self.num_classes))
        return F.gumbel_softmax(logits, temperature, hard=self.hard).flatten(-2)

    def losses(
        self, posterior: Parts, z: Tensor, prior: Parts, temperature: float
    ) -> dict[str, Tensor]:
        logits = posterior["logit"].unflatten(-1, (self.latent_dim, self.num_classes))
        log_q, log_p = logits.log_softmax(-1), self._log_p(prior, z.device)
        kl = (log_q.exp() * (log_q - log_p)).sum((-1, -2))
        return {"kl": kl, "temperature": torch.full_like(posterior["logit"][..., 0], temperature)}

    def sample(self, prior: Parts, like: Tensor, generators: Generators) -> Tensor:
        weights = self._log_p(prior, like.device).exp()
        index = draw_index(weights.expand(*like.shape[:2], -1, -1), generators)
        return F.one_hot(index, self.num_classes).float().flatten(-2)

    def _log_p(self, prior: Parts, device: torch.device) -> Tensor:
        if self.learn:
            return prior["logit"].log_softmax(-1)
        shape = (1, 1, self.latent_dim, self.num_classes)
        return torch.full(shape, -math.log(self.num_classes), device=device)


def _reparameterize(mean: Tensor, logvar: Tensor, noise: Tensor) -> Tensor:
    return mean + (0.5 * logvar).clamp(-4.0, 15.0).exp() * noise


def _log_normal(x: Tensor, mean: Tensor, logvar: Tensor) -> Tensor:
    logvar = logvar.clamp(-8.0, 30.0)
    return -0.5 * ((x - mean).square() / logvar.exp() + logvar + math.log(2 * math.pi)).sum(-1)


def vae_from_config(config: Section, spec: ObsSpec, ac_dim: int, num_frames: int = 1) -> VAE:
    """Make the VAE policy that ``vae`` in a section describes; its decoder has the section's trunk.

    num_frames: see ``Encoder``.
    """
    vae = config["vae"]
    prior = prior_from_config(vae, spec, num_frames)
    shapes = prior.posterior_shapes
    posterior = mlp_outputs(spec, shapes, vae.encoder_layer_dims, num_frames, ac_dim)
    encoder = encoder_from_config(config, spec, num_frames) if vae.decoder.is_conditioned else None
    size_in = prior.latent_size + (encoder.output_dim if encoder else 0)
    trunk = trunk_from_config(config, size_in, vae.decoder_layer_dims)
    decoder = Actor(encoder, trunk, DeterministicHead(trunk.output_dim, ac_dim))
    return VAE(posterior, decoder, prior, vae.decoder.reconstruction_sum_across_elements)


def observation_vae_from_config(vae: Section, spec: ObsSpec, group: str, num_frames: int) -> VAE:
    """Make the VAE over the observations of a ``group``, given those of the others."""
    prior = prior_from_config(vae, spec, num_frames)
    inputs = ObsSpec({**spec.groups, "input": spec.groups[group]})
    encoder = Encoder(inputs, ("input", "obs", "goal"), num_frames=num_frames)
    trunk = MLP(encoder.output_dim, vae["encoder_layer_dims"])
    head = Outputs(trunk.output_dim, prior.posterior_shapes)
    posterior = ObservationPosterior(encoder, trunk, head)
    context = Encoder(spec, num_frames=num_frames) if vae["decoder"].is_conditioned else None
    size_in = prior.latent_size + (context.output_dim if context else 0)
    trunk = MLP(size_in, vae["decoder_layer_dims"])
    decoder = Actor(context, trunk, Outputs(trunk.output_dim, spec.shapes(group)))
    sums = vae["decoder"].reconstruction_sum_across_elements
    return ObservationVAE(posterior, decoder, prior, sums)


def prior_from_config(vae: Section, spec: ObsSpec, num_frames: int) -> Prior:
    """Make the prior that ``prior`` in the section ``vae`` describes."""
    config, shapes = vae["prior"], Shapes()
    if config.use_categorical:
        shapes["logit"] = (vae["latent_dim"], config.categorical_dim)
    else:
        num_modes = config.gmm_num_modes if config.use_gmm else 1
        shapes["mean"] = shapes["logvar"] = (num_modes, vae["latent_dim"])
        if config.use_gmm and config.gmm_learn_weights:
            shapes["weight"] = (num_modes,)
    net = None
    if config.is_conditioned:
        net = mlp_outputs(spec, shapes, vae["prior_layer_dims"], num_frames)
    if config.use_categorical:
        return CategoricalPrior(shapes, config.learn, net, config.categorical_gumbel_softmax_hard)
    return GaussianPrior(shapes, config.learn, net, vae["latent_clip"])
