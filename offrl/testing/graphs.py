"""A check that updates with the same ``graph_key`` call the same operators with the same numbers.

One that was captured as a CUDA graph stands for all of them, and what differs would be lost without
a word.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from offrl.algos import Algo
from offrl.kernels.operators import Call, calls_of
from offrl.tree import leaves

if TYPE_CHECKING:
    from offrl.testing import AlgoCase

EPOCHS = [1] * 7 + [2] * 4  # of updates
# These change from update to update as they are to, and are told to a graph.
CONSTANT = {"scheduler_type": "constant", "warmup_steps": 0}
WITHOUT_AVERAGES = {"ema": {"enabled": False}}


def updates_with_one_key_make_the_same_calls(case: "AlgoCase") -> None:
    """Check it of batches of one shape, in two epochs."""
    algo, batches = case.make(WITHOUT_AVERAGES, learning_rate=CONSTANT)
    known: dict[Any, tuple[int, list[Call]]] = {}
    for num, key, calls in recorded_updates(algo, next(batches), EPOCHS):
        earlier, before = known.setdefault(key, (num, calls))
        for one, other in differences(before, calls):
            raise AssertionError(
                f"updates {earlier} and {num} have the same graph_key(), but {_said(one)} in the "
                f"one is {_said(other)} in the other; add to the key what update branches on, or "
                "the number that changes, or let is_capturable() return False"
            )


def recorded_updates(
    algo: Algo, batch: Mapping[str, Any], epochs: Iterable[int]
) -> Iterator[tuple[int, Any, list[Call]]]:
    """Make an update in each of these epochs. Yields the numbers, keys and calls of those that may
    be captured: not the first of an epoch, nor of a key, which makes states of optimizers."""
    begun = set()
    for num, epoch in enumerate(epochs, 1):
        ready = algo.process_batch_for_training(batch)
        shapes = tuple((name, getattr(x, "shape", None)) for name, x in leaves(ready).items())
        counts = algo.is_capturable() and epoch == algo.epoch
        key = (algo.graph_key(), shapes) if counts else None
        _, calls = calls_of(partial(algo.train_on_batch, ready, epoch))
        if key in begun:
            yield num, key, calls
        elif key is not None:
            begun.add(key)


def differences(first: Iterable[Call], second: Iterable[Call]) -> Iterator[tuple[Any, Any]]:
    """Yield pairs of calls that differ; ``None`` is in the place of one that is missing."""
    return (pair for pair in zip_longest(first, second) if pair[0] != pair[1])


def _said(call: Call | None) -> str:
    if call is None:
        return "nothing"
    name, arguments = call
    return f"{name}({', '.join(map(str, arguments)):.100})"
