"""All random state of a training process, seeded, saved and restored together."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and PyTorch, and use kernels that give the same result every time."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True


def rng_state() -> dict[str, Any]:
    """Return the state of every random generator, as tensors and numbers."""
    version, words, gauss = random.getstate()
    drawn: Any = np.random.get_state()
    _, keys, position, has_gauss, cached = drawn
    return {
        "python": {"version": version, "words": torch.tensor(words), "gauss": gauss},
        "numpy": {
            "keys": torch.tensor(keys.astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        },
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore a state of ``rng_state``."""
    python, numpy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    keys = numpy["keys"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, numpy["position"], numpy["has_gauss"], numpy["cached"]))
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


@contextmanager
def preserved_rng() -> Iterator[None]:
    """Restore the state of every random generator at the end."""
    state = rng_state()
    try:
        yield
    finally:
        set_rng_state(state)
