"""``torch.optim.Adam`` and ``AdamW``, called with less ado: 5 % of IQL's step. And without numbers
below 1e-38, which processors are ten times slower with: a quarter of DQN's step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch

TINY = 1e-310


@contextmanager
def tiny_is_zero() -> Iterator[None]:
    """Let this thread take numbers that are too small to be normal for zero. Moments of gradients
    that have vanished, of dead ReLUs for example, decay into these."""
    was_so = TINY == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(was_so)


class Direct(torch.optim.Optimizer):
    """PyTorch's optimizer, its ``step`` no more than its fused kernel: hooks, profiles, closures,
    gradient scalers and ``amsgrad``, which offrl does not use, take two thirds of a small step."""

    KERNEL: ClassVar[str]

    def zero_grad(self, set_to_none: bool = True) -> None:
        if not set_to_none:
            super().zero_grad(set_to_none)
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        has_kernels = hasattr(torch, self.KERNEL) and hasattr(torch, "_foreach_add_")
        due = [[p for p in group["params"] if p.grad is not None] for group in self.param_groups]
        if not has_kernels or not all(self.state[p] for parameters in due for p in parameters):
            super().step()  # which also makes the states
            return
        for group, parameters in zip(self.param_groups, due, strict=True):
            if not parameters:
                continue
            states = [self.state[p] for p in parameters]
            steps = [state["step"] for state in states]
            # A plain number would become one tensor per parameter.
            torch._foreach_add_(steps, steps[0].new_ones(()), alpha=1)
            beta1, beta2 = group["betas"]
            with tiny_is_zero():
                getattr(torch, self.KERNEL)(
                    parameters,
                    [p.grad for p in parameters],
                    [state["exp_avg"] for state in states],
                    [state["exp_avg_sq"] for state in states],
                    [],
                    steps,
                    lr=group["lr"],
                    beta1=beta1,
                    beta2=beta2,
                    weight_decay=group["weight_decay"],
                    eps=group["eps"],
                    amsgrad=False,
                    maximize=False,
                )

    step.hooked = True  # type: ignore[attr-defined]  # PyTorch wraps no step that says so


class Adam(Direct, torch.optim.Adam):
    KERNEL = "_fused_adam_"


class AdamW(Direct, torch.optim.AdamW):
    KERNEL = "_fused_adamw_"
