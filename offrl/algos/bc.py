"""Behavioural cloning: maximise the likelihood of the demonstrated actions.

With a deterministic head it is regression (Pomerleau, 1989), with a Gaussian or a mixture head
maximum likelihood; the mixture is BC-GMM of Mandlekar et al. (2021, arXiv:2108.03298). With
discrete actions it is classification.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import model_validator

from offrl import models
from offrl.algos.base import (
    Batch,
    Info,
    Obs,
    PolicyAlgo,
    Seen,
    masked_mean,
    register_algo_factory_func,
)
from offrl.config import AlgoConfig, Count, NonNegative, Section
from offrl.config.networks import GaussianConfig, GMMConfig, RNNConfig, TransformerConfig, VAEConfig
from offrl.lazy import Tensor, torch
from offrl.tree import map_leaves

LOG_NAMES = {  # robomimic's names of loss terms
    "l2": "L2_Loss",
    "l1": "L1_Loss",
    "cos": "Cosine_Loss",
    "reconstruction": "Reconstruction_Loss",
    "kl": "KL_Loss",
    "variance": "Encoder_Variance",
    "temperature": "Gumbel_Temperature",
}


def vae_loss(
    net: Any, config: VAEConfig, epoch: int | None, obs: Any, target: Any, is_frozen: bool = False
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute a VAE's loss, ``reconstruction + kl_weight KL``, and the means of its terms.

    is_frozen: do not train the posterior.
    """
    terms = net.losses(obs, target, config.prior.temperature(epoch or 0), is_frozen)
    terms = {name: term.mean() for name, term in terms.items()}
    return terms["reconstruction"] + config.kl_weight * terms["kl"], terms


class LossConfig(Section):
    """Weights of the terms of a deterministic policy's loss."""

    l2_weight: NonNegative = 1.0
    """Weight of the squared error."""
    l1_weight: NonNegative = 0.0
    """Weight of the Huber error."""
    cos_weight: NonNegative = 0.0
    """Weight of the cosine distance of an action's first three numbers, a translation."""

    @model_validator(mode="after")
    def _learns_something(self) -> "LossConfig":
        if not (self.l2_weight or self.l1_weight or self.cos_weight):
            raise ValueError("all weights are zero; give one of them a value")
        return self


class CategoricalConfig(Section):
    """The head of discrete actions."""

    low_noise_eval: bool = True
    """Take the likeliest action in evaluation. If false, one at random."""


class BCConfig(AlgoConfig):
    ALGO_NAME = "bc"

    OPTIMIZERS = {"policy": 1e-4}
    loss: LossConfig = LossConfig()
    """Weights of the errors of a policy that is no distribution."""
    actor_layer_dims: list[Count] = [1024, 1024]
    """Sizes of the hidden layers. They are behind an RNN, if any."""
    gaussian: GaussianConfig = GaussianConfig()
    """A Gaussian policy."""
    gmm: GMMConfig = GMMConfig()
    """A policy that is a mixture of Gaussians."""
    categorical: CategoricalConfig = CategoricalConfig()
    """The policy for discrete actions."""
    vae: VAEConfig = VAEConfig()
    """A policy that is a VAE."""
    rnn: RNNConfig = RNNConfig()
    """Memory of earlier steps: an RNN."""
    transformer: TransformerConfig = TransformerConfig()
    """Memory of earlier steps: a Transformer."""

    @model_validator(mode="after")
    def _switches_agree(self) -> "BCConfig":
        for switches in (("gaussian", "gmm", "vae"), ("rnn", "transformer")):
            on = [f"algo.{name}.enabled" for name in switches if self[name].enabled]
            if len(on) > 1:
                raise ValueError(f"{' and '.join(on)} are both true; enable one of them")
        transformer = self.transformer
        if transformer.pred_future_acs and not transformer.supervise_all_steps:
            raise ValueError("algo.transformer.pred_future_acs: needs supervise_all_steps")
        self.vae.check()
        return self


