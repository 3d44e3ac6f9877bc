"""Layers of an ensemble are its members' own layers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from offrl.kernels import ensemble
from offrl.kernels.ensemble import affine, affine_of_one, first_members

SIZES = st.integers(1, 9)


@given(SIZES, SIZES, SIZES)
@settings(deadline=None)
def test_by_elements_and_by_products_agree(num_members, rows, size_in):
    torch.manual_seed(0)
    shapes = [(num_members, rows, size_in), (num_members, size_in, 1), (num_members, 1)]
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    results = []
    for form in (affine, affine_of_one):
        y = form(*inputs)
        results.append((y, *torch.autograd.grad(y.square().sum(), inputs)))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mkl_is_slow", [True, False])
@pytest.mark.parametrize("size_out", [1, 4])
def test_each_member_is_linear(mkl_is_slow, size_out, monkeypatch):
    monkeypatch.setattr(ensemble, "MKL_IS_SLOW", mkl_is_slow)
    x, weight, bias = torch.randn(3, 5, 6), torch.randn(3, 6, size_out), torch.randn(3, size_out)
    expected = [F.linear(x[i], weight[i].T, bias[i]) for i in range(3)]
    torch.testing.assert_close(affine(x, weight, bias), torch.stack(expected))


@pytest.mark.parametrize("num", [1, 3])
def test_the_first_members_are_a_slice(num):
    parameters = [torch.randn(3, 2, requires_grad=True), torch.randn(3, requires_grad=True)]
    for actual, parameter in zip(first_members(num, *parameters), parameters, strict=True):
        assert torch.equal(actual, parameter[:num])
        (gradient,) = torch.autograd.grad(actual.sum(), parameter)
        assert gradient[:num].eq(1).all() and gradient[num:].eq(0).all()
