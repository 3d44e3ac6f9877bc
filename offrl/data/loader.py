"""Endless shuffled batches, whose position is one number."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor

from offrl import parallel
from offrl.data.readers import read_ahead
from offrl.data.ring import Ring
from offrl.data.windows import num_gathered
from offrl.tree import leaves, map_leaves

Batches = Iterator[dict[str, Any]]


class BatchLoader:
    """Yields batches of windows without end: passes over the data, each in an order of its own.

    The order of pass ``p`` depends on ``(seed, p)`` only, so ``position``, the number of batches so
    far, is the whole state: set it to resume. As in robomimic the last, incomplete batch of a pass
    is left out. Each process of a training (``parallel``) gets its part of the same batches.

    dataset: a ``SequenceDataset``, or any object with a length and ``get_batch(indices)``. Without
        ``device`` and ``is_streamed``, data is in CPU memory. If it has ``num_draws``,
        ``get_batch`` gets that number of random numbers for each window.
    num_workers: processes that read streamed data ahead; unused for data in memory.
    weights: windows of file ``k`` are drawn, with replacement, in proportion to ``weights[k]``.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        seed: int,
        num_workers: int = 0,
        weights: Sequence[float] | None = None,
    ):
        if batch_size > len(dataset):
            words = f"{batch_size} is more than the {len(dataset)} windows of {dataset}; lower it"
            raise ValueError(f"train.batch_size: {words}")
        num_ranks = parallel.num_ranks()
        if batch_size % num_ranks:
            raise ValueError(
                f"train.batch_size: {batch_size} windows are no equal parts for {num_ranks} "
                f"processes; set it to a multiple of {num_ranks}, or start another number of them"
            )
        self.dataset = dataset
        self.batch_size = batch_size
        self._own_size = batch_size // num_ranks
        self._own = slice(parallel.rank() * self._own_size, (parallel.rank() + 1) * self._own_size)
        self.seed = seed
        self.weights = weights
        self._is_streamed = getattr(dataset, "is_streamed", False)
        self._num_draws = getattr(dataset, "num_draws", 0)
        self.num_workers = num_workers if self._is_streamed else 0
        self.batches_per_pass = len(dataset) // batch_size
        self.position = 0
        self._sent: Callable[[Batches], Batches] = _copied if self.num_workers else iter

    def to(self, device: torch.device) -> "BatchLoader":
        """Send batches to a GPU ahead of their turn (``Ring``), unless the data is there."""
        if device.type == "cuda" and self.dataset.device.type == "cpu":
            self._sent = Ring(device)
        return self

    @cached_property
    def num_together(self) -> int:
        """The number of batches that are gathered at once: several, if they are small and data is
        in memory."""
        if self._is_streamed:
            return 1
        batch = leaves(self._batch([next(self._chosen(self.position))]))
        num_bytes = sum(getattr(x, "nbytes", 0) for x in batch.values())
        return min(num_gathered(num_bytes), self.batches_per_pass)

    def __iter__(self) -> Batches:
        batches = self._read_ahead() if self.num_workers else self._gathered(self.position)
        for batch in self._sent(batches):
            self.position += 1
            yield batch

    def _read_ahead(self) -> Batches:
        """Read batches in processes, but for the first one, which says how large all are."""
        first = next(self._gathered(self.position))
        later = range(self.position + 1, self.position + 1 + self.num_workers)
        return read_ahead(first, [partial(self._gathered, i, self.num_workers) for i in later])

    def _gathered(self, position: int, every: int = 1) -> Batches:
        """Gather every ``every``-th batch from a position on, ``num_together`` at a time."""
        chosen, num = islice(self._chosen(position), 0, None, every), self.num_together
        while True:
            together = self._batch(list(islice(chosen, num)))
            parts = map_leaves(lambda x: x.split(self._own_size), together)
            for i in range(num):
                yield map_leaves(lambda x, i=i: x[i], parts)

    def _batch(self, chosen: Sequence[Sequence[Tensor]]) -> dict[str, Any]:
        """Gather several batches as one."""
        return self.dataset.get_batch(*(torch.cat(parts) for parts in zip(*chosen, strict=True)))

    def _chosen(self, position: int) -> Iterator[Sequence[Tensor]]:
        """Choose this process's windows ``[B]`` of each batch from a position on, and draw numbers
        ``[B, num_draws]`` that choose their goals, if any."""
        first_pass, skip = divmod(position, self.batches_per_pass)
        for number in count(first_pass):
            # Seeds of passes must not collide with those of a run with the next seed.
            own_seed = (self.seed * 1_000_003 + number) % 2**63
            generator = torch.Generator().manual_seed(own_seed)
            order = self._order(generator).to(getattr(self.dataset, "device", "cpu"))
            parts = [order]
            if self._num_draws:
                size = len(order), self._num_draws
                draws = torch.rand(size, generator=generator, dtype=torch.float64)
                parts.append(draws.to(order.device))
            batches = zip(*(part.split(self.batch_size) for part in parts), strict=True)
            for batch in islice(batches, skip, self.batches_per_pass):
                yield [part[self._own] for part in batch]
            skip = 0

    def _order(self, generator: torch.Generator) -> Tensor:
        if self.weights is None:
            return torch.randperm(len(self.dataset), generator=generator)
        sizes = torch.tensor([source.num_windows for source in self.dataset.sources])
        shares = torch.tensor(self.weights, dtype=torch.float64) * sizes
        draws = len(self.dataset)
        file = torch.multinomial(shares, draws, replacement=True, generator=generator)
        within = torch.rand(draws, generator=generator, dtype=torch.float64) * sizes[file]
        return (sizes.cumsum(0) - sizes)[file] + within.long()


def _copied(batches: Batches) -> Batches:
    """Copy batches out of the memory in which they are read."""
    return (map_leaves(Tensor.clone, batch) for batch in batches)
