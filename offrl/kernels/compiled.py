"""Steps as functions that PyTorch's compiler (inductor) makes of their operators."""

import logging
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count, groupby
from typing import Any, TypeVar

import torch
from torch import Tensor, fx
from torch.fx.passes.split_module import split_module
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from offrl.kernels.operators import NUMBERS_CHANGE, OperatorMode

log = logging.getLogger(__name__)
T = TypeVar("T")
# Operators on many tensors, most of which write into them: a graph is compiled up to these and from
# them on. (In its midst, inductor may read what they wrote in the place of what was there before.)
BETWEEN = ("aten::_fused_", "aten::_foreach_")
LEAST_NODES = 12  # operators that are worth being compiled together
# Inductor has no form of these.
OPAQUE = ("aten::random_", "mkldnn::")
READING = (Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__repr__)
LIBRARY = torch.library.Library("offrl", "FRAGMENT")


def check_compiler() -> None:
    """Raise ``ValueError`` if there is no C++ compiler, which inductor needs for a CPU, or no
    folder for what it compiles."""
    # It warns that it finds no GPU, which is no news where a CPU was chosen.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    try:
        from torch._inductor.cpp_builder import get_cpp_compiler

        get_cpp_compiler()
    except OSError as error:
        raise ValueError(
            f"train.engine: compile needs a folder to write to ({error}); set "
            'TORCHINDUCTOR_CACHE_DIR to one, or train.engine to "eager"'
        ) from None
    except Exception as error:
        raise ValueError(
            f"train.engine: compile needs a C++ compiler, and PyTorch finds none ({error}); "
            'install g++, or name another by CXX (CXX=clang++), or set it to "eager"'
        ) from None


