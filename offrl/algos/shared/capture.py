"""Says which updates of an algorithm one captured CUDA graph stands for."""

from typing import Any


def graph_key(self: Any) -> tuple[Any, ...]:
    """Say which way the next update goes, in the epoch of the last one. Updates with equal keys,
    of batches of equal shapes, call the same operators with the same numbers; so one that was
    captured as a CUDA graph stands for the others. An ``update`` that branches on a counter, or
    uses a number that changes, adds it to the key. (The first update of a key may make states of
    optimizers. Learning rates and the decay of ``train.ema`` are no part.)"""
    trained = (name for name in self.optim_params if self.trains(name))
    return *trained, *(vae.temperature(self.epoch or 0) for vae in self._vaes)


def is_capturable(self: Any) -> bool:
    """Say whether the next update may be captured as a CUDA graph: not if it waits for the device,
    or if Python draws what it does."""
    return not self._is_drawn_by_python
