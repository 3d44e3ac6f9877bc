"""Computes updates in lower precision, and from parts of their batches."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from statistics import mode
from typing import Any, TypeVar

from offrl.algos.shared.batch import CheckedBatch
from offrl.kernels.allocator import share_freed_memory
from offrl.lazy import Tensor, torch
from offrl.tree import leaves, map_leaves

T = TypeVar("T")
#: The attribute of a part's ``pad_mask`` with the number of steps that count in a part on average.
MEAN_COUNT = "mean_count"


def train_on(algo: Any, batch: Mapping[str, Any]) -> Any:
    """Make the update of an algorithm from its batch, in ``train.accumulate`` parts. Returns what
    its ``update`` returns."""
    num_parts = algo.global_config.train.accumulate
    try:
        if num_parts == 1 or not algo.optim_params:
            return updated(algo, batch)
        algo.microbatches = MicroBatches(algo, batch, num_parts)
        try:
            return algo.microbatches()
        finally:
            algo.microbatches = OneBatch()
    except (RuntimeError, ValueError) as error:
        problem = _known(str(error), algo)
        if problem is None:
            raise
        raise ValueError(problem) from None


def _known(error: str, algo: Any) -> str | None:
    """Return a sentence on an error of PyTorch, known by its words."""
    if error.startswith("Expected more than 1"):
        return (
            "train.batch_size: a normalisation layer (batch norm, for example) has only "
            f"one number for each channel to learn from ({error}); use larger batches or "
            "larger images, or networks without such a layer"
        )
    if "primitive descriptor" in error and algo.global_config.train.precision == "bf16":
        return (
            "train.precision: bf16, but this CPU computes no such network in bfloat16 "
            f"({error.partition('. ')[0]}); set it to fp32"
        )
    return None


def updated(algo: Any, batch: Mapping[str, Any]) -> Any:
    """Call ``update`` with ``train.precision``."""
    return precisely(algo, lambda: algo.update(CheckedBatch(batch)))


def precisely(algo: Any, function: Callable[[], T]) -> T:
    """Call a function in this thread with ``train.precision``; fp32 needs no context."""
    precision = algo.global_config.train.precision
    if precision == "fp32":
        return function()
    with ExitStack() as until_done:
        if precision == "bf16":
            until_done.enter_context(torch.autocast(algo.device.type, torch.bfloat16))
        elif algo.device.type == "cuda":
            backends: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn]
            for backend in backends:
                until_done.callback(setattr, backend, "allow_tf32", backend.allow_tf32)
                backend.allow_tf32 = True
        return function()


class OneBatch:
    """Computes an update from a batch as a whole."""

    share: float = 1  #: The share of the batch that the losses are of.
    begins = True  #: True for the first part, with which the gradients of a step begin.
    ends = True  #: True for the last part, with which they are complete.

    def once(self, function: Callable[[], T]) -> T:
        """Call a function that changes networks."""
        return function()

    def together(self, value: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
        """Return a number of the batch, of which ``value`` is that of the part at hand.

        reduce: Makes the one of several, such as ``Tensor.mean``.
        """
        return value

    def counted(self, mask: Tensor) -> Tensor:
        """Return a mask of steps for ``masked_mean``, which the parts of a batch make themselves.
        Call it before a network is used."""
        return mask


class _LeftError(Exception):
    """Ends the update of a part, as that of another has failed."""


class MicroBatches(OneBatch):
    """Computes an update from equal parts of its batch, as if from the whole, with the memory of
    one (gradient accumulation).

    Each part has an update in a thread of its own, of which one works at a time. At each optimizer
    step (``once``) a part adds its gradients and the next part goes on; the last part makes the
    step for all. So losses that are computed behind the step see the networks that it has moved.

    algo: Its ``COUNTERS`` are those of one update, whatever the number of parts.
    """

    ends = False

    def __init__(self, algo: Any, batch: Mapping[str, Any], num_parts: int):
        self._algo, self._num = algo, num_parts
        if not algo.validates:
            algo.optimizers  # noqa: B018  # made here, and not by each part
        self.share = 1 / num_parts
        self._parts = _split(batch, num_parts)
        self._turns = [threading.Semaphore(0) for _ in self._parts]
        self._names = [*algo.COUNTERS, *(["td_errors"] if hasattr(algo, "td_errors") else [])]
        self._attributes = [self._look() for _ in self._parts]
        self._index = 0  # of the part whose turn it is
        self._values: list[Any] = []  # given to ``together`` by the parts so far
        self._result: Any = None  # of the last call of ``once``
        self._infos: list[Mapping[str, Any]] = []
        self._error: BaseException | None = None
        is_on_gpu = algo.device.type == "cuda"
        self._stream = torch.cuda.current_stream(algo.device) if is_on_gpu else None

    def __call__(self) -> dict[str, Any]:
        """Compute the update. Returns the means of what the updates of the parts return."""
        share_freed_memory()
        threads = [
            threading.Thread(target=self._work, args=(index, torch.is_grad_enabled()), daemon=True)
            for index in range(self._num)
        ]
        for thread in threads:
            thread.start()
        self._turns[0].release()
        try:
            for thread in threads:
                thread.join()
        except BaseException as error:  # an interrupt
            self._fail(error)
            for thread in threads:
                thread.join()
            raise
        if self._error is not None:
            raise self._error
        errors = [x["td_errors"] for x in self._attributes if x.get("td_errors") is not None]
        if errors:
            self._algo.td_errors = torch.cat(errors)
        return {name: _mean([x[name] for x in self._infos]) for name in self._infos[0]}

    def once(self, function: Callable[[], T]) -> T:
        """Wait for all parts, and let the last of them call the function. Returns its result."""
        if self.ends:
            self._result = function()
        self._pass_on()
        return self._result

    def together(self, value: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
        self._values.append(value)
        return self.once(lambda: reduce(self._take_values(), 0))

    def counted(self, mask: Tensor) -> Tensor:
        setattr(mask, MEAN_COUNT, self.together(mask.sum(), Tensor.mean))
        return mask

    def _take_values(self) -> Tensor:
        values, self._values = self._values, []
        return torch.stack(values)

    def _work(self, index: int, with_gradients: bool) -> None:
        self._turns[index].acquire()
        try:
            if self._error is not None:
                return
            with ExitStack() as until_done:
                if self._stream is not None:  # each thread has its own, and its own device
                    until_done.enter_context(torch.cuda.stream(self._stream))
                until_done.enter_context(torch.set_grad_enabled(with_gradients))
                self._infos.append(updated(self._algo, self._parts[index]))
            self._attributes[index] = self._look()
            if index < self._num - 1:
                self._give_turn(index + 1)
        except _LeftError:
            pass
        except BaseException as error:
            self._fail(error)

    def _pass_on(self) -> None:
        """Let the next part work, and wait for this one's turn."""
        index = self._index
        self._attributes[index] = self._look()
        self._give_turn((index + 1) % self._num)
        self._turns[index].acquire()
        if self._error is not None:
            raise _LeftError

    def _give_turn(self, index: int) -> None:
        self._index, self.begins, self.ends = index, index == 0, index == self._num - 1
        vars(self._algo).update(self._attributes[index])
        self._turns[index].release()

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        for turn in self._turns:
            turn.release()

    def _look(self) -> dict[str, Any]:
        return {name: getattr(self._algo, name) for name in self._names}


