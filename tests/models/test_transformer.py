"""Which steps the Transformer sees, drops and answers for."""

import pytest
import torch

from offrl.models.transformer import Transformer


@pytest.mark.parametrize("steps", [slice(-1, None), slice(1, 4), slice(0, 1)])
def test_answers_for_some_steps(steps):
    torch.manual_seed(0)
    net = Transformer(6, context_length=5, embed_dim=16, num_layers=2, num_heads=4).eval()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(3, 5, 6)
    gradients = []
    outputs = [net(x)[0][:, steps], net(x, answers=steps)[0]]
    for output in outputs:
        net.zero_grad()
        output.square().sum().backward()
        gradients.append([p.grad.clone() for p in net.parameters()])
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [slice(None), slice(-1, None)])
def test_attention_is_dropped_in_training_alone(steps):
    torch.manual_seed(0)
    dropouts = {"emb_dropout": 0.0, "attn_dropout": 0.5, "block_output_dropout": 0.0}
    net = Transformer(6, 5, embed_dim=16, num_layers=1, num_heads=4, **dropouts)
    x = torch.randn(3, 5, 6)
    assert not torch.equal(net(x, answers=steps)[0], net(x, answers=steps)[0])
    net.eval()
    assert torch.equal(net(x, answers=steps)[0], net(x, answers=steps)[0])


def test_no_step_sees_a_later_one():
    torch.manual_seed(0)
    net = Transformer(6, context_length=5, embed_dim=16, num_layers=2, num_heads=4).eval()
    x = torch.randn(3, 5, 6)
    changed = torch.cat([x[:, :3], torch.randn(3, 2, 6)], dim=1)
    torch.testing.assert_close(net(x)[0][:, :3], net(changed)[0][:, :3])
    assert not torch.allclose(net(x)[0][:, 3], net(changed)[0][:, 3])


@pytest.mark.parametrize("steps", [slice(None), slice(-1, None)])
def test_every_step_sees_all_others_if_it_is_not_causal(steps):
    torch.manual_seed(0)
    net = Transformer(6, 5, embed_dim=16, num_layers=2, num_heads=4, causal=False).eval()
    x = torch.randn(3, 5, 6)
    changed = torch.cat([x[:, :3], torch.randn(3, 2, 6)], dim=1)
    assert not torch.allclose(net(x)[0][:, 0], net(changed)[0][:, 0])
    torch.testing.assert_close(net(x)[0][:, steps], net(x, answers=steps)[0])
