"""Acts as ``train.engine`` says: one kernel after another, or as CUDA graphs of captured calls."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from offrl.algos.shared.algo import Generators
from offrl.algos.shared.engine import (
    MOST_GRAPHS,
    WARM_UP,
    beside,
    captured,
    copy_into,
    form_of,
    in_a_line,
    tensors_in,
)
from offrl.models.draws import StandIns
from offrl.tree import map_leaves

log = logging.getLogger(__name__)
Predict = Callable[..., Tensor]


class _Graph(NamedTuple):
    replay: Callable[[], None]
    inputs: list[Tensor]
    draws: "Draws"
    result: Tensor


class ActingGraphs:
    """Calls a function by which a policy predicts, as CUDA graphs if ``train.engine`` says so.

    The function depends on nothing but its inputs, the tensors of the algorithm and random numbers.
    There is a graph for each form of the inputs, and for each place where the weights lie: averages
    take theirs (``Average.show``). It is captured when they are first seen, so that only a first
    call takes long. What the rows' generators draw is drawn before a graph starts. A call that
    cannot be captured is made eagerly, as are all after it, and a message says so.
    """

    def __init__(self) -> None:
        self._captures = True
        self._graphs: dict[Any, _Graph | None] = {}  # ``None``: cannot be captured
        self._num_loads = -1  # at which ``_weights`` are the algorithm's, and ``_graphs`` hold
        self._weights: list[Tensor] = []

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of the algorithm has graphs of its own."""
        return type(self), ()

    def __call__(
        self, algo: Any, predict: Predict, inputs: Mapping[str, Any], generators: Generators
    ) -> Tensor:
        """Return ``predict(**inputs, generators=generators)``.

        inputs: nested dicts of tensors.
        """
        eager = partial(predict, **inputs, generators=generators)
        if not self._captures or not acts_by_graphs(algo):
            return eager()
        if self._num_loads != algo.num_loads:
            self._graphs.clear()
            self._weights = [*algo.nets.parameters(), *algo.nets.buffers()]
            self._num_loads = algo.num_loads
        tensors = tensors_in(inputs)
        places = tuple(x.data_ptr() for x in self._weights)
        mode = generators is None, algo.explores, torch.is_inference_mode_enabled()
        key = form_of(tensors), places, mode
        if key not in self._graphs:
            if len(self._graphs) == MOST_GRAPHS:
                return eager()
            self._graphs[key] = self._capture(algo.device, predict, inputs, generators)
        graph = self._graphs[key]
        if graph is None:
            return eager()
        copy_into(graph.inputs, tensors.values())
        graph.draws.fill(generators or ())
        graph.replay()
        return graph.result.clone()

    def _capture(
        self,
        device: torch.device,
        predict: Predict,
        inputs: Mapping[str, Any],
        generators: Generators,
    ) -> _Graph | None:
        """Capture a call. Returns ``None`` if it cannot be captured."""
        static = map_leaves(lambda x: x.to(device, copy=True), inputs)
        draws = Draws(len(generators or ()), device)

        def call() -> Tensor:
            return predict(**static, generators=draws.generators or None)

        def call_with_draws() -> Tensor:
            with draws:
                return call()

        try:
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                for _ in range(WARM_UP):
                    beside(device, call)
                replay, result = captured(device, call_with_draws)
        except RuntimeError as error:
            self._captures = False
            log.warning(
                "train.engine: no graphs of chunks, as they cannot be captured: %s",
                in_a_line(error),
            )
            return None
        return _Graph(replay, [*tensors_in(static).values()], draws, result)


def acts_by_graphs(algo: Any) -> bool:
    """Say if an algorithm is to act by graphs, here and now: on a GPU, where nothing else is
    captured, and outside of training and of autocast, which keeps copies of weights."""
    if algo.global_config.train.engine != "graph" or algo.device.type != "cuda":
        return False
    if torch.is_grad_enabled() or torch.is_autocast_enabled(algo.device.type):
        return False
    return not torch.cuda.is_current_stream_capturing()


class Draws(TorchFunctionMode):
    """Puts a tensor on the device in the place of each draw from the ``generators`` of rows, and
    fills these tensors with draws from others, in the same order."""

    def __init__(self, num_rows: int, device: torch.device):
        super().__init__()
        self.generators = StandIns(torch.Generator() for _ in range(num_rows))
        self._rows = {id(generator): row for row, generator in enumerate(self.generators)}
        self._device = device
        self._draws: list[tuple[int, Callable[..., Tensor]]] = []
        self._places: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        row = self._rows.get(id(options.get("generator")))
        drawn = func(*args, **options)
        if row is None:
            return drawn
        if drawn.dtype != torch.float32 or any(isinstance(x, Tensor) for x in args):
            raise RuntimeError(f"{func.__name__} draws otherwise than torch.rand and torch.randn")
        del options["generator"]
        place = torch.empty_like(drawn, device=self._device)
        self._draws.append((row, partial(func, *args, **options)))
        self._places.append(place.view(-1))
        return place

    def fill(self, generators: Sequence[torch.Generator | None]) -> None:
        """Draw from generators; rows without one are zero."""
        if not self._draws:
            return
        drawn = [
            torch.zeros(len(place)) if generators[row] is None else draw(generator=generators[row])
            for place, (row, draw) in zip(self._places, self._draws, strict=True)
        ]
        numbers = torch.cat([x.flatten() for x in drawn]).to(self._device)  # one copy for all
        copy_into(self._places, numbers.split([len(x) for x in self._places]))
