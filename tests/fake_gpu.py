"""Stands for a GPU's streams and pinned memory where there is none. What a stream is told to do is
done as late as a GPU may do it: when somebody waits for it."""

from collections import deque

import pytest
import torch

from offrl.assembly import recorded
from offrl.data.datasets import open_data

CUDA = torch.device("cuda")
UNWRITTEN = 111  # what memory holds before


class Event:
    def __init__(self, todo):
        self.todo, self.is_reached = todo, False

    def __call__(self):
        self.is_reached = True

    def synchronize(self):
        while not self.is_reached:
            self.todo.popleft()()


class Stream:
    def __init__(self, device=None):
        self.todo = deque()
        self.used = []  # memory of other streams
        self.lags = True

    def record_event(self):
        event = Event(self.todo)
        self.todo.append(event)
        return event

    def wait_event(self, event):
        self.todo.append(event.synchronize)
        if not self.lags:
            self.finish()

    def finish(self):
        while self.todo:
            self.todo.popleft()()


class Gpu:
    """Notes what it is asked for. Python itself does the work of the stream ``present``, unless
    that ``lags``: its tensors are right when it is told to ``finish``."""

    def __init__(self, patch):
        self.present = self.current = Stream()
        self.present.lags = False
        self.pinned = []
        self._patch = patch
        self._to, self._empty_like = torch.Tensor.to, torch.empty_like
        patch.setattr(torch.cuda, "Stream", Stream)
        patch.setattr(torch.cuda, "stream", self._within)
        patch.setattr(torch.cuda, "current_stream", lambda device: self.current)
        patch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 0))
        patch.setattr(torch, "empty_like", self._like)
        patch.setattr(torch.Tensor, "to", lambda *args, **options: self._moved(*args, **options))
        patch.setattr(torch.Tensor, "record_stream", lambda x, stream: stream.used.append(x))

    def gets_data(self):
        """Let trainings send their batches here. All else stays where it was."""
        open_here = lambda config, known, device: open_data(config, known, CUDA)  # noqa: E731
        self._patch.setattr(recorded, "open_data", open_here)

    def _within(self, stream):
        gpu = self

        class Within:
            def __enter__(self):
                gpu.current = stream

            def __exit__(self, *_):
                gpu.current = gpu.present

        return Within()

    def _like(self, x, pin_memory=False, **options):
        new = self._empty_like(x, **options)
        if pin_memory:
            self.pinned.append(new.fill_(UNWRITTEN))
        return new

    def _moved(self, x, *args, non_blocking=False, **options):
        if not non_blocking:
            return self._to(x, *args, **options)
        assert any(x is own for own in self.pinned), "no GPU copies from there by itself"
        there = self._empty_like(x).fill_(UNWRITTEN)
        self.current.todo.append(lambda: there.copy_(x))
        return there


@pytest.fixture
def gpu(monkeypatch):
    return Gpu(monkeypatch)
