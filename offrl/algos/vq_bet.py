"""VQ-BeT, the Vector-Quantized Behavior Transformer (Lee et al., 2024, arXiv:2403.03181): learn
codes of action chunks, then which codes follow from observations, and offsets to what they mean."""

import math
from collections.abc import Callable
from typing import Any

from pydantic import Field

from offrl import models
from offrl.algos.base import Batch, Generators, Info, Obs, masked_mean, register_algo
from offrl.algos.shared.chunks import ChunkConfig, ChunkPolicy, HorizonConfig
from offrl.config import Count, NonNegative, Positive, Section, Share
from offrl.config.algo import adamw
from offrl.config.section import options_of
from offrl.lazy import Tensor, torch

NUM_FIRST_CHUNKS = 4096  # from which codes are initialised


class VQConfig(Section):
    """Codes of chunks, and how they are learned."""

    epochs: Share = 0.25
    """Share of the training's epochs in which codes are learned and no policy, the first ones, and
    not all. 0: none, as the codes are those of experiment.ckpt_path."""
    num_codes: int = Field(16, ge=2)
    """Number of codes in a codebook."""
    num_layers: Count = 2
    """Number of codebooks, each of which refines those before it."""
    latent_dim: Count = 64
    """Size of a code."""
    layer_dims: list[Count] = [128, 128]
    """Sizes of the hidden layers of the encoder and the decoder."""
    commitment_weight: NonNegative = 1.0
    """Weight of the distance of chunks from their codes."""


