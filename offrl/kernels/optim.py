"""Steps of optimizers without overhead, and parameters that share one array."""

import copy
import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Parameter

HAS_KERNELS = hasattr(torch, "_foreach_norm") and hasattr(torch, "_foreach_mul_")
TINY = 1e-310

Tensors = list[Any]
State = dict[str, Any]


class EndToEnd(Parameter):
    """One parameter whose parts (views) are a network's parameters, with their gradients.

    So clipping and an optimizer step are a few calls for any number of layers, which saves 4 % of a
    round of PPO or A2C with small networks. All parts must get gradients if one of them does: a
    missing gradient counts as zero.
    """

    parts: list[Parameter]
    _gradients: list[torch.Tensor]

    @staticmethod
    def of(parameters: Iterable[Parameter]) -> "EndToEnd":
        """Join the parameters that require gradients."""
        parts = [p for p in parameters if p.requires_grad]
        whole = EndToEnd(torch.cat([p.detach().flatten() for p in parts]))
        whole.grad, whole.parts = torch.zeros_like(whole), parts
        sizes = [p.numel() for p in parts]
        for part, values in zip(parts, whole.detach().split(sizes), strict=True):
            part.data = values.view_as(part)
        gradients = zip(whole.grad.split(sizes), parts, strict=True)
        whole._gradients = [gradient.view_as(part) for gradient, part in gradients]
        whole.zero_grad()
        return whole

    def zero_grad(self) -> None:
        """Set the gradients of the parts, which are views of this one's, to zero."""
        if self.parts[0].data_ptr() != self.data_ptr():
            raise RuntimeError(
                "the parameters of a network no longer lie end to end, as it was moved; load the "
                "algorithm where it is to be (algo_factory, device)"
            )
        self.grad.zero_()  # type: ignore[union-attr]
        for part, gradient in zip(self.parts, self._gradients, strict=True):
            if part.grad is not gradient:  # another program replaced it
                part.grad = gradient

    def __deepcopy__(self, memo: dict[int, Any]) -> "EndToEnd":
        memo[id(self)] = copied = EndToEnd.of(copy.deepcopy(self.parts, memo))
        return copied

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return EndToEnd.of, (self.parts,)


class OnDevice:
    """A number that changes from step to step and that the device keeps, for captured steps."""

    def __init__(self, device: torch.device):
        self.tensor = torch.empty((), device=device)
        self._told: float | None = None

    def tell(self, number: float) -> Tensor:
        """Tell the device the number, if it does not know it. Returns the tensor there."""
        if number != self._told:
            self.tensor.fill_(number)
            self._told = number
        return self.tensor


def joined(state: dict[str, Any]) -> dict[str, Any]:
    """Join the state of an optimizer of parts (``Optimizer.state_dict``) to one of the whole."""
    if all(len(group["params"]) == 1 for group in state["param_groups"]):
        return state
    parts = [state["state"][index] for index in sorted(state["state"])]
    whole = {
        key: torch.cat([part[key].flatten() for part in parts]) if x.ndim else x
        for key, x in (parts[0] if parts else {}).items()
    }
    groups = [{**group, "params": [0]} for group in state["param_groups"]]
    return {"state": {0: whole} if parts else {}, "param_groups": groups}


def parts_of(parameters: Iterable[Parameter]) -> list[Parameter]:
    """List the parameters that get gradients: parts in place of an ``EndToEnd``."""
    parts = [getattr(parameter, "parts", [parameter]) for parameter in parameters]
    return [part for of_one in parts for part in of_one if part.requires_grad]


def clip_norm(gradients: list[Tensor], limit: float) -> Tensor:
    """Scale gradients down to the ``limit`` of their common norm, and return the norm before, as
    ``torch.nn.utils.clip_grad_norm_`` does. This saves 3 % of a step of small networks (PPO)."""
    norm = total_norm(gradients)
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    if HAS_KERNELS:
        torch._foreach_mul_(gradients, factor)
    else:
        for gradient in gradients:
            gradient.mul_(factor)
    return norm


