"""``Linear`` is ``nn.Linear``: values, gradients of any order, fallbacks."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from offrl.kernels import layers
from offrl.kernels.layers import Linear

SIZES = st.integers(1, 40)


@pytest.fixture(autouse=True, scope="module")
def small_products_go_to_onednn_too():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layers, "LARGE_PRODUCT", 0)
        patch.setattr(layers, "MKL_IS_SLOW", True)
        yield


def pair(size_in: int, size_out: int, bias: bool = True) -> tuple[Linear, nn.Linear]:
    ours, theirs = Linear(size_in, size_out, bias), nn.Linear(size_in, size_out, bias)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def assert_same_gradients(ours: nn.Module, theirs: nn.Module, x: torch.Tensor, loss) -> None:
    """First the values, then the gradients of ``loss`` by input and parameters."""
    gradients = []
    for net in (ours, theirs):
        leaf = x.clone().requires_grad_()
        loss(net(leaf), leaf).backward()
        gradients.append([leaf.grad, *(p.grad for p in net.parameters())])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@given(st.lists(st.integers(1, 5), max_size=3), SIZES, SIZES, st.booleans(), st.integers(0, 99))
@settings(max_examples=60)
def test_values_and_gradients(shape, size_in, size_out, bias, seed):
    torch.manual_seed(seed)
    ours, theirs = pair(size_in, size_out, bias)
    x = torch.randn(*shape, size_in)
    assert ours(x).shape == theirs(x).shape
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)
    assert_same_gradients(ours, theirs, x, lambda y, x: (y * y).mean())
    # The gradient of a sum is one number seen through strides of zero.
    assert_same_gradients(ours, theirs, x, lambda y, x: y.sum())


def test_strided_input():
    ours, theirs = pair(6, 5)
    x = torch.randn(6, 4, 8).permute(2, 1, 0)[::2]
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours(x[:1].expand(3, 4, 6)), theirs(x[:1].expand(3, 4, 6)))


def test_second_derivative():
    def penalty(y, x):
        (gradient,) = torch.autograd.grad(torch.tanh(y).sum(), x, create_graph=True)
        return gradient.square().sum()

    ours, theirs = pair(7, 3)
    assert_same_gradients(ours, theirs, torch.randn(5, 7), penalty)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_are_pytorchs(dtype):
    ours, theirs = (net.to(dtype) for net in pair(8, 4))
    x = torch.randn(3, 8, dtype=dtype)
    assert torch.equal(ours(x), theirs(x)) and ours(x).dtype == dtype


def test_autocast_and_empty_batches():
    ours, theirs = pair(8, 4)
    x = torch.randn(3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ours(x), theirs(x)) and ours(x).dtype == torch.bfloat16
    assert ours(x[:0]).shape == (0, 4)


def test_without_the_private_operator(monkeypatch):
    ours, theirs = pair(8, 4)
    x = torch.randn(3, 8)
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace())  # to call it is an error
    assert torch.equal(ours(x), theirs(x))


def test_a_traced_network_is_plain_pytorch():
    ours, _ = pair(8, 4)
    traced = torch.jit.trace(ours, torch.randn(3, 8))
    assert "onednn" not in str(traced.graph).lower()
    x = torch.randn(5, 8)
    torch.testing.assert_close(traced(x), ours(x))


def test_small_products_and_other_processors_are_left_to_pytorch(monkeypatch):
    x, weight = torch.randn(3, 4), torch.randn(5, 4)
    monkeypatch.setattr(layers, "LARGE_PRODUCT", 3 * 4 * 5)
    assert layers.onednn_pays(x, weight) == hasattr(torch.ops.mkldnn, "_linear_pointwise")
    assert not layers.onednn_pays(x[1:], weight)
    monkeypatch.setattr(layers, "MKL_IS_SLOW", False)
    assert not layers.onednn_pays(x, weight)
