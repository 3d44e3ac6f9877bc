"""Batches on their way to a GPU, while it learns from those before them."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from offrl.tree import leaves, map_leaves

Batch = dict[str, Any]
AHEAD = 2  # batches that are sent before their turn


class Ring:
    """Sends batches in main memory to a GPU, two of them ahead of their turn.

    A batch is written into pinned memory and copied from there, in the dtypes that it has, on a
    stream of its own. The stream that uses it waits for the copy, and the program does not. Pinned
    memory is reused by turns when its copy has ended, as long as batches keep their form.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pinned: deque[tuple[Batch, torch.cuda.Event]] = deque()  # the oldest first

    def __call__(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches on the device. An error that reading one raises comes at its turn."""
        sent: deque[tuple[Batch, torch.cuda.Event]] = deque()
        problem = None
        try:
            for batch in batches:
                sent.append(self.send(batch))
                if len(sent) > AHEAD:
                    yield self._received(*sent.popleft())
        except Exception as error:
            problem = error
        while sent:
            yield self._received(*sent.popleft())
        if problem is not None:
            raise problem

    def send(self, batch: Batch) -> tuple[Batch, torch.cuda.Event]:
        """Begin to copy a batch. Returns where it goes, and the event that it is there."""
        pinned = self._pinned_like(batch)
        map_leaves(Tensor.copy_, pinned, batch)
        with torch.cuda.stream(self._stream):
            there = map_leaves(lambda x: x.to(self._device, non_blocking=True), pinned)
            copied = self._stream.record_event()
        self._pinned.append((pinned, copied))
        return there, copied

    def _pinned_like(self, batch: Batch) -> Batch:
        if len(self._pinned) > AHEAD:
            pinned, copied = self._pinned.popleft()
            copied.synchronize()
            if _form(pinned) == _form(batch):
                return pinned
        return map_leaves(lambda x: torch.empty_like(x, pin_memory=True), batch)

    def _received(self, batch: Batch, copied: torch.cuda.Event) -> Batch:
        """Let the present stream wait for a batch, and its memory for the present stream."""
        present = torch.cuda.current_stream(self._device)
        present.wait_event(copied)
        map_leaves(lambda x: x.record_stream(present), batch)
        return batch


def _form(batch: Batch) -> Any:
    return {name: x if x is None else (x.shape, x.dtype) for name, x in leaves(batch).items()}
