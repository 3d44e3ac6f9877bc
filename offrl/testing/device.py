"""A check that updates do not wait for the device: they tell it what to do, and run ahead of it.

It runs on PyTorch's device ``meta``, which knows shapes and holds no numbers. So it needs no GPU,
and whatever asks for a number, or brings one from the CPU, is seen. (Fake tensors that claim to be
on a GPU would be nearer to one, but have no backward pass where there is none.)
"""

import logging
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import offrl
from offrl.algos import Algo
from offrl.tree import map_leaves

if TYPE_CHECKING:
    from offrl.testing import AlgoCase

DEVICE = "meta"
NUM_UPDATES = 2
LIBRARIES = tuple(Path(package.__path__[0]) for package in (torch, offrl))

ASKS = "asks the device for a number, and the training waits for the answer; leave it a tensor"
COUNTS = (
    "asks the device for a number of elements, and the training waits for the answer; multiply by "
    "the mask, or use torch.where"
)
FROM_CPU = (
    "uses numbers on the CPU, which are copied to the device at every update; use torch.full(..., "
    "device=self.device) and the like, or a buffer of a network"
)
TO_CPU = "copies to the CPU, and the training waits for the device; leave it there"

aten = torch.ops.aten
READING = (Tensor.numpy, Tensor.__array__, Tensor.__repr__, Tensor.__format__)
MAKING = (torch.tensor, torch.as_tensor, Tensor.new_tensor)
INDEXING = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)


def updates_do_not_wait_for_the_device(case: "AlgoCase") -> None:
    """Check it of batches that are on the device already."""
    try:
        with without_numbers():
            algo, batches = case.make(device=DEVICE)
            batch = map_leaves(lambda x: x.to(DEVICE), next(batches))
        with watched():
            batch = algo.process_batch_for_training(batch)
        update_under_watch(algo, batch)
    except (NotImplementedError, RuntimeError, TypeError) as error:
        if DEVICE not in str(error).lower():
            raise
        logging.getLogger(__name__).warning(
            "check_algo cannot tell whether an update waits for a GPU, as not all of it runs on "
            "PyTorch's device meta: %s",
            error,
        )


def update_under_watch(algo: Algo, batch: Mapping[str, Any]) -> None:
    """Make some updates from a processed batch on ``DEVICE``. Raises ``AssertionError`` if they
    wait for it, or return numbers that are not there."""
    for _ in range(NUM_UPDATES):
        with watched():
            info = algo.train_on_batch(dict(batch), epoch=1)
        elsewhere = [k for k, x in info.items() if isinstance(x, Tensor) and x.device.type == "cpu"]
        for name in elsewhere:
            raise AssertionError(f"update returned {name!r} on the CPU; make it on self.device")


@contextmanager
def without_numbers() -> Iterator[None]:
    """Let networks and optimizers be made on ``DEVICE``."""
    place, ours = "torch.optim.optimizer._get_fused_kernels_supported_devices", ["cpu", DEVICE]
    with warnings.catch_warnings(), mock.patch(place, lambda: ours):
        warnings.filterwarnings("ignore", ".*meta parameter", UserWarning)  # weights are loaded
        yield


@contextmanager
def watched() -> Iterator[None]:
    """Raise ``AssertionError``, with the line, if something waits for ``DEVICE``."""
    try:
        with without_numbers(), _Methods(), _Operators():
            yield
    except _WaitsError as error:
        raise AssertionError(f"{_place_of(error)} {error}") from None


class _WaitsError(Exception):
    """Says why the program waits for the device."""


class _Methods(TorchFunctionMode):
    """Refuses to read all numbers of a tensor, and to make one of Python's numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READING and args[0].device.type == DEVICE:
            raise _WaitsError(TO_CPU)
        result = func(*args, **(kwargs or {}))
        if func in MAKING and result.device.type == DEVICE and not isinstance(args[-1], Tensor):
            raise _WaitsError(FROM_CPU)
        return result


class _Operators(TorchDispatchMode):
    """Refuses operators whose results depend on numbers, and those that use other devices."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if reason := _why_it_waits(func, args, kwargs):
            raise _WaitsError(reason)
        return func(*args, **kwargs)


def _why_it_waits(func: Any, args: Any, kwargs: Mapping[str, Any]) -> str | None:
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    places = {x.device.type for x in tensors}
    if DEVICE in places:
        if torch.Tag.data_dependent_output in func.tags:
            return ASKS
        if func.overloadpacket in INDEXING:
            return COUNTS if any(_is_mask(index) for index in args[1]) else None
        if torch.Tag.dynamic_output_shape in func.tags:
            return COUNTS
        if torch.device(kwargs.get("device") or DEVICE).type != DEVICE:
            return TO_CPU
        if func is aten.copy_.default and args[0].device.type != DEVICE:
            return TO_CPU
    # Single numbers of the CPU are as Python's, as long as they stay there.
    is_small = DEVICE not in places and not any(x.ndim for x in tensors)
    return FROM_CPU if "cpu" in places and not is_small else None


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def _place_of(error: BaseException) -> str:
    """Name the line that was called last, if possible outside of the libraries."""
    called = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in called if frame.filename != __file__]
    for libraries in (LIBRARIES, LIBRARIES[:1]):
        own = [x for x in frames if not any(map(Path(x.filename).is_relative_to, libraries))]
        if own:
            break
    last = (own or frames)[-1]
    return f"{Path(last.filename).name}, line {last.lineno} ({last.line})"