def total_norm(gradients: list[Tensor]) -> Tensor:
    """Compute the norm of all elements together."""
    if not HAS_KERNELS:
        return torch.nn.utils.get_total_norm(gradients)
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))


@contextmanager
def tiny_is_zero() -> Iterator[None]:
    """Let this thread treat denormal numbers (below 1e-38) as zero: processors are ten times slower
    with these (a quarter of DQN's step). Moments of vanished gradients, as of dead ReLUs, become
    denormal."""
    was_so = TINY == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(was_so)


class LeanOptimizer(torch.optim.Optimizer):
    """A PyTorch optimizer whose ``step`` calls only the kernels: hooks, profiles, closures, scalers
    and ``amsgrad``, which offrl leaves out, take two thirds of a small step (5 % of IQL's)."""

    KERNELS: ClassVar[tuple[str, ...]]

    _rates: Sequence[OnDevice] = ()  # the learning rates of groups, where the device keeps them

    # PyTorch wraps these methods to exclude them from compilation, which imports the compiler
    # (torch._dynamo) and takes a third of a training's start. Here they have no wrapper.
    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)

    def load_state_dict(self, state_dict: State) -> None:
        inspect.unwrap(torch.optim.Optimizer.load_state_dict)(self, state_dict)
        self._place_counts()

    def _place_counts(self) -> None:
        """Move the counts of steps to the parameters. PyTorch keeps RMSprop's on the CPU."""
        for parameter, state in self.state.items():
            state["step"] = state["step"].to(parameter.device)

    def keep_rates(self, device: torch.device) -> None:
        """Keep the learning rates on the device."""
        self._rates = [OnDevice(device) for _ in self.param_groups]

    def tell_rates(self) -> None:
        """Tell the device the learning rates, if it keeps them."""
        for rate, group in zip(self._rates, self.param_groups, strict=False):
            rate.tell(group["lr"])

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
            self._place_counts()
            return
        groups = self.param_groups
        if self._rates:
            groups = [{**g, "lr": x.tensor} for g, x in zip(groups, self._rates, strict=True)]
        for group, parameters in zip(groups, due, strict=True):
            if not parameters:
                continue
            states = [self.state[p] for p in parameters]
            steps = [state["step"] for state in states]
            # A plain number would become one tensor per parameter.
            torch._foreach_add_(steps, steps[0].new_ones(()), alpha=1)
            self.move(parameters, [p.grad for p in parameters], states, group)

    step.hooked = True  # type: ignore[attr-defined]  # keeps PyTorch from wrapping it

    def move(self, parameters: Tensors, grads: Tensors, states: list[State], group: State) -> None:
        """Move the parameters of a group by their gradients."""
        raise NotImplementedError(type(self).__name__)


class Adam(LeanOptimizer, torch.optim.Adam):  # type: ignore[misc]
    KERNELS = ("_fused_adam_",)

    def move(  # type: ignore[misc]  # AdamW's as well
        self: LeanOptimizer, parameters: Tensors, grads: Tensors, states: list[State], group: State
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


class AdamW(LeanOptimizer, torch.optim.AdamW):  # type: ignore[misc]
    KERNELS = ("_fused_adamw_",)
    move = Adam.move


class RMSprop(LeanOptimizer, torch.optim.RMSprop):  # type: ignore[misc]
    KERNELS = ("_foreach_mul_", "_foreach_addcmul_", "_foreach_sqrt", "_foreach_addcdiv_")

    def move(self, parameters: Tensors, grads: Tensors, states: list[State], group: State) -> None:
        if group["weight_decay"]:
            grads = [*torch._foreach_add(grads, parameters, alpha=group["weight_decay"])]
        squares = [state["square_avg"] for state in states]
        torch._foreach_mul_(squares, group["alpha"])
        torch._foreach_addcmul_(squares, grads, grads, 1 - group["alpha"])
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, group["eps"])
        if self._rates:
            steps = torch._foreach_div(grads, roots)
            torch._foreach_mul_(steps, group["lr"])
            torch._foreach_sub_(parameters, steps)
        else:
            torch._foreach_addcdiv_(parameters, grads, roots, -group["lr"])
