"""Behavioural cloning: maximise the likelihood of the demonstrated actions.

With a deterministic head it is regression (Pomerleau, 1989), with a Gaussian or a mixture head
maximum likelihood; the mixture is BC-GMM of Mandlekar et al. (2021, arXiv:2108.03298).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator

from offrl import models
from offrl.algos.base import PolicyAlgo, register_algo_factory_func
from offrl.config import AlgoConfig, FreeMap, Map, OptimConfig, Section


class LossConfig(Section):
    """Weights of the terms of a deterministic policy's loss."""

    l2_weight: float = 1.0
    l1_weight: float = 0.0
    cos_weight: float = 0.0

    @model_validator(mode="after")
    def _learns_something(self) -> LossConfig:
        if not (self.l2_weight or self.l1_weight or self.cos_weight):
            raise ValueError("all weights are zero; give one of them a value")
        return self


class GaussianConfig(Section):
    enabled: bool = False
    fixed_std: bool = False
    init_std: float = 0.1
    min_std: float = 0.01
    std_activation: Literal["softplus", "exp"] = "softplus"
    low_noise_eval: bool = True


class GMMConfig(Section):
    enabled: bool = False
    num_modes: int = Field(5, ge=1)
    min_std: float = 1e-4
    std_activation: Literal["softplus", "exp"] = "softplus"
    low_noise_eval: bool = True


class VAEDecoderConfig(Section):
    is_conditioned: bool = True
    reconstruction_sum_across_elements: bool = False


class VAEPriorConfig(Section):
    learn: bool = False
    is_conditioned: bool = False
    use_gmm: bool = False
    gmm_num_modes: int = 10
    gmm_learn_weights: bool = False
    use_categorical: bool = False
    categorical_dim: int = 10
    categorical_gumbel_softmax_hard: bool = False
    categorical_init_temp: float = 1.0
    categorical_temp_anneal_step: float = 0.001
    categorical_min_temp: float = 0.3


class VAEConfig(Section):
    enabled: bool = False
    latent_dim: int = 14
    latent_clip: float | None = None
    kl_weight: float = 1.0
    decoder: VAEDecoderConfig = VAEDecoderConfig()
    prior: VAEPriorConfig = VAEPriorConfig()
    encoder_layer_dims: list[int] = [300, 400]
    decoder_layer_dims: list[int] = [300, 400]
    prior_layer_dims: list[int] = [300, 400]


class RNNConfig(Section):
    enabled: bool = False
    horizon: int = 10
    hidden_dim: int = 400
    rnn_type: Literal["LSTM", "GRU"] = "LSTM"
    num_layers: int = 2
    open_loop: bool = False
    kwargs: FreeMap = Map(bidirectional=False)


class TransformerConfig(Section):
    enabled: bool = False
    context_length: int = 10
    embed_dim: int = 512
    num_layers: int = 6
    num_heads: int = 8
    emb_dropout: float = 0.1
    attn_dropout: float = 0.1
    block_output_dropout: float = 0.1
    sinusoidal_embedding: bool = False
    activation: str = "gelu"
    supervise_all_steps: bool = False
    nn_parameter_for_timesteps: bool = True
    pred_future_acs: bool = False


class BCConfig(AlgoConfig):
    ALGO_NAME: ClassVar[str] = "bc"

    optim_params: dict[str, OptimConfig] = {"policy": OptimConfig()}
    loss: LossConfig = LossConfig()
    actor_layer_dims: list[int] = [1024, 1024]
    gaussian: GaussianConfig = GaussianConfig()
    gmm: GMMConfig = GMMConfig()
    vae: VAEConfig = VAEConfig()
    rnn: RNNConfig = RNNConfig()
    transformer: TransformerConfig = TransformerConfig()

    @model_validator(mode="after")
    def _switches_agree(self) -> BCConfig:
        for switches in (("gaussian", "gmm", "vae"), ("rnn", "transformer")):
            on = [f"algo.{name}.enabled" for name in switches if self[name].enabled]
            if len(on) > 1:
                raise ValueError(f"{' and '.join(on)} are both true; enable one of them")
        return self


@register_algo_factory_func("bc")
def algo_config_to_class(algo_config: BCConfig) -> tuple[type[BC], dict[str, Any]]:
    return BC, {}


class BC(PolicyAlgo):
    """One network, ``policy``: ``pi(a | s, g)``."""

    def _create_networks(self) -> None:
        self.nets["policy"] = models.actor_from_config(self.algo_config, self.obs_spec, self.ac_dim)

    def process_batch_for_training(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        batch = self.to_device(
            {k: batch.get(k) for k in ("obs", "goal_obs", "actions", "pad_mask")}
        )
        return {
            "obs": self.normalize_obs(batch["obs"]),
            "goal_obs": self.normalize_obs(batch["goal_obs"]),
            "actions": batch["actions"],
            "pad_mask": batch["pad_mask"],
        }

    def train_on_batch(
        self, batch: dict[str, Any], epoch: int, validate: bool = False
    ) -> dict[str, torch.Tensor]:
        with torch.set_grad_enabled(not validate):
            pi, _ = self.nets["policy"](batch["obs"], batch["goal_obs"])
            weights = {term: self._weight(term) for term in pi.LOSSES}
            terms = {}
            for term, weight in weights.items():
                # One without weight is for the log alone: it needs no graph.
                with torch.set_grad_enabled(not validate and weight != 0):
                    loss = pi.loss(term, batch["actions"])
                    terms[term] = masked_mean(loss, batch["pad_mask"])
            loss = sum(weight * terms[term] for term, weight in weights.items() if weight)

        info = {"loss": loss.detach()} | {name: term.detach() for name, term in terms.items()}
        if not validate:
            info["policy_grad_norm"] = self.optimize("policy", loss)
        return info

    def _weight(self, term: str) -> float:
        return 1.0 if term == "nll" else self.algo_config.loss[f"{term}_weight"]

    def log_info(self, info: Mapping[str, torch.Tensor]) -> dict[str, float]:
        logs = super().log_info(info)
        if "nll" in info:
            logs["Log_Likelihood"] = -float(info["nll"])
        names = {
            "l2": "L2_Loss",
            "l1": "L1_Loss",
            "cos": "Cosine_Loss",
            "policy_grad_norm": "Policy_Grad_Norms",
        }
        return logs | {name: float(info[key]) for key, name in names.items() if key in info}

    def act(
        self,
        obs: Mapping[str, torch.Tensor],
        goal: Mapping[str, torch.Tensor] | None = None,
        state: Any = None,
        generators: Sequence[torch.Generator | None] | None = None,
    ) -> tuple[torch.Tensor, Any]:
        pi, state = self.nets["policy"](self.normalize_obs(obs), self.normalize_obs(goal), state)
        pi = pi.at(-1)
        if self._acts_with_low_noise():
            pi = pi.low_noise()
        return pi.sample(generators), state

    def _acts_with_low_noise(self) -> bool:
        """As robomimic: in eval mode, unless the config says otherwise."""
        config = self.algo_config
        head = config.gmm if config.gmm.enabled else config.gaussian
        return head.low_noise_eval and not self.nets.training


def masked_mean(values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Mean over ``[B, T]``; with a mask ``[B, T, 1]`` over the steps where it is one."""
    if mask is None:
        return values.mean()
    mask = mask.squeeze(-1)
    return (values * mask).sum() / mask.sum()
