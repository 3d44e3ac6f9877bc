"""Methods of algorithms that robomimic's loops call. offrl has done their work already."""

from typing import Any


def postprocess_batch_for_training(
    self: Any, batch: dict[str, Any], obs_normalization_stats: Any = None
) -> dict[str, Any]:
    """Return the batch unchanged: robomimic's loops call this, but it is normalised already. Raises
    ``ValueError`` for statistics without ``set_statistics``."""
    if obs_normalization_stats and not self.obs_normalizer.stats:
        raise ValueError(
            "obs_normalization_stats: batches are normalised by the algorithm's own; call "
            "algo.set_statistics(obs=..., actions=...) once before the loop"
        )
    return batch


def on_gradient_step(self: Any) -> None:
    """Do nothing: robomimic's loops call this, but learning rates are updated already."""
