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

import offrl
from offrl.algos import Algo
from offrl.kernels.operators import Operators
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

READING = (Tensor.numpy, Tensor.__array__, Tensor.__repr__, Tensor.__format__)
MAKING = (torch.tensor, torch.as_tensor, Tensor.new_tensor)
INDEXING = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")


def updates_do_not_wait_for_the_device(case: "AlgoCase") -> None:
    """Check it of batches that are on the device already."""
    try:
        with without_numbers():
            algo, batches = case.make(device=DEVICE)
            batch = map_leaves(lambda x: x.to(DEVICE), next(batches))
        if not algo.is_capturable():  # it says so itself
            return
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
        if elsewhere:
            raise AssertionError(
                f"update returned {elsewhere[0]!r} on the CPU; make it on self.device"
            )


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
        with without_numbers(), _Methods(), _Waiting():
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


class _Waiting(Operators):
    """Refuses operators whose results depend on numbers, and those that use other devices."""

    def see(self, func: Any, arguments: list[Any]) -> None:
        if reason := _why_it_waits(func, arguments):
            raise _WaitsError(reason)


def _why_it_waits(func: Any, arguments: list[Any]) -> str | None:
    tensors = [x for x in arguments if isinstance(x, Tensor)]
    places = {x.device.type for x in tensors}
    if DEVICE not in places:  # single numbers on the CPU may stay there, as Python's do
        return FROM_CPU if any(x.ndim for x in tensors) else None
    name, _, _ = func.name().partition(".")
    to = [x.type for x in arguments if isinstance(x, torch.device)]
    if name == "aten::copy_":
        to = [tensors[0].device.type]
    if any(place != DEVICE for place in to):
        return TO_CPU
    if "cpu" in places:
        return FROM_CPU
    if torch.Tag.data_dependent_output in func.tags:
        return ASKS
    if name in INDEXING:
        indices = tensors[1:] if name == "aten::index" else tensors[1:-1]
        return COUNTS if any(x.dtype in (torch.bool, torch.uint8) for x in indices) else None
    return COUNTS if torch.Tag.dynamic_output_shape in func.tags else None


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
