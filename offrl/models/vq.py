"""Residual vector quantisation of action chunks (Lee et al., 2024, arXiv:2403.03181, section 4.1),
and the Transformer that predicts its codes (section 4.2)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from offrl.kernels.layers import Linear
from offrl.models.backbones import with_group_norms
from offrl.models.draws import Generators, draw_index
from offrl.models.encoder import Encoder
from offrl.models.transformer import Transformer
from offrl.models.trunks import perceptron
from offrl.specs import ObsSpec

NUM_LLOYD_STEPS = 20


class ChunkVAE(nn.Module):
    """A VQ-VAE (van den Oord et al., 2017, arXiv:1711.00937) of chunks ``[N, H, A]``, whose latent
    is a sum of codes, one of each of ``num_layers`` codebooks: each quantises what is left."""

    def __init__(
        self,
        num_steps: int,
        ac_dim: int,
        num_codes: int,
        num_layers: int,
        latent_dim: int,
        layer_dims: list[int],
    ):
        super().__init__()
        self.shape = num_steps, ac_dim
        size = num_steps * ac_dim
        self.encoder = perceptron(size, layer_dims, latent_dim)
        self.decoder = perceptron(latent_dim, layer_dims, size)
        self.codebooks = nn.Parameter(torch.randn(num_layers, num_codes, latent_dim))

    def quantize(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Find sums of codes ``[N, D]`` nearest to latents ``[N, D]``, and the codes ``[N, L]``."""
        residual, codes = latents, []
        for book in self.codebooks:
            codes.append(torch.cdist(residual, book).argmin(-1))
            residual = residual - book[codes[-1]]
        return latents - residual, torch.stack(codes, dim=-1)

    def codes(self, chunks: Tensor) -> Tensor:
        """Find the codes ``[N, L]`` of chunks."""
        return self.quantize(self.encoder(chunks.flatten(1)))[1]

    def decode(self, codes: Tensor) -> Tensor:
        """Decode the chunks that codes stand for."""
        chosen = zip(self.codebooks, codes.unbind(-1), strict=True)
        return self._decoded(sum(book[i] for book, i in chosen))  # type: ignore[arg-type]

    def forward(self, chunks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Reconstruct chunks, with straight-through gradients. Returns them and, by chunk ``[N]``,
        the distance of codes from latents as a loss of the codes and of the encoder."""
        latents = self.encoder(chunks.flatten(1))
        quantized, _ = self.quantize(latents)
        codebook = (latents.detach() - quantized).square().mean(-1)
        commitment = (latents - quantized.detach()).square().mean(-1)
        return self._decoded(latents + (quantized - latents).detach()), codebook, commitment

    def _decoded(self, latents: Tensor) -> Tensor:
        return self.decoder(latents).unflatten(-1, self.shape)

    @torch.no_grad()
    def begin_with(self, chunks: Tensor) -> None:
        """Set codes to means of clusters of these chunks' latents, so that each of them is used."""
        residual = self.encoder(chunks.flatten(1))
        for book in self.codebooks:
            book.copy_(residual[torch.randint(len(residual), (len(book),), device=book.device)])
            for _ in range(NUM_LLOYD_STEPS):
                nearest = F.one_hot(torch.cdist(residual, book).argmin(-1), len(book)).to(residual)
                counts = nearest.sum(0)[:, None]
                means = nearest.t() @ residual / counts.clamp(min=1)
                book.copy_(torch.where(counts > 0, means, book))
            residual = residual - book[torch.cdist(residual, book).argmin(-1)]


class BehaviorTransformer(nn.Module):
    """Observations ``[B, T, ...]`` to features ``[B, T, D]``, which predict the codes of a chunk,
    one after the other, and offsets to the actions that the codes stand for."""

    def __init__(self, spec: ObsSpec, num_frames: int, codes: ChunkVAE, **transformer: Any):
        super().__init__()
        num_layers, num_codes, _ = codes.codebooks.shape
        steps, ac_dim = codes.shape
        self.encoder = with_group_norms(Encoder(spec, core_relu=False))
        self.trunk = Transformer(self.encoder.output_dim, num_frames, **transformer)
        dim = self.trunk.output_dim
        self.logits = nn.ModuleList(Linear(dim, num_codes) for _ in range(num_layers))
        self.chosen = nn.ModuleList(nn.Embedding(num_codes, dim) for _ in range(num_layers))
        self.offsets = nn.Sequential(Linear(dim, dim), nn.GELU(), Linear(dim, steps * ac_dim))

    def forward(self, obs: Any) -> Tensor:
        return self.trunk(self.encoder(obs))[0]

    def predict(
        self, features: Tensor, choose: Callable[[int, Tensor], Tensor]
    ) -> tuple[list[Tensor], Tensor]:
        """Predict from features ``[N, D]`` the logits ``[N, K]`` of each code, given those before
        it, of ``choose(layer, logits)``, ``[N]``; and the offsets ``[N, H * A]`` to all."""
        all_logits = []
        for layer, (head, chosen) in enumerate(zip(self.logits, self.chosen, strict=True)):
            all_logits.append(head(features))
            features = features + chosen(choose(layer, all_logits[-1]))
        return all_logits, self.offsets(features)

    def sample(
        self, features: Tensor, temperature: float, generators: Generators
    ) -> tuple[Tensor, Tensor]:
        """Draw codes ``[N, L]``. Returns them and their offsets."""
        codes: list[Tensor] = []

        def draw(layer: int, logits: Tensor) -> Tensor:
            codes.append(draw_index((logits / temperature).softmax(-1), generators))
            return codes[-1]

        _, offsets = self.predict(features, draw)
        return torch.stack(codes, dim=-1), offsets
