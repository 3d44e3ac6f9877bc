"""Checks that a model fits in memory, before it is made."""

import logging
import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from offrl.memory import free_memory, in_bytes

log = logging.getLogger(__name__)
T = TypeVar("T")

FACTORIES = (
    *(torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn),
    *(torch.arange, torch.eye),
)
REMEDY = "make its networks smaller (algo, observation.encoder), or use a machine with more memory"


def made_within_memory(algo_name: str, device: torch.device | str, make: Callable[[], T]) -> T:
    """Return ``make()``; raise ``ValueError`` before its tensors are made if they cannot fit in
    memory. A large model is first counted on the ``meta`` device, where tensors have no content."""
    free = min(free_bytes("cpu"), free_bytes(device))  # made on the one, moved to the other
    before = torch.get_rng_state()
    try:
        with _AllocationLimit(free / 16):
            return make()
    except _TooLarge:
        torch.set_rng_state(before)
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"), _AllocationLimit(free):
            make()
    except _TooLarge as error:
        raise ValueError(
            f"{algo_name}: its networks take {error}, and four times that in training, but "
            f"{in_bytes(free)} of memory are free; {REMEDY}"
        ) from None
    except Exception:  # tensors have no content; the networks, which are large, come first
        log.debug("%s: counted in part", algo_name, exc_info=True)
    return make()


class _TooLarge(Exception):
    pass


class _AllocationLimit(TorchFunctionMode):
    """Sums the sizes of new tensors, and raises before the sum exceeds a limit."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self._limit = limit
        self._sum = 0

    def __torch_function__(
        self, function: Callable, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in FACTORIES:
            self._add(_bytes_asked(function, args, kwargs))
        elif function is torch.Tensor.clone:  # a target network
            self._add(args[0].nbytes)
        return function(*args, **kwargs)

    def _add(self, num_bytes: int | None) -> None:
        if num_bytes is None:
            raise _TooLarge("more than can be counted")
        self._sum += num_bytes
        if self._sum > self._limit:
            raise _TooLarge(f"at least {in_bytes(self._sum)}")


def _bytes_asked(function: Callable, args: Any, kwargs: dict[str, Any]) -> int | None:
    """Return the size of a tensor that a factory is about to make; ``None`` if it overflows."""
    shape = {
        k: v for k, v in kwargs.items() if k in ("size", "dtype", "fill_value", "start", "end")
    }
    try:
        return function(*args, **shape, device="meta").nbytes
    except (RuntimeError, TypeError, ValueError) as error:
        return None if "overflow" in str(error).lower() else 0  # the call itself will fail


def check_training_fits(
    algo_name: str, optimizers: Iterable[torch.optim.Optimizer], device: torch.device
) -> None:
    """Raise ``ValueError`` before the first step where there is no room for gradients and the two
    moments that Adam keeps of each."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    weights = sum(parameter.nbytes for group in groups for parameter in group["params"])
    free = free_bytes(device)
    if 3 * weights > free:
        raise ValueError(
            f"{algo_name}: to train its networks takes {in_bytes(4 * weights)} "
            f"({in_bytes(weights)} of weights, their gradients and two moments of each), but "
            f"beside the weights {in_bytes(free)} of memory are free; {REMEDY}"
        )


def free_bytes(device: torch.device | str) -> float:
    """Say how much memory new tensors can have; infinity where the system does not say."""
    device = torch.device(device)
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    return free_memory() if device.type == "cpu" else math.inf
