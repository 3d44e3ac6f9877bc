"""Instructions as vectors, as in robomimic, by CLIP (Radford et al., 2021, arXiv:2103.00020)."""

from collections.abc import Iterable

import numpy as np
import torch

from offrl.lazy import needed

MODEL = "openai/clip-vit-large-patch14"
NUM_TOKENS = 25  # longer sentences are cut
AT_ONCE = 256  # sentences, to bound memory


def embed(sentences: Iterable[str]) -> dict[str, np.ndarray]:
    """Compute the embedding ``[768]`` of each sentence. Raises ``ValueError`` without CLIP."""
    sentences = list(dict.fromkeys(sentences))
    if not sentences:
        return {}
    models = needed("transformers", "language", "train.data.lang: needs the package transformers")
    try:
        tokenizer = models.AutoTokenizer.from_pretrained(MODEL)
        encoder = models.CLIPTextModelWithProjection.from_pretrained(MODEL).eval()
    except (OSError, ValueError) as error:
        reason, _, _ = str(error).partition("\n")
        raise ValueError(
            f"train.data.lang: the language model {MODEL} is not here and cannot be fetched "
            f"({reason[:120].rstrip('.')}); run `hf download {MODEL}` where there is a "
            "connection, or store the embeddings in the dataset as the observation lang_emb"
        ) from None
    found: dict[str, np.ndarray] = {}
    for part in (sentences[i : i + AT_ONCE] for i in range(0, len(sentences), AT_ONCE)):
        tokens = tokenizer(
            text=part,
            padding="max_length",
            truncation=True,
            max_length=NUM_TOKENS,
            return_tensors="pt",
        )
        with torch.no_grad():
            found |= zip(part, encoder(**tokens).text_embeds.numpy(), strict=True)
    return found
