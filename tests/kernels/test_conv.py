"""``Conv1d`` as a matrix product gives what PyTorch's convolution gives."""

import pytest
import torch
from torch import nn

from offrl.kernels.layers import Conv1d


@pytest.mark.parametrize("kernel_size", [1, 3, 5])
@pytest.mark.parametrize(("batch_size", "channels", "steps"), [(2, 32, 4), (1, 16, 8), (3, 4, 5)])
def test_both_forms_agree(kernel_size, batch_size, channels, steps):
    """The last case has more steps than channels, and is PyTorch's own."""
    torch.manual_seed(0)
    ours = Conv1d(channels, 12, kernel_size)
    plain = nn.Conv1d(channels, 12, kernel_size, padding=kernel_size // 2)
    plain.load_state_dict(ours.state_dict())
    inputs = [torch.randn(batch_size, channels, steps).requires_grad_() for _ in range(2)]
    inputs[1].data.copy_(inputs[0].data)
    outputs = [net(x) for net, x in zip((ours, plain), inputs, strict=True)]
    torch.testing.assert_close(*outputs)
    for output in outputs:
        output.square().sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
