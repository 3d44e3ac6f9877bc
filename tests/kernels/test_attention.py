"""Attention for some steps is that for all steps, values and gradients."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from offrl.kernels.attention import attend, plain

BOUNDS = st.integers(-4, 4) | st.none()


@given(st.integers(1, 4), st.integers(1, 5), BOUNDS, BOUNDS, st.sampled_from([1, 2, 4]))
@settings(max_examples=60, deadline=None)
def test_some_steps_attend_as_among_all(batch, num_steps, start, stop, num_heads):
    torch.manual_seed(0)
    steps = slice(start, stop)
    qkv, x = nn.Linear(8, 24, bias=False), torch.randn(batch, num_steps, 8, requires_grad=True)
    results = []
    for mix in (attend, plain):
        mixed = mix(x, qkv, num_heads, nn.Identity(), steps)
        gradients = torch.autograd.grad(mixed.square().sum(), (x, qkv.weight))
        results.append((mixed, *gradients))
    torch.testing.assert_close(*results)
    everything = plain(x, qkv, num_heads, nn.Identity(), slice(None))
    torch.testing.assert_close(results[0][0], everything[:, steps])


def test_no_step_sees_a_later_one():
    torch.manual_seed(0)
    qkv, x = nn.Linear(8, 24, bias=False), torch.randn(2, 5, 8)
    changed = torch.cat([x[:, :3], torch.randn(2, 2, 8)], dim=1)
    mixed = [plain(y, qkv, 2, nn.Identity(), slice(None)) for y in (x, changed)]
    torch.testing.assert_close(mixed[0][:, :3], mixed[1][:, :3])
    assert not torch.allclose(mixed[0][:, 3], mixed[1][:, 3])


def test_shares_are_dropped():
    qkv, x = nn.Linear(8, 24, bias=False), torch.randn(2, 5, 8)
    for steps in (slice(None), slice(-1, None)):
        assert not attend(x, qkv, 2, torch.zeros_like, steps).any()
