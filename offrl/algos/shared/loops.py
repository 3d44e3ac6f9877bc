"""What robomimic's loops over batches call, and offrl does elsewhere."""

from typing import Any

from offrl.algos.shared.roles import Algorithm


class RobomimicsLoop(Algorithm):
    """The calls around ``train_on_batch``, so that such a loop runs as it is."""

    obs_normalizer: Any

    def postprocess_batch_for_training(
        self, batch: dict[str, Any], obs_normalization_stats: Any = None
    ) -> dict[str, Any]:
        """Give the batch back as it is, since ``process_batch_for_training`` normalises.

        Raises ``ValueError`` for statistics that the algorithm was not told of.
        """
        if obs_normalization_stats and not self.obs_normalizer.stats:
            raise ValueError(
                "obs_normalization_stats: batches are normalised by the algorithm's own; call "
                "algo.set_statistics(obs=..., actions=...) once before the loop"
            )
        return batch

    def on_gradient_step(self) -> None:
        """Do nothing: learning rates that count steps have moved in ``train_on_batch``."""