class BC(PolicyAlgo):
    """One network, ``policy``: ``pi(a | s, g)``."""

    algo_config: BCConfig

    ACTIONS = ("real-valued", "discrete")

    @classmethod
    def window(cls, algo_config: BCConfig) -> dict[str, int]:
        transformer = algo_config.transformer
        if not transformer.enabled:
            return {"seq_length": algo_config.rnn.horizon} if algo_config.rnn.enabled else {}
        context = transformer.context_length
        return {"frame_stack": context, "seq_length": context if transformer.pred_future_acs else 1}

    def _create_networks(self) -> None:
        config, seq_length = self.algo_config, self.global_config.train.seq_length
        parts = config, self.obs_spec, self.ac_dim
        if config.vae.enabled and not self.is_discrete:
            self.nets["policy"] = models.vae_from_config(*parts)
        else:
            self.nets["policy"] = models.actor_from_config(*parts, is_discrete=self.is_discrete)
        if config.transformer.enabled:
            self.global_config.check_window("frame_stack", "transformer.context_length")
            context = config.transformer.context_length
            if config.transformer.pred_future_acs and seq_length < context:
                raise ValueError(
                    f"train.seq_length: {seq_length}, but algo.transformer.pred_future_acs needs "
                    f"the actions of {context} steps to come; set it to {context}"
                )
        if config.rnn.enabled and self.num_frames - 1 + seq_length < config.rnn.horizon:
            self.global_config.check_window("seq_length", "rnn.horizon", may_be_less=True)

    def process_batch_for_training(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        seen, targets, *_ = self._steps()
        window = {
            **batch,
            "obs": map_leaves(lambda x: x[:, seen], batch["obs"]),
            **{key: batch[key][:, targets] for key in ("actions", "pad_mask") if key in batch},
        }
        return super().process_batch_for_training(window)

    def _steps(self) -> tuple[slice, slice, slice, int]:
        """Return the steps of a window that are seen, those that are targets, the outputs for
        these, and the output of the present action.

        These are all steps, but for a Transformer, which is trained on its last step or on every
        one of its context, to act now or (``pred_future_acs``) for the whole context to come.
        """
        config = self.algo_config.transformer
        context = config.context_length
        if not config.enabled:
            return slice(None), slice(None), slice(None), -1
        # A VAE infers a latent for every step, and so answers for all.
        if not (config.supervise_all_steps or self.algo_config.vae.enabled):
            last = slice(context - 1, context)
            return slice(context), last, last, -1
        if config.pred_future_acs:
            return slice(context), slice(context - 1, 2 * context - 1), slice(None), 0
        return slice(context), slice(context), slice(None), -1

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Compute the terms of the loss, per time step ``[B, T]``."""
        net, vae = self.nets["policy"], self.algo_config.vae
        if vae.enabled:
            temperature = vae.prior.temperature(self.epoch or 0)
            return net.losses(batch["obs"], batch["actions"], temperature)
        *_, answers, _ = self._steps()
        pi, _ = net(batch["obs"], answers=answers)
        losses = {}
        for term, weight in self._weights(pi.LOSSES).items():
            # One without weight is for the log alone: it needs no graph.
            with torch.set_grad_enabled(torch.is_grad_enabled() and weight != 0):
                losses[term] = pi.loss(term, batch["actions"])
        return losses

    def _weights(self, terms: Iterable[str]) -> dict[str, float]:
        loss = self.algo_config.loss
        known = {
            "nll": 1.0,
            "l2": loss.l2_weight,
            "l1": loss.l1_weight,
            "cos": loss.cos_weight,
            "reconstruction": 1.0,
            "kl": self.algo_config.vae.kl_weight,
        }
        return {term: known.get(term, 0.0) for term in terms}

    def update(self, batch: Batch) -> Info:
        mask = batch["pad_mask"]
        terms = {term: masked_mean(each, mask) for term, each in self.losses(batch).items()}
        weighted = [w * terms[term] for term, w in self._weights(terms).items() if w]
        loss = sum(weighted[1:], weighted[0])
        logs = {LOG_NAMES[term]: value for term, value in terms.items() if term in LOG_NAMES}
        if "nll" in terms:
            logs["Log_Likelihood"] = -terms["nll"]
        return {"loss": loss, **logs, "Policy_Grad_Norms": self.optimize("policy", loss)}

    def act(self, seen: Seen) -> tuple[Tensor, Any]:
        *_, now = self._steps()
        obs, goal, state, generators, _ = seen
        if self.algo_config.rnn.enabled:  # it remembers the frames before
            obs = map_leaves(lambda x: x[:, -1:], obs)
        if self.algo_config.vae.enabled:
            actions, state = self.nets["policy"].sample(self.prepare(obs, goal), state, generators)
            return actions[:, now], state
        pi, state = self.action_distribution(obs, goal, state)
        pi = pi.at(now)
        if self._acts_with_low_noise():
            pi = pi.low_noise()
        return pi.sample(generators), state

    def action_distribution(
        self, obs: Obs, goal: Obs | None = None, state: Any = None
    ) -> tuple[Any, Any]:
        if self.algo_config.vae.enabled:
            return super().action_distribution(obs, goal, state)
        return self.nets["policy"](self.prepare(obs, goal), None, state)

    def _acts_with_low_noise(self) -> bool:
        """Say whether to act without noise: as robomimic, unless it explores or the config says
        otherwise."""
        config = self.algo_config
        real = config.gmm if config.gmm.enabled else config.gaussian
        head = config.categorical if self.is_discrete else real
        return head.low_noise_eval and not self.explores


# Names by which scripts for robomimic know a policy; ``BC`` does all of it. A variant that
# robomimic lacks has the name of the nearest one.


class BC_Gaussian(BC):
    """A Gaussian head behind an MLP."""


class BC_GMM(BC_Gaussian):
    """A mixture head behind an MLP."""


class BC_VAE(BC):
    """A VAE, with any trunk."""


class BC_RNN(BC):
    """A deterministic or a Gaussian head behind an RNN."""


class BC_RNN_GMM(BC_RNN):
    """A mixture head behind an RNN."""


class BC_Transformer(BC):
    """A deterministic or a Gaussian head behind a Transformer."""


class BC_Transformer_GMM(BC_Transformer):
    """A mixture head behind a Transformer."""


@register_algo_factory_func("bc")
def algo_config_to_class(algo_config: BCConfig) -> tuple[type[BC], dict[str, Any]]:
    """Choose the class that robomimic has for these switches, or the nearest."""
    has_gmm = algo_config.gmm.enabled
    if algo_config.vae.enabled:
        return BC_VAE, {}
    if algo_config.rnn.enabled:
        return (BC_RNN_GMM if has_gmm else BC_RNN), {}
    if algo_config.transformer.enabled:
        return (BC_Transformer_GMM if has_gmm else BC_Transformer), {}
    if has_gmm:
        return BC_GMM, {}
    return (BC_Gaussian if algo_config.gaussian.enabled else BC), {}
