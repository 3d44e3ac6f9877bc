"""A process that reads batches ahead, and the parent's end of it."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from offrl.processes import Channel, Child
from offrl.tree import map_leaves

Batches = Iterator[dict[str, Any]]


class Reader:
    """Gives the batches of ``read()``, which it calls in a process of its own. They come through a
    socket, whose size is how far it reads ahead."""

    def __init__(self, read: Callable[[], Batches]):
        remedy = "lower train.num_data_workers"
        self._child = Child("fork", _send, (read,), "reads data", remedy)
        self.close = self._child.close

    def __next__(self) -> dict[str, Any]:
        """Raises what reading raised, and ``ChildProcessError`` if the process ended."""
        batch = self._child.receive()
        if isinstance(batch, Exception):
            raise batch
        return map_leaves(torch.from_numpy, batch)


def _send(channel: Channel, read: Callable[[], Batches]) -> None:
    torch.set_num_threads(1)  # those of OpenMP do not survive a fork
    for batch in read():
        channel.send(map_leaves(Tensor.numpy, batch))
