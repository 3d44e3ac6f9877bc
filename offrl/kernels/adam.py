"""``torch.optim.Adam`` and ``AdamW``, called with less ado."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch


class Fused(torch.optim.Optimizer):
    """PyTorch's optimizer, its ``step`` no more than its kernel: hooks, closures, gradient scalers
    and ``amsgrad``, which offrl does not use, cost tens of microseconds
    (``docs/benchmarks.md``)."""

    KERNEL: ClassVar[Callable[..., None]]

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            states = [self.state[p] or self._start(p) for p in parameters]
            steps = [state["step"] for state in states]
            # A plain number would become one tensor per parameter.
            torch._foreach_add_(steps, steps[0].new_ones(()), alpha=1)
            beta1, beta2 = group["betas"]
            type(self).KERNEL(
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

    def _start(self, parameter: torch.Tensor) -> dict[str, Any]:
        self.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
        return self.state[parameter]


class Adam(Fused, torch.optim.Adam):
    KERNEL = torch._fused_adam_


class AdamW(Fused, torch.optim.AdamW):
    KERNEL = torch._fused_adamw_
