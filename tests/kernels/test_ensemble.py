"""Layers of an ensemble are its members' own layers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from offrl.kernels import layers
from offrl.kernels.layers import affine, first_members

SIZES = st.integers(1, 9)


@given(SIZES, SIZES, SIZES, st.integers(1, 3), st.booleans())
@settings(deadline=None)
def test_each_member_is_linear(num_members, rows, size_in, size_out, mkl_is_slow):
    torch.manual_seed(0)
    shapes = [
        (num_members, rows, size_in),
        (num_members, size_in, size_out),
        (num_members, size_out),
    ]
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]

    def one_by_one(x, weight, bias):
        return torch.stack([F.linear(x[i], weight[i].T, bias[i]) for i in range(num_members)])

    results = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "MKL_IS_SLOW", mkl_is_slow)
        for layer in (affine, one_by_one):
            y = layer(*inputs)
            results.append((y, *torch.autograd.grad(y.square().sum(), inputs)))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num", [1, 3])
def test_the_first_members_are_a_slice(num):
    parameters = [torch.randn(3, 2, requires_grad=True), torch.randn(3, requires_grad=True)]
    for actual, parameter in zip(first_members(num, *parameters), parameters, strict=True):
        assert torch.equal(actual, parameter[:num])
        (gradient,) = torch.autograd.grad(actual.sum(), parameter)
        assert gradient[:num].eq(1).all() and gradient[num:].eq(0).all()
