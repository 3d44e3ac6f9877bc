"""Layers in one piece give what PyTorch's layers give, and the same gradients."""

import pytest
import torch
from torch import nn

from offrl.kernels import layers
from offrl.models.trunks import MLP


@pytest.mark.parametrize("num_rows", [3, 200])
@pytest.mark.parametrize("layer_dims", [[64], [64, 32], [16, 16, 16]])
def test_outputs_and_gradients_are_pytorchs(layer_dims, num_rows, monkeypatch):
    monkeypatch.setattr(layers, "MKL_IS_SLOW", True)
    torch.manual_seed(0)
    trunk = MLP(5, layer_dims, "tanh")
    x = torch.randn(num_rows, 2, 5, requires_grad=True)
    factors = torch.randn(num_rows, 2, layer_dims[-1])

    def of(run):
        output = run(x)
        inputs = [x, *trunk.parameters()]
        return [output, *torch.autograd.grad((output * factors).sum(), inputs)]

    for ours, plain in zip(of(lambda x: trunk(x)[0]), of(trunk.layers), strict=True):
        torch.testing.assert_close(ours, plain, atol=2e-5, rtol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(trunk(x)[0], trunk.layers(x), atol=1e-6, rtol=1e-5)


def test_what_is_traced_has_layers_that_others_can_read(monkeypatch):
    monkeypatch.setattr(layers, "MKL_IS_SLOW", True)
    trunk = MLP(3, [4], "tanh")
    network = nn.Sequential(trunk, _First())
    traced = torch.jit.trace(network, torch.zeros(2, 1, 3), strict=False)
    assert "aten::tanh" in str(traced.inlined_graph)


def test_no_layers_change_nothing():
    x = torch.randn(2, 3, 4)
    assert torch.equal(MLP(4, [], "tanh")(x)[0], x)
    assert isinstance(MLP(4, [3]).layers[1], nn.ReLU)


class _First(nn.Module):
    def forward(self, outputs):
        return outputs[0]
