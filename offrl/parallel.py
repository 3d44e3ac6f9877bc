"""The processes of one training, which ``torchrun`` starts side by side.

The process of rank 0 is called the first. With a single process, these functions do nothing.
"""

import atexit
import datetime
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from offrl.lazy import Tensor, torch

T = TypeVar("T")

# While the first process evaluates or writes, the others wait; one that ended is noticed at once.
PATIENCE = datetime.timedelta(days=1)
BUCKET = 25 * 2**20  # bytes of gradients in a message, as many as DistributedDataParallel sends
ALIGNED = 8  # numbers: a gradient begins at a multiple of them, as kernels read several at a time


def rank() -> int:
    """Return the number of this process, from 0 on."""
    return torch.distributed.get_rank() if num_ranks() > 1 else 0


def num_ranks() -> int:
    """Count the processes of the training."""
    dist = torch.distributed
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


@contextmanager
def joined() -> Iterator[None]:
    """Connect the processes that ``torchrun`` has started to one training. The first of them logs
    all of offrl's messages, and the others only errors."""
    is_launched = torch.distributed.is_available() and torch.distributed.is_torchelastic_launched()
    if is_launched and os.environ["WORLD_SIZE"] != "1" and not torch.distributed.is_initialized():
        # This imports TorchDynamo, as whoever optimizes does. Imported later, it would keep gloo's
        # threads alive, which abort a process at its end.
        torch.compiler.list_backends()
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        torch.distributed.init_process_group(backend, timeout=PATIENCE)
        atexit.register(torch.distributed.destroy_process_group)
        if rank():
            logging.getLogger("offrl").setLevel(logging.ERROR)
    try:
        yield
    except BaseException:
        if torch.cuda.is_available():  # destroying the group would wait for the others
            atexit.unregister(torch.distributed.destroy_process_group)
        raise


def gpu() -> "torch.device":
    """Return the GPU of this process. Raises ``ValueError`` if there are too few."""
    if num_ranks() > 1:
        number, num_gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if number >= num_gpus:
            raise ValueError(
                f"{os.environ['LOCAL_WORLD_SIZE']} processes on a machine with {num_gpus} GPUs; "
                "start at most as many (torchrun --nproc_per_node), or set train.cuda=false"
            )
        torch.cuda.set_device(number)
    return torch.device("cuda")


def num_local() -> int:
    """Count the processes of the training on this machine."""
    return int(os.environ["LOCAL_WORLD_SIZE"]) if num_ranks() > 1 else 1


