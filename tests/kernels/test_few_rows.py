"""A policy's layers in NumPy give what they give in PyTorch; its samples have its distribution."""

import pickle

import numpy as np
import pytest
import torch

from offrl.config import EncoderConfig
from offrl.kernels import layers
from offrl.kernels.layers import SmallBatchLayers
from offrl.models import ActorValue
from offrl.specs import ObsKey, ObsSpec


def layers_of(*dims):
    return [torch.nn.Linear(i, o) for i, o in zip(dims, dims[1:], strict=False)]


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("num_rows", [1, 8])
def test_outputs_are_pytorchs(activation, num_rows):
    torch.manual_seed(0)
    layers, x = layers_of(5, 64, 32, 3), torch.randn(num_rows, 5)
    before = x.clone()
    rows = SmallBatchLayers(layers, activation)
    assert rows.pays(len(x))
    with torch.no_grad():
        plain = x
        for layer in layers[:-1]:
            plain = getattr(torch, activation)(layer(plain))
        plain = layers[-1](plain)
    np.testing.assert_allclose(rows(x), plain.numpy(), atol=1e-6)
    assert torch.equal(x, before)


def test_weights_are_those_of_now():
    layers, x = layers_of(3, 2), torch.randn(1, 3)
    rows = SmallBatchLayers(layers, "tanh")
    before = rows(x)
    with torch.no_grad():
        layers[0].bias += 1
    np.testing.assert_allclose(rows(x), before + 1, atol=1e-6)


def test_many_rows_are_left_to_pytorch(monkeypatch):
    rows = SmallBatchLayers(layers_of(5, 64, 3), "tanh")
    monkeypatch.setattr(layers, "SMALL_PRODUCT", 64 * 5 * 2)
    assert rows.pays(2) and not rows.pays(3)


def policy(head, **options):
    spec = ObsSpec({"obs": {"x": ObsKey("low_dim", (4,), EncoderConfig())}})
    return ActorValue(spec, 3, [16], [16], head=head, **options)


@pytest.mark.parametrize("head", ["categorical", "free_gaussian"])
def test_samples_have_the_policys_distribution(head, monkeypatch):
    monkeypatch.setattr(layers, "SMALL_PRODUCT", 2**40)
    torch.manual_seed(0)
    net = policy(head)
    obs = {"x": torch.randn(1, 1, 4).expand(40000, 1, 4)}
    with torch.no_grad():
        for parameter in net.actor_head.parameters():
            parameter.normal_(std=0.5)
        samples = torch.from_numpy(net.quick_sample(obs))
        pi = net.policy({"x": obs["x"][:1]})[0].at(-1)
    if head == "categorical":
        torch.testing.assert_close(samples.mean(0), pi.logits[0].softmax(-1), atol=0.01, rtol=0)
        assert samples.sum(-1).eq(1).all()
    else:
        torch.testing.assert_close(samples.mean(0), pi.mean[0], atol=0.03, rtol=0)
        torch.testing.assert_close(samples.std(0), pi.std[0], atol=0.03, rtol=0)


def test_other_policies_are_left_to_pytorch():
    assert policy("categorical").is_quick(1)
    assert not policy("categorical", rnn={"hidden_dim": 8}).is_quick(1)
    assert not policy("gmm").is_quick(1)


def test_policies_can_be_pickled():
    net = pickle.loads(pickle.dumps(policy("categorical", activation="relu")))
    assert net.quick_sample({"x": torch.zeros(2, 1, 4)}).shape == (2, 3)
