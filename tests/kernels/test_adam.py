"""The optimizers' steps and states are PyTorch's, with its private kernels and without."""

import sys
from concurrent.futures import ThreadPoolExecutor

import programs
import pytest
import torch

from offrl.kernels.optim import Adam, AdamW

ALL_THAT_IS_ASKED_OF_OPTIMIZERS = """
import sys, torch
from offrl.kernels.optim import Adam, AdamW, RMSprop
for kind, options in ((Adam, "fused"), (AdamW, "fused"), (RMSprop, "foreach")):
    first, second = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer = kind([first], **{options: True})
    optimizer.add_param_group({"params": [second]})
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 0.5)
    for _ in range(2):
        first.grad, second.grad = torch.ones(3), torch.ones(3)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=False)
        optimizer.load_state_dict(optimizer.state_dict())
    torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)([torch.ones(3)], [first.detach()], 0)
assert "torch._dynamo" not in sys.modules
"""


def test_the_compiler_is_not_imported():
    programs.run([sys.executable, "-c", ALL_THAT_IS_ASKED_OF_OPTIMIZERS], check=True)


@pytest.mark.parametrize("has_kernel", [True, False])
@pytest.mark.parametrize("ours", [Adam, AdamW])
def test_a_step_is_pytorchs_and_so_is_the_state(ours, has_kernel, monkeypatch):
    def make(kind):
        torch.manual_seed(0)
        parameters = [torch.nn.Parameter(torch.randn(4, 3)), torch.nn.Parameter(torch.randn(3))]
        groups = [{"params": parameters[:1], "lr": 0.3}, {"params": parameters[1:]}]
        return parameters, kind(groups, lr=0.1, weight_decay=0.01, fused=has_kernel)

    actual, optimizer = make(ours)
    expected, reference = make(getattr(torch.optim, ours.__name__))
    if not has_kernel:
        for name in ("_fused_adam_", "_fused_adamw_"):
            monkeypatch.delattr(torch, name)
    for step in range(6):
        if step == 3:  # each goes on from what the other saved
            states = optimizer.state_dict(), reference.state_dict()
            optimizer.load_state_dict(states[1])
            reference.load_state_dict(states[0])
        for parameters in (actual, expected):
            parameters[0].grad = torch.full((4, 3), float(step))
            parameters[1].grad = torch.ones(3) if step % 2 else None  # skipped, not decayed
        optimizer.step()
        reference.step()
        assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_are_forgotten(set_to_none):
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    parameters[0].grad = torch.ones(3)
    Adam([{"params": [p]} for p in parameters]).zero_grad(set_to_none)
    assert parameters[1].grad is None
    assert parameters[0].grad is None if set_to_none else not parameters[0].grad.any()


@pytest.mark.parametrize("was_so", [False, True])
def test_moments_do_not_become_so_small_that_processors_are_slow(was_so):
    def product():
        return torch.full((8,), 1e-20) * 1e-20

    def moments():
        torch.set_flush_denormal(was_so)
        parameter = torch.nn.Parameter(torch.ones(8))
        optimizer = Adam([parameter], fused=True)
        parameter.grad = torch.full((8,), 1e-36)
        optimizer.step()
        parameter.grad = torch.zeros(8)
        for _ in range(100):
            optimizer.step()
        return optimizer.state[parameter]["exp_avg"], product()

    with ThreadPoolExecutor(1) as pool:  # which has a mode of its own
        moment, after = pool.submit(moments).result()
    assert not moment.any()
    assert (after == 0).all() == was_so