def num_cores() -> int:
    """Count the CPU cores for each process on this machine, at least one."""
    return max(1, len(os.sched_getaffinity(0)) // num_local())


def share(items: Sequence[T]) -> Sequence[T]:
    """Return the items that this process works on."""
    return items[rank() :: num_ranks()]


def draw_apart(seed: int, step: int) -> None:
    """Let PyTorch draw different noise in each process. The first keeps its random state; that of
    another follows from these numbers and its rank, so that no checkpoint needs it."""
    if rank():
        words = np.random.SeedSequence((seed, step, rank())).generate_state(1, np.uint64)
        torch.manual_seed(int(words[0]))


# -- what all processes call together -------------------------------------------------------------


def average(tensor: Tensor) -> None:
    """Replace a tensor by its mean over the processes."""
    if num_ranks() > 1 and tensor.numel():
        _call(torch.distributed.all_reduce, tensor)
        tensor /= num_ranks()


def take_over(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by the first process's."""
    if num_ranks() == 1:
        return
    for x in tensors:
        values = x.detach().contiguous()
        _call(torch.distributed.broadcast, values, src=0)
        x.detach().copy_(values)


def largest(*numbers: float) -> list[float]:
    """Return the maximum of each number over the processes."""
    if num_ranks() == 1:
        return list(numbers)
    values = torch.tensor(numbers, dtype=torch.float64)
    _call(torch.distributed.all_reduce, values, op=torch.distributed.ReduceOp.MAX)
    return values.tolist()


def by_first(function: Callable[..., T], *arguments: Any) -> T:
    """Call ``function`` in the first process alone, and return its result in all."""
    result: list[Any] = [None if rank() else function(*arguments)]
    if num_ranks() > 1:
        _call(torch.distributed.broadcast_object_list, result, src=0)
    return result[0]


def gathered(items: Iterable[T]) -> Iterator[T]:
    """Yield the items of all processes in the first one (its own first); in the others, nothing."""
    kept: list[T] = []
    for item in items:
        if rank():
            kept.append(item)
        else:
            yield item
    if num_ranks() > 1:
        of_all: list[Any] | None = None if rank() else [None] * num_ranks()
        _call(torch.distributed.gather_object, kept, of_all)
        for of_one in of_all or []:
            yield from of_one


def _call(function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Call a function of ``torch.distributed``. Its error says that another process has ended."""
    try:
        return function(*arguments, **options)
    except RuntimeError as error:
        what = " ".join(str(error).split())
        raise ConnectionError(
            f"process {rank()}: another process of this training has ended or does not answer; its "
            f"own message says why ({what:.160})"
        ) from None


# -- gradients ------------------------------------------------------------------------------------


class Reducer:
    """Averages the gradients of parameters over the processes, while they are still computed.

    Gradients lie end to end in buckets, those of the last parameters in the first, as a backward
    pass begins with these. When all of a bucket are there, its sum over the processes is begun, and
    the backward pass goes on meanwhile. The order of the sums is that of the buckets, as it has to
    be the same in all processes.
    """

    def __init__(self, parameters: "Iterable[torch.nn.Parameter]"):
        own = [p for p in parameters if p.numel()] if num_ranks() > 1 else []
        self._buckets = [_Bucket(some) for some in _cut(own[::-1])]
        self._due = [*self._buckets]  # whose sums have not begun
        self._is_awaiting = False
        for bucket in self._buckets:
            for parameter in bucket.gradients:
                parameter.register_post_accumulate_grad_hook(partial(self._arrived, bucket))

    def begin(self) -> None:
        """Await the last backward pass of a step."""
        self._due = [*self._buckets]
        for bucket in self._buckets:
            bucket.missing = {*bucket.gradients}
        self._is_awaiting = True

    def _arrived(self, bucket: "_Bucket", parameter: "torch.nn.Parameter") -> None:
        if self._is_awaiting:
            bucket.take(parameter)
            while self._due and not self._due[0].missing:
                self._due.pop(0).start()

    def finish(self) -> None:
        """Replace the gradients by their means. Parameters without one stay without."""
        self._is_awaiting = False
        for bucket in self._due:
            for parameter in [*bucket.missing]:
                bucket.take(parameter)
            bucket.start()
        for bucket in self._buckets:
            bucket.finish()


class _Bucket:
    """The gradients of some parameters, in one array."""

    def __init__(self, parameters: "Sequence[torch.nn.Parameter]"):
        ends = [*accumulate(-(-p.numel() // ALIGNED) * ALIGNED for p in parameters)]
        self._flat = parameters[0].detach().new_zeros(ends[-1])
        #: Views, which lie in memory as the parameters do.
        self.gradients = {
            p: self._flat.as_strided(p.shape, torch.empty_like(p, device="meta").stride(), start)
            for p, start in zip(parameters, [0, *ends], strict=False)
        }
        self.missing = {*self.gradients}
        self._sum: Any = None  # the one that is under way

    def take(self, parameter: "torch.nn.Parameter") -> None:
        """Move the gradient of a parameter to its place."""
        place = self.gradients[parameter]
        if parameter.grad is None:
            place.zero_()
        else:
            parameter.grad = place.copy_(parameter.grad)
        self.missing.remove(parameter)

    def start(self) -> None:
        """Begin to sum the gradients over the processes."""
        self._sum = _call(torch.distributed.all_reduce, self._flat, async_op=True)

    def finish(self) -> None:
        """Wait for the sum, and divide it by the number of processes."""
        begun, self._sum = self._sum, None  # no copy of an algorithm could hold it
        _call(begun.wait)
        self._flat /= num_ranks()


def _cut(parameters: "Iterable[torch.nn.Parameter]") -> "Iterator[list[torch.nn.Parameter]]":
    """Cut parameters into lists, each of which fills a bucket."""
    bucket: list[Any] = []
    size = 0
    for parameter in parameters:
        if bucket and (size + parameter.nbytes > BUCKET or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.nbytes
    if bucket:
        yield bucket
