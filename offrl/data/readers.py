"""Processes that read batches ahead, into memory that they share with the training."""

import gc
import mmap
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor

from offrl.processes import Channel, Child
from offrl.tree import map_leaves

Batch = dict[str, Any]
AHEAD = 1  # batches that a process reads before their turn, besides the one that is in use


def read_ahead(first: Batch, readings: Sequence[Callable[[], Iterator[Batch]]]) -> Iterator[Batch]:
    """Yield ``first``, which has the form of all batches, and then those of several ``readings`` in
    turns, each read by a process of its own.

    A batch lies in shared memory, and is overwritten after the next one has been asked for. An
    error that reading one raises comes at its turn.
    """
    readers: list[Child] = []
    slots = [[map_leaves(_shared, first) for _ in range(1 + AHEAD)] for _ in readings]
    try:
        for read, own in zip(readings, slots, strict=True):
            wording = "reads data", "lower train.num_data_workers"
            readers.append(Child("fork", _write, (read, own), *wording))
            for _ in own:
                readers[-1].send(None)  # a slot is free
        yield first
        for turn in count():
            for reader, own in zip(readers, slots, strict=True):
                if isinstance(answer := reader.receive(), Exception):
                    raise answer
                yield own[turn % len(own)]
                reader.send(None)
    finally:
        for reader in readers:
            reader.close()


def _shared(like: Tensor) -> Tensor:
    """Make a tensor in memory that processes share, which are forked later."""
    if not like.numel():
        return like
    memory = mmap.mmap(-1, like.nbytes)
    return torch.frombuffer(memory, dtype=like.dtype, count=like.numel()).view(like.shape)


def _write(channel: Channel, read: Callable[[], Iterator[Batch]], slots: Sequence[Batch]) -> None:
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
    gc.freeze()  # looking for garbage would copy all memory that is shared with the parent
    for number, batch in enumerate(read()):
        channel.receive()
        map_leaves(Tensor.copy_, slots[number % len(slots)], batch)
        channel.send(None)