def _mean(values: Sequence[Any]) -> Any:
    first = values[0]
    if not isinstance(first, Tensor):
        return first if first is None or isinstance(first, str) else sum(values) / len(values)
    return torch.stack([x.detach() for x in values]).mean(0)


def _split(batch: Mapping[str, Any], num_parts: int) -> list[dict[str, Any]]:
    """Split a batch into equal parts; what has no samples, such as a number, is in each of them.
    Raises ``ValueError`` for a batch that has no such parts."""
    samples = {key: x for key, x in leaves(batch).items() if _has_samples(x)}
    size = len(samples["actions"]) if "actions" in samples else mode(map(len, samples.values()))
    for key, x in samples.items():
        if len(x) != size:
            raise ValueError(
                f"train.accumulate: {key} in the batch has the shape {[*x.shape]}, but what is "
                f"split has the {size} samples first; let process_batch_for_training make it "
                f"[{size}, ...]"
            )
    if size % num_parts:
        raise ValueError(
            f"train.accumulate: {num_parts}, but the batch has {size} samples, which are not so "
            "many equal parts; give train.batch_size times as many"
        )
    slices = [slice(i, i + size // num_parts) for i in range(0, size, size // num_parts)]
    parts = [map_leaves(lambda x, i=i: x[i] if _has_samples(x) else x, batch) for i in slices]
    if batch.get("pad_mask") is not None:
        whole = batch["pad_mask"].sum() / num_parts
        for part in parts:
            setattr(part["pad_mask"], MEAN_COUNT, whole)
    return parts


def _has_samples(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0