class Compiler:
    """Compiles steps. The same operators with the same shapes are compiled once."""

    def __init__(self) -> None:
        self._made: dict[Any, Callable[..., Any]] = {}

    def undone(self, function: Callable[[], T]) -> T:
        """Call a function, and undo what its operators wrote into tensors."""
        with _Undo():
            return function()

    def __call__(
        self, function: Callable[[], T], later: Callable[[], T]
    ) -> tuple[Callable[[], None], T]:
        """Return a function that does what ``function`` does, and its result, whose tensors each
        call fills. What ``function`` writes is undone; random numbers are drawn. Raises
        ``RuntimeError`` if it cannot be compiled, or ``later``, which stands for its later calls,
        goes another way."""
        module, inputs, result = _traced(function)
        again, others, _ = _traced(later)
        if module.code != again.code or not all(map(_is_same, inputs, others)):
            raise RuntimeError(NUMBERS_CHANGE)
        result = tree_map_only(Tensor, lambda x: x.detach().clone(), result)
        compute, filled = self._compute(module, inputs), _tensors(result)

        @torch.no_grad()
        def replay() -> None:
            torch._foreach_copy_(filled, compute(*inputs))

        return replay, result

    def _compute(self, module: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        forms = [(x.shape, x.stride(), x.dtype, x.device) for x in inputs]
        key = module.code, *forms
        if key not in self._made:
            log.info("train.engine: compiling a kind of step, which may take a minute or two")
            self._made[key] = _compiled(module, inputs)
        return self._made[key]


def _traced(function: Callable[[], T]) -> tuple[fx.GraphModule, list[Tensor], T]:
    """Return the operators that a function calls, the tensors that they begin with, and its
    result."""
    with _recurrent_by_step(), _Undo(), _NoReading(), _Trace() as trace:
        result = function()
    results = _tensors(result)
    if not results:
        raise RuntimeError("update returns no tensors")
    graph, inputs = trace.finish(results)
    try:
        return fx.GraphModule({}, graph), inputs, result
    except SyntaxError as error:  # an argument that Python has no words for
        raise RuntimeError(f"update makes a call that cannot be compiled: {error.text}") from error


def _is_same(tensor: Tensor, other: Tensor) -> bool:
    return tensor.data_ptr() == other.data_ptr() or torch.equal(tensor, other)


@torch.no_grad()
def _compiled(module: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
    """Compile the parts of a module that are worth it, and try it with copies of the inputs."""
    parts = _parts(module.graph)
    split = split_module(module, module, lambda node: parts[node][0], keep_original_order=True)
    for number, is_worth_it in set(parts.values()):
        name = f"submod_{number}"
        if is_worth_it:
            part = getattr(split, name)
            delattr(split, name)
            setattr(split, name, _Part(part))
    split.forward(*[torch.empty_like(x).copy_(x) for x in inputs])
    return split.forward


def _parts(graph: fx.Graph) -> dict[fx.Node, tuple[int, bool]]:
    """Return each operator's part, by its number and whether it is worth being compiled."""
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    runs = [(is_between, [*run]) for is_between, run in groupby(nodes, _is_between)]
    flat = [(not is_between and len(run) >= LEAST_NODES, run) for is_between, run in runs]
    parts: dict[fx.Node, tuple[int, bool]] = {}
    for number, (is_worth_it, group) in enumerate(groupby(flat, lambda run: run[0])):
        parts |= {node: (number, is_worth_it) for _, run in group for node in run}
    return parts


def _is_between(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        return _is_between(node.all_input_nodes[0])
    return node.target.name().startswith(BETWEEN)  # type: ignore[union-attr]


class _Part:
    """A part of a graph. It is compiled for what it is first called with."""

    def __init__(self, module: fx.GraphModule):
        self._module = module
        self._function: Callable[..., Any] | None = None

    def __call__(self, *args: Tensor) -> Any:
        if self._function is None:
            import torch._inductor

            # Random numbers are those of the generator whose state checkpoints hold.
            options = {"fallback_random": True, "alignment_asserts": False}
            try:
                self._function = torch._inductor.compile(self._module, [*args], options=options)
            except Exception as error:  # the compiler has many
                raise RuntimeError(f"{type(error).__name__}: {error}") from error
        return self._function(*args)


@contextmanager
def _recurrent_by_step() -> Iterator[None]:
    """Let recurrent layers be computed step by step, as inductor has no form of oneDNN's."""
    was_enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(was_enabled)


class _Undo(OperatorMode):
    """Undoes at the end of a ``with`` block what operators in it wrote into tensors."""

    def __init__(self) -> None:
        super().__init__()
        self._before: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for argument, x in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._before += [(there.detach(), there.clone()) for there in _tensors(x)]
        return func(*args, **kwargs or {})

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)
        with torch.no_grad():
            for tensor, before in reversed(self._before):
                tensor.copy_(before)


class _NoReading(TorchFunctionMode):
    """Refuses what reads tensors on a CPU without an operator."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READING:
            raise RuntimeError(f"Tensor.{func.__name__} reads numbers in tensors")
        return func(*args, **kwargs or {})


class _Trace(OperatorMode):
    """Makes a graph of the operators that are called in a ``with`` block. Tensors that were there
    before are its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self._graph = fx.Graph()
        self._inputs: list[Tensor] = []
        self._names = map("input_{}".format, count())
        self._nodes = WeakTensorKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _asks_for_numbers(func, args):
            raise RuntimeError(f"update goes by numbers in tensors, as .item() and if do ({func})")
        arguments = tree_map_only(Tensor, self._node, (args, kwargs or {}))
        result = func(*args, **kwargs or {})
        node = self._graph.call_function(_form_of(func), *arguments)
        if isinstance(result, Tensor):
            self._nodes.setdefault(result, node)
        elif isinstance(result, (list, tuple)):
            for index, x in enumerate(result):
                if isinstance(x, Tensor):
                    part = self._graph.call_function(operator.getitem, (node, index))
                    self._nodes.setdefault(x, part)
        return result

    def _node(self, tensor: Tensor) -> fx.Node:
        if tensor not in self._nodes:
            self._inputs.insert(0, tensor)
            with self._graph.inserting_before():  # at the beginning
                self._nodes[tensor] = self._graph.placeholder(next(self._names))
        return self._nodes[tensor]

    def finish(self, results: list[Tensor]) -> tuple[fx.Graph, list[Tensor]]:
        """Return the graph, and its inputs, none of which lies in the memory of another."""
        copy = torch.ops.aten.clone.default
        nodes = [self._graph.call_function(copy, (self._node(x),)) for x in results]
        self._graph.output(tuple(nodes))
        by_memory: dict[int, list[Tensor]] = {}
        for tensor in self._inputs:
            by_memory.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
        for memory, tensors in by_memory.items():
            if memory and len(tensors) > 1:  # empty tensors have none
                self._join(tensors)
        return self._graph, self._inputs

    def _join(self, tensors: list[Tensor]) -> None:
        """Make inputs views of one input."""
        first = tensors[0]
        if len({x.dtype for x in tensors}) > 1:
            raise RuntimeError("tensors of several kinds share memory")
        size = first.untyped_storage().nbytes() // first.element_size()
        whole = first.detach().as_strided((size,), (1,), 0)
        before = [self._nodes.pop(x) for x in tensors]
        base = self._node(whole)
        for tensor, node in zip(tensors, before, strict=True):
            with self._graph.inserting_before(node):
                view = self._graph.call_function(
                    torch.ops.aten.as_strided.default,
                    (base, tensor.shape, tensor.stride(), tensor.storage_offset()),
                )
            node.replace_all_uses_with(view)
            self._inputs = [x for x in self._inputs if x is not tensor]
            self._graph.erase_node(node)


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def _asks_for_numbers(func: Any, args: Any) -> bool:
    if func is torch.ops.aten.index.Tensor:
        return any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
    tags = func.tags
    return torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags


@cache
def _form_of(func: Any) -> Any:
    """Return what stands for an operator in graphs: itself, or one that inductor calls as it is."""
    if not func.name().startswith(OPAQUE):
        return func
    name = func.name().replace("::", "_").replace(".", "_").replace("from", "range")
    arguments, _, returns = str(func._schema).partition("(")[2].rpartition(" -> ")
    writes = func._schema.is_mutable

    def call(*args: Any, **kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        return None if writes else result

    def nothing(*args: Any, **kwargs: Any) -> None:
        pass

    tags = [tag for tag in func.tags if tag is torch.Tag.nondeterministic_seeded]
    LIBRARY.define(f"{name}({arguments} -> {'()' if writes else returns}", tags=tags)
    LIBRARY.impl(name, call, "CompositeExplicitAutograd")
    LIBRARY.impl(name, nothing if writes else call, "Meta")
    return getattr(torch.ops.offrl, name).default
