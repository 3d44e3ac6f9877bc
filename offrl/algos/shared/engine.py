"""Makes the steps of a training: one kernel after another, as CUDA graphs of captured ones, or as
compiled ones."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

from offrl import parallel
from offrl.algos.shared.updates import precisely
from offrl.config import Config
from offrl.lazy import Tensor, torch
from offrl.seeding import preserved_rng
from offrl.tree import leaves, map_leaves

log = logging.getLogger(__name__)
T = TypeVar("T")

WARM_UP = 3  # eager steps before a capture, in which kernels are chosen and states are made
MOST_GRAPHS = 8
CAPTURING = ("graph", "compile")
# By how many epochs and counts a later update is looked for that has the key of one at hand.
NUMBERS = (720720, 5040, 60, 12, 2, 1)
LATER = [*((num, num) for num in NUMBERS), *((0, num) for num in NUMBERS), (0, 0)]


class _Counted(NamedTuple):
    counters: dict[str, int]  # what a step adds to them
    stepped: list[str]  # networks whose optimizers make a step


class _Graph(NamedTuple):
    replay: Callable[[], None]
    inputs: list[Tensor]
    info: dict[str, Tensor]
    errors: Tensor | None  # ``td_errors``
    counted: list[_Counted]  # by each of the ``_learners``


class Engine:
    """Makes the steps of an algorithm's training as ``train.engine`` says.

    With ``graph``, the kernels of a whole step (``process_batch_for_training``, ``update``) are
    captured as one CUDA graph, and start at once from then on. With ``compile``, its operators
    become one function by PyTorch's compiler. Either holds as long as the batches have the same
    shapes and the updates go the same way (``Algo.graph_key``). Numbers that Python counts in an
    update are counted beside it, and those that follow from them (learning rates, decays of
    averages) reach it in tensors. If a step cannot be captured, a message says so, and such steps
    are made eagerly. So are those of algorithms that wait for the device, and those of processed
    batches that have not ``train.batch_size`` samples: rounds of acting have as many as it comes.
    """

    def __init__(self, algo: Any):
        self._algo = algo
        self._kind = algo.global_config.train.engine
        self._num_eager: Counter[Any] = Counter()  # steps, by the keys of graphs
        self._graphs: dict[Any, _Graph | None] = {}  # ``None``: cannot be captured
        self._said: set[str] = set()

    def go_on(self, epoch: int | None) -> None:
        """Let the next step follow one of this epoch; ``None``: it is the first of its epoch."""
        for learner in _learners(self._algo):
            learner.epoch = epoch

    def step(self, batch: Mapping[str, Any], epoch: int, is_raw: bool = True) -> dict[str, Tensor]:
        """Make a step. Returns what ``train_on_batch`` returns, in tensors that the next step may
        change.

        is_raw: ``process_batch_for_training`` is yet to be called.
        """
        algo = self._algo

        def make_step(of: Any, later: int = 0) -> dict[str, Tensor]:
            ready = algo.process_batch_for_training(of) if is_raw else of
            return algo.train_on_batch(ready, epoch + later)

        # The first step of an epoch settles networks that no longer learn.
        if self._kind not in CAPTURING or epoch != algo.epoch:
            return make_step(batch)
        tensors = tensors_in(batch)
        if why_not := self._why_eager(tensors, is_raw):
            if why_not not in self._said:
                log.info("train.engine: %s", why_not)
            self._said.add(why_not)
            return make_step(batch)
        num_loads = tuple(x.num_loads for x in _learners(algo))
        key = is_raw, form_of(tensors), algo.graph_key(), num_loads
        if key not in self._graphs:
            self._num_eager[key] += 1
            if self._kind == "graph" and self._num_eager[key] <= WARM_UP:
                return beside(algo.device, lambda: make_step(batch))
            if len(self._graphs) == MOST_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
            self._graphs[key] = self.capture(batch, make_step)
        graph = self._graphs[key]
        return make_step(batch) if graph is None else self._replay(graph, tensors.values())

    def _why_eager(self, tensors: Mapping[str, Tensor], is_raw: bool) -> str | None:
        if not self._algo.is_capturable():
            return "updates that wait for numbers, or that Python draws, are eager"
        size = self._algo.global_config.train.batch_size
        if is_raw or any(x.ndim and len(x) == size for x in tensors.values()):
            return None
        return "batches of more or fewer samples than train.batch_size are learned from eagerly"

    def capture(self, batch: Any, make_step: Callable[..., Any]) -> _Graph | None:
        """Capture a step without making it. Returns ``None`` if it cannot be captured."""
        static = map_leaves(lambda x: x.clone(), batch)

        def make(later: int = 0) -> tuple[tuple[Any, Tensor | None], list[_Counted]]:
            return self._counted(
                lambda: (make_step(static, later), getattr(self._algo, "td_errors", None))
            )

        def make_later() -> Any:
            with self._later() as epochs:
                return make(epochs)

        for learner in _learners(self._algo):
            learner.tell_counts()
        try:
            with _unchanged([*_learners(self._algo)]):
                if self._kind == "compile":
                    with preserved_rng():
                        self._compiler.undone(make)  # optimizers make states
                        compiled, (result, counted) = self._compiler(make, make_later)
                    replay: Callable[[], None] = partial(precisely, self._algo, compiled)
                else:
                    replay, (result, counted) = self._as_graph(make, make_later)
            for names in (x.stepped for x in counted):
                if len({*names}) < len(names):
                    raise RuntimeError(f"{names[0]} makes several optimizer steps in an update")
        except RuntimeError as error:
            said = "train.engine: steps are eager, as one cannot be %s: %s%s"
            done = "compiled" if self._kind == "compile" else "captured"
            hint = "; offrl.testing.check_algo tells more" if _is_of_user(self._algo) else ""
            log.warning(said, done, in_a_line(error), hint)
            return None
        info, errors = result
        return _Graph(replay, [*tensors_in(static).values()], info, errors, counted)

    def _as_graph(self, make: Callable[[], T], later: Callable[[], T]) -> tuple[Any, T]:
        """Capture a step, as ``captured`` does. A later one must make the same calls."""
        from offrl.kernels.operators import NUMBERS_CHANGE, calls_of

        replay, (result, calls) = captured(self._algo.device, lambda: calls_of(make))
        _, (_, calls_later) = captured(self._algo.device, lambda: calls_of(later))
        if calls != calls_later:
            raise RuntimeError(NUMBERS_CHANGE)
        return replay, result

    @contextmanager
    def _later(self) -> Iterator[int]:
        """Let counts in a ``with`` block be those of a later update with the same key. Yields by
        how many epochs it is later."""
        learners, key = [*_learners(self._algo)], self._algo.graph_key()
        before = [{name: getattr(x, name) for name in (*x.COUNTERS, "epoch")} for x in learners]
        try:
            for epochs, updates in LATER:
                for learner, counts in zip(learners, before, strict=True):
                    for name, num in counts.items():
                        setattr(learner, name, num + (epochs if name == "epoch" else updates))
                if self._algo.is_capturable() and self._algo.graph_key() == key:
                    break
            yield epochs
        finally:
            for learner, counts in zip(learners, before, strict=True):
                vars(learner).update(counts)

    @cached_property
    def _compiler(self) -> Any:
        from offrl.kernels.compiled import Compiler

        return Compiler()

    def _counted(self, function: Callable[[], T]) -> tuple[T, list[_Counted]]:
        """Call a function in which a step is made that is not to count. Returns its result, and
        what would have been counted."""
        learners = [*_learners(self._algo)]
        stepped: list[list[str]] = [[] for _ in learners]
        before = [{name: getattr(x, name) for name in x.COUNTERS} for x in learners]
        counted = []
        with ExitStack() as until_made:
            for learner, names, was in zip(learners, stepped, before, strict=True):
                vars(learner)["count_step"] = names.append  # counted when the step is made
                until_made.callback(vars(learner).update, was)
                until_made.callback(vars(learner).pop, "count_step")
            result = function()
            for learner, names, was in zip(learners, stepped, before, strict=True):
                added = {name: getattr(learner, name) - x for name, x in was.items()}
                counted.append(_Counted(added, names))
        return result, counted

    def _replay(self, graph: _Graph, tensors: Iterable[Tensor]) -> dict[str, Tensor]:
        copy_into(graph.inputs, tensors)
        for learner in _learners(self._algo):
            learner.tell_counts()
        graph.replay()
        for learner, counted in zip(_learners(self._algo), graph.counted, strict=True):
            for name, num in counted.counters.items():
                setattr(learner, name, getattr(learner, name) + num)
            for name in counted.stepped:
                learner.count_step(name)
        if graph.errors is not None:
            self._algo.td_errors = graph.errors
        return graph.info


def chosen_engine(config: Config, device: "torch.device", resumes: bool) -> Any:
    """Return ``train.engine`` with a choice in the place of ``auto``. Raises ``ValueError`` for
    one that the device, a missing compiler, or another key rules out.

    resumes: The training has begun. Those of earlier versions stay as they were (``auto``).
    """
    train = config.train
    if train.engine == "auto":
        return "auto" if resumes else "eager"
    problems = {
        "needs a GPU, and the training finds or uses none (train.cuda)": train.engine == "graph"
        and device.type != "cuda",
        "is for one process, but those of torchrun exchange gradients": parallel.num_ranks() > 1,
        "is for whole batches, but train.accumulate makes a step of parts": train.accumulate > 1,
    }
    for problem, is_met in problems.items():
        if train.engine in CAPTURING and is_met:
            raise ValueError(f'train.engine: {train.engine} {problem}; set train.engine to "eager"')
    if train.engine == "compile" and device.type == "cpu":
        from offrl.kernels.compiled import check_compiler

        check_compiler()
    return train.engine


@contextmanager
def _unchanged(learners: Sequence[Any]) -> Iterator[None]:
    """Undo what updates in a ``with`` block do to attributes, lists and dicts of learners, and put
    back tensors of networks that they replace. Raises ``RuntimeError`` if there were any, as
    captured steps would leave them as they are."""
    owned = [(name, x) for learner in learners for name, x in vars(learner).items()]
    lists = [(name, x, [*x]) for name, x in owned if type(x) is list]
    places: list[dict[str, Any]] = [vars(learner) for learner in learners]
    places += [x for _, x in owned if type(x) is dict]
    places += [vars(x) for _, x in owned if _is_of_user(x)]
    dicts = [(x, {**x}) for x in places]
    states = [(x.nets, x.nets.state_dict()) for x in learners]
    changed = []
    try:
        yield
    finally:
        for now, items in dicts:
            changed += [name for name, x in items.items() if _is_another(now.get(name), x)]
            now.update(items)
        for name, values, before in lists:
            changed += [name] if len(values) != len(before) else []
            values[:] = before
        for nets, tensors in states:
            for name, x in nets.state_dict().items():
                if x.data_ptr() != tensors[name].data_ptr():
                    changed.append(name)
                    x.copy_(tensors[name])
    for name in {*changed} - {"td_errors"}:
        raise RuntimeError(f"update changes {name} otherwise than by operators on its memory")


def _is_of_user(value: Any) -> bool:
    package, _, _ = type(value).__module__.partition(".")
    return hasattr(value, "__dict__") and package not in ("torch", "offrl")


def _is_another(value: Any, before: Any) -> bool:
    return value is not before and not (isinstance(before, (int, float)) and value == before)


def _learners(algo: Any) -> Iterator[Any]:
    """Yield an algorithm and its parts, which have optimizers of their own."""
    yield algo
    for part in getattr(algo, "parts", {}).values():
        yield from _learners(part)


def tensors_in(batch: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors in nested dicts by their paths, without absent parts (``None``)."""
    return {name: x for name, x in leaves(batch).items() if x is not None}


def form_of(tensors: Mapping[str, Tensor]) -> tuple[Any, ...]:
    """Return all of the inputs of a step that a graph of it is made for."""
    return tuple((name, x.shape, x.dtype, x.device) for name, x in tensors.items())


def copy_into(places: list[Tensor], tensors: Iterable[Tensor]) -> None:
    """Give a graph its next inputs."""
    torch._foreach_copy_(places, [*tensors])


def in_a_line(error: Exception) -> str:
    """Return the beginning and the end of an error's text, for the log."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:100]} ... {text[-200:]}"


def beside(device: "torch.device", function: Callable[[], T]) -> T:
    """Call a function on a stream of its own, as captures are made on one."""
    present, other = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    other.wait_stream(present)
    with torch.cuda.stream(other):
        result = function()
    present.wait_stream(other)
    return result


def captured(device: "torch.device", function: Callable[[], T]) -> tuple[Callable[[], None], T]:
    """Capture the kernels that a function starts. Returns a function that starts them, and the
    result, whose tensors each start fills. Raises ``RuntimeError`` if the function waits for the
    device."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
    # Other threads, those of a robot's program for example, go on using the device.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        result = function()
    return graph.replay, result
