"""Gradients are clipped as PyTorch clips them, with its private kernels and without."""

import pytest
import torch

from offrl.kernels import optim


@pytest.mark.parametrize("has_kernels", [True, False])
@pytest.mark.parametrize("limit", [0.5, 1e3])
def test_gradients_are_clipped_as_by_pytorch(has_kernels, limit, monkeypatch):
    monkeypatch.setattr(optim, "HAS_KERNELS", has_kernels)
    torch.manual_seed(0)
    gradients = [torch.randn(4, 3), torch.randn(3), torch.randn(())]
    parameters = [torch.nn.Parameter(torch.zeros_like(g)) for g in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    expected = torch.nn.utils.clip_grad_norm_(parameters, limit)
    assert torch.allclose(optim.total_norm(gradients), expected)
    assert torch.allclose(optim.clip_norm(gradients, limit), expected)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        assert torch.allclose(gradient, parameter.grad)