class BehaviorTransformerConfig(Section):
    embed_dim: Count = 128
    """Size of an embedding."""
    num_layers: Count = 6
    """Number of layers."""
    num_heads: Count = 8
    """Number of attention heads; embed_dim is a multiple."""
    emb_dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout of embeddings."""
    attn_dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout of attention."""
    block_output_dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout of layers."""


class VQBeTConfig(ChunkConfig):
    ALGO_NAME = "vq_bet"

    OPTIMIZERS = {"codes": adamw(1e-4, initial=1e-3), "policy": adamw(1e-4, initial=1e-4)}
    horizon: HorizonConfig = HorizonConfig(
        observation_horizon=5, action_horizon=5, prediction_horizon=9
    )
    vq: VQConfig = VQConfig()
    """The codes of chunks."""
    transformer: BehaviorTransformerConfig = BehaviorTransformerConfig()
    """Sizes of the Transformer."""
    focal_gamma: NonNegative = 2.0
    """Power by which codes count less that are predicted well (Lin et al., 2017, arXiv:1708.02002).
    0: as in a cross-entropy."""
    secondary_weight: NonNegative = 0.5
    """Weight of a code against that of the codebook before it."""
    offset_weight: NonNegative = 10.0
    """Weight of the error of actions."""
    temperature: Positive = 1.0
    """Temperature at which codes are drawn while acting: near 0, the likeliest."""


@register_algo(VQBeTConfig)
class VQBeT(ChunkPolicy):
    """``codes``, a VQ-VAE of chunks, which is trained first, and ``policy``, a Transformer."""

    algo_config: VQBeTConfig

    def _create_networks(self) -> None:
        config, num_epochs = self.algo_config, self.global_config.train.num_epochs
        vq = options_of(config.vq, "commitment_weight", "epochs")
        self._code_epochs = min(num_epochs - 1, math.ceil(config.vq.epochs * num_epochs))
        length, num_frames = config.horizon.chunk_length, config.horizon.observation_horizon
        self.nets["codes"] = codes = models.ChunkVAE(length, self.ac_dim, **vq)
        options = config.transformer.to_dict()
        self.nets["policy"] = models.BehaviorTransformer(
            self.obs_spec, num_frames, codes, **options
        )

    def inspect_data(self, values: Callable[..., Tensor]) -> None:
        if self.algo_config.vq.epochs and not self._code_epochs:
            raise ValueError(
                "train.num_epochs: 1 epoch is too few for codes and a policy; set it to 2 or more, "
                "or algo.vq.epochs to 0 with a checkpoint that has codes (experiment.ckpt_path)"
            )
        actions = self.to_device(values("actions"))
        chunks = actions.unfold(0, self.algo_config.horizon.chunk_length, 1).transpose(1, 2)
        some = torch.randint(len(chunks), (NUM_FIRST_CHUNKS,), device=chunks.device)
        self.nets["codes"].begin_with(chunks[some])

    @property
    def learns_codes(self) -> bool:
        return self.epoch is not None and self.epoch <= self._code_epochs

    def trains(self, name: str) -> bool:
        return super().trains(name) and (name == "codes") == self.learns_codes

    def graph_key(self) -> tuple[Any, ...]:
        return *super().graph_key(), self.learns_codes

    def _windows(self, steps: Tensor) -> Tensor:
        """Take the chunk from each observation on, ``[B * To, H, ...]``, of ``[B, Tp, ...]``."""
        windows = steps.unfold(1, self.algo_config.horizon.chunk_length, 1)
        return windows.flatten(0, 1).transpose(1, 2)

    def codes_loss(self, chunks: Tensor, mask: Tensor | None, known: Tensor | None) -> Info:
        """Compute ``|a - psi(z_q)| + |sg[phi(a)] - z_q|^2 + lambda |phi(a) - sg[z_q]|^2`` (equation
        2)."""
        decoded, codebook, commitment = self.nets["codes"](chunks)
        error = masked_mean((decoded - chunks).abs().mean(-1), mask)
        weight = self.algo_config.vq.commitment_weight
        loss = error + masked_mean(codebook, known) + weight * masked_mean(commitment, known)
        return {"Codes_Loss": loss, "Reconstruction_Loss": error}

    def policy_loss(
        self, batch: Batch, chunks: Tensor, mask: Tensor | None, known: Tensor | None
    ) -> Info:
        """Compute focal losses of the codes, and ``|a - (psi(z_q) + offset)|`` (equations 3, 4)."""
        config, net, vq = self.algo_config, self.nets["policy"], self.nets["codes"]
        with torch.no_grad():
            codes = vq.codes(chunks)
            meant = vq.decode(codes)
        features = net(batch["obs"]).flatten(0, 1)
        all_logits, offsets = net.predict(features, lambda layer, _: codes[:, layer])
        focal: Any = sum(
            config.secondary_weight**layer * _focal(logits, codes[:, layer], config.focal_gamma)
            for layer, logits in enumerate(all_logits)
        )
        focal = masked_mean(focal, known)
        offset = (meant + offsets.view_as(chunks) - chunks).abs().mean(-1)
        offset = masked_mean(offset, mask)
        loss = focal + config.offset_weight * offset
        return {"Policy_Loss": loss, "Focal_Loss": focal, "Offset_Loss": offset}

    def update(self, batch: Batch) -> Info:
        chunks, mask = self._windows(batch["actions"]), batch["pad_mask"]
        known = None  # the share of each window's steps that count
        if mask is not None:
            windows = self._windows(mask)
            mask, known = map(self.microbatches.counted, (windows, windows.mean(1)))
        info: Info = {}
        if self.learns_codes or self.validates:  # the losses of all epochs compare
            info |= self.codes_loss(chunks, mask, known)
            info["Codes_Grad_Norms"] = self.optimize("codes", info["Codes_Loss"])
        if not self.learns_codes or self.validates:
            info |= self.policy_loss(batch, chunks, mask, known)
            info["Policy_Grad_Norms"] = self.optimize("policy", info["Policy_Loss"])
        losses = [info[name] for name in ("Codes_Loss", "Policy_Loss") if name in info]
        return info | {"loss": sum(losses[1:], losses[0])}

    def sample(self, obs: Obs, goal: Obs | None, generators: Generators) -> Tensor:
        net, temperature = self.nets["policy"], self.algo_config.temperature
        codes, offsets = net.sample(net(obs)[:, -1], temperature, generators)
        chunks = self.nets["codes"].decode(codes)
        return chunks + offsets.view_as(chunks)


def _focal(logits: Tensor, codes: Tensor, gamma: float) -> Tensor:
    """Compute the focal loss of each chunk, ``[N]``, for logits ``[N, K]`` of its code ``[N]``."""
    log_p = -torch.nn.functional.cross_entropy(logits, codes, reduction="none")
    return -((1 - log_p.exp()) ** gamma) * log_p
