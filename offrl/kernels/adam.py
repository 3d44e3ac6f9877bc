"""``torch.optim.Adam``, ``AdamW`` and ``RMSprop`` without overhead, which saves 5 % of IQL's step;
Adam without numbers below 1e-38, with which processors are ten times slower (a quarter of DQN's
step); and all without PyTorch's compiler, which an optimizer imports even where nothing is compiled
(a third of the start of a training)."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch

from offrl.kernels.end_to_end import EndToEnd

TINY = 1e-310

Tensors = list[Any]
State = dict[str, Any]


@contextmanager
def tiny_is_zero() -> Iterator[None]:
    """Let this thread treat numbers that are too small to be normal as zero. Moments of vanished
    gradients, of dead ReLUs for example, decay into these."""
    was_so = TINY == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(was_so)


class Direct(torch.optim.Optimizer):
    """An optimizer of PyTorch's whose ``step`` calls the kernels alone: hooks, profiles, closures,
    gradient scalers and ``amsgrad``, which offrl does not use, take two thirds of a small step."""

    KERNELS: ClassVar[tuple[str, ...]]

    # PyTorch wraps these methods in a function that tells the compiler to leave them alone, and
    # imports the compiler (torch._dynamo) for that. Methods without a wrapper stay as they are.
    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        if not set_to_none:
            inspect.unwrap(torch.optim.Optimizer.zero_grad)(self, set_to_none)
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                if isinstance(parameter, EndToEnd):
                    parameter.zero_grad()
                else:
                    parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        has_kernels = all(hasattr(torch, name) for name in ("_foreach_add_", *self.KERNELS))
        due = [[p for p in group["params"] if p.grad is not None] for group in self.param_groups]
        if not has_kernels or not all(self.state[p] for parameters in due for p in parameters):
            # PyTorch's own step also makes the states.
            inspect.unwrap(super().step.__func__)(self)  # type: ignore[attr-defined]
            return
        for group, parameters in zip(self.param_groups, due, strict=True):
            if not parameters:
                continue
            states = [self.state[p] for p in parameters]
            steps = [state["step"] for state in states]
            # A plain number would become one tensor per parameter.
            torch._foreach_add_(steps, steps[0].new_ones(()), alpha=1)
            self.move(parameters, [p.grad for p in parameters], states, group)

    step.hooked = True  # type: ignore[attr-defined]  # PyTorch wraps no step that says so

    def move(self, parameters: Tensors, grads: Tensors, states: list[State], group: State) -> None:
        """Move the parameters of a group by their gradients."""
        raise NotImplementedError(type(self).__name__)


class Adam(Direct, torch.optim.Adam):  # type: ignore[misc]
    KERNELS = ("_fused_adam_",)

    def move(  # type: ignore[misc]  # AdamW's as well
        self: Direct, parameters: Tensors, grads: Tensors, states: list[State], group: State
    ) -> None:
        beta1, beta2 = group["betas"]
        with tiny_is_zero():
            getattr(torch, self.KERNELS[0])(
                parameters,
                grads,
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                lr=group["lr"],
                beta1=beta1,
                beta2=beta2,
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )


class AdamW(Direct, torch.optim.AdamW):  # type: ignore[misc]
    KERNELS = ("_fused_adamw_",)
    move = Adam.move


class RMSprop(Direct, torch.optim.RMSprop):  # type: ignore[misc]
    KERNELS = ("_foreach_mul_", "_foreach_addcmul_", "_foreach_sqrt", "_foreach_addcdiv_")

    def move(self, parameters: Tensors, grads: Tensors, states: list[State], group: State) -> None:
        if group["weight_decay"]:
            grads = [*torch._foreach_add(grads, parameters, alpha=group["weight_decay"])]
        squares = [state["square_avg"] for state in states]
        torch._foreach_mul_(squares, group["alpha"])
        torch._foreach_addcmul_(squares, grads, grads, 1 - group["alpha"])
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, group["eps"])
        torch._foreach_addcdiv_(parameters, grads, roots, -group["lr"])
