"""Dropout's statistics, its scale and its gradient."""

import pytest
import torch

from offrl.kernels.layers import Dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_zeroes_the_asked_share_and_keeps_the_mean(p):
    torch.manual_seed(0)
    x = torch.ones(1001, 999, requires_grad=True)  # not a multiple of four
    y = Dropout(p)(x)
    kept = y != 0
    share = kept.double().mean().item()
    assert abs(share - (1 - p)) < 5 * (p * (1 - p) / x.numel()) ** 0.5  # five standard errors
    torch.testing.assert_close(y[kept], torch.full_like(y[kept], 1 / (1 - p)), rtol=1e-3, atol=0)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())


def test_neighbours_are_independent():
    torch.manual_seed(0)
    kept = (Dropout(0.5)(torch.ones(400_000)) != 0).double()
    for shift in (1, 2, 3, 4):
        assert abs(torch.corrcoef(torch.stack([kept[shift:], kept[:-shift]]))[0, 1]) < 0.01


def test_the_extremes_and_evaluation():
    x = torch.randn(3, 5)
    assert torch.equal(Dropout(0.0)(x), x)
    assert torch.equal(Dropout(1.0)(x), torch.zeros_like(x))
    assert torch.equal(Dropout(0.5).eval()(x), x)
