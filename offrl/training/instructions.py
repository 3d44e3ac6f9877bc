"""The sentences of ``train.data.lang`` as what policies see of them."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from offrl.checkpoint import read_checkpoint
from offrl.data.sequence import SequenceDataset
from offrl.language import embed
from offrl.seeding import preserved_rng
from offrl.specs import LANGUAGE

log = logging.getLogger(__name__)


def embed_instructions(
    langs: Sequence[str | None], are_seen: bool, checkpoint: Path | None
) -> dict[str, np.ndarray]:
    """``{sentence: [E]}`` of each dataset's sentence; none if the policy does not see them.

    checkpoint: of the run that is resumed. Its embeddings are the same to the last bit, and need
        no language model.
    """
    sentences = [lang for lang in langs if lang]
    if sentences and not are_seen:
        log.warning(
            "train.data.lang: the policy does not see it; add %s to "
            "observation.modalities.obs.low_dim",
            LANGUAGE,
        )
    if not sentences or not are_seen:
        return {}
    if len(sentences) < len(langs):
        raise ValueError("train.data.lang: give an instruction for every dataset, or for none")
    if checkpoint is not None:
        stored = read_checkpoint(checkpoint).get("instructions", {})
        if set(sentences) <= set(stored):
            return {lang: stored[lang].numpy() for lang in sentences}
    with preserved_rng():
        return embed(sentences)


def stored_instructions(
    dataset: SequenceDataset, langs: Sequence[str | None]
) -> tuple[dict[str, np.ndarray], list[str | None]]:
    """What files hold as an embedding, the same at all steps, which serves for evaluation as well,
    under a name of its own; and the ``langs`` with those names."""
    instructions, names = {}, list(langs)
    for k, value in enumerate(dataset.constant_obs(LANGUAGE)):
        if value is not None:
            names[k] = f"{LANGUAGE} of {Path(dataset.sources[k].path).name}"
            instructions[names[k]] = value
    return instructions, names
