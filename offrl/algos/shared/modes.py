"""The modes of layers that know training from evaluation (batch norm, dropout, random crops): they
are in training mode in updates and nowhere else."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar

from offrl.algos.shared.weights import Average

if TYPE_CHECKING:
    from torch import nn


class Modes:
    """Puts networks into their modes. While a method of ``REST`` runs, no layer is in training
    mode: the result for a row does not depend on the rows beside it, and no statistics move."""

    #: Methods that ask the networks for something, and so never run in training mode.
    REST: ClassVar[tuple[str, ...]] = (
        *("act", "explore", "chunk", "get_action", "action_distribution", "plan"),
        *("sample_subgoals", "get_state_value", "get_state_action_value"),
    )

    nets: "nn.ModuleDict"
    _average: Average
    _layers: "Sequence[nn.Module]" = ()  # all of them, gathered once, as that takes long
    _resting: "Sequence[nn.Module]" = ()  # layers that return to training mode after ``at_rest``

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in cls.REST:
            if callable(vars(cls).get(name)):
                setattr(cls, name, _at_rest(vars(cls)[name]))

    @property
    def rests(self) -> bool:
        """Say whether the networks return to training mode after ``at_rest``."""
        return bool(self._resting)

    def set_train(self) -> None:
        """Put the networks into training mode (batch norm, dropout, random crops), for updates."""
        self._resting = self._layers = ()
        self.nets.train()
        self._average.show(False)

    def set_eval(self) -> None:
        """Put the networks into evaluation mode, with averaged weights if ``train.ema`` says so."""
        self._resting = ()
        if self.nets.training:  # each episode begins with this, and modules are many
            self.nets.eval()
        self._average.show(True)

    @contextmanager
    def trained_weights(self) -> Iterator[None]:
        """Let the networks have the trained weights, not the averages, in a ``with`` block."""
        shown = self._average.shown
        self._average.show(False)
        try:
            yield
        finally:
            self._average.show(shown)

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Keep all layers out of training mode in a ``with`` block, with unchanged weights."""
        if not self.nets.training:
            yield
            return
        self._layers = self._layers or [*self.nets.modules()]
        self._resting = [layer for layer in self._layers if layer.training]
        for layer in self._resting:
            layer.__dict__["training"] = False  # to set it through nn.Module takes long
        try:
            yield
        finally:
            for layer in self._resting:  # empty if set_train or set_eval was called meanwhile
                layer.__dict__["training"] = True
            self._resting = ()


def _at_rest(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def rests(self: Any, *arguments: Any, **options: Any) -> Any:
        if not self.nets.training:
            return method(self, *arguments, **options)
        with self.at_rest():
            return method(self, *arguments, **options)

    return rests
