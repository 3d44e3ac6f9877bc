"""Backbones of others' packages. The packages cannot be installed from a registry: networks of the
same layout stand in for what they fetch."""

import sys
import types

import pytest
import torch
from torch import nn

from offrl import algo_factory, config_factory, policy_from_checkpoint
from offrl.models.backbones import R3MImages, mvp_conv, r3m_conv, resnet
from offrl.models.vision import VisualCore


class Trained(nn.Module):
    """As ``r3m.load_r3m`` returns it: a ResNet with its pooling, its classifier taken away."""

    def __init__(self, name):
        super().__init__()
        layers = [*resnet(int(name.removeprefix("resnet"))), nn.AdaptiveAvgPool2d(1), nn.Identity()]
        names = "conv1 bn1 relu maxpool layer1 layer2 layer3 layer4 avgpool fc".split()
        self.module = nn.Module()
        self.module.convnet = nn.Module()
        for name, layer in zip(names, layers, strict=True):
            self.module.convnet.add_module(name, layer)


@pytest.fixture
def packages(monkeypatch):
    r3m, mvp = types.ModuleType("r3m"), types.ModuleType("mvp")
    r3m.load_r3m = Trained
    mvp.load = lambda name: nn.Sequential(nn.Flatten(), nn.Linear(3 * 224 * 224, 12))
    monkeypatch.setitem(sys.modules, "r3m", r3m)
    monkeypatch.setitem(sys.modules, "mvp", mvp)


def test_r3m_stays_as_it_was_trained(packages):
    core = VisualCore(
        (3, 40, 50), "R3MConv", {"r3m_model_class": "resnet18"}, None, feature_dimension=7
    ).train()
    before = {k: v.clone() for k, v in core.backbone.state_dict().items()}
    features = core(torch.rand(2, 3, 40, 50))
    features.sum().backward()
    assert features.shape == (2, 7)
    assert all(torch.equal(v, before[k]) for k, v in core.backbone.state_dict().items())
    assert all(p.grad is None for p in core.backbone.parameters())
    assert all(p.grad is not None for p in core.linear.parameters())
    unfrozen = r3m_conv(freeze=False)
    unfrozen(torch.rand(2, 3, 40, 50)).sum().backward()
    assert unfrozen[1].weight.grad is not None and unfrozen.training


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_a_checkpoint_needs_no_package(packages, monkeypatch, name):
    weights = r3m_conv(r3m_model_class=name).state_dict()
    monkeypatch.delitem(sys.modules, "r3m")
    r3m_conv(r3m_model_class=name, pretrained=False).load_state_dict(weights)
    with pytest.raises(ImportError, match="R3MConv: .*r3m.*github.com"):
        r3m_conv(r3m_model_class=name)


def test_images_are_the_middle_of_256_pixels():
    images = torch.linspace(0, 1, 512)[None, None, None].expand(1, 3, 512, 512)
    seen = R3MImages()(images)
    mean, std = (torch.tensor(x)[:, None] for x in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    columns = torch.linspace(0, 1, 512).view(256, 2).mean(1)[16:240]
    torch.testing.assert_close(seen[0, :, 5], (columns - mean) / std, atol=2e-3, rtol=0)
    assert R3MImages()(torch.rand(1, 3, 60, 90)).shape == (1, 3, 224, 224)


def test_mvp_gives_a_vector(packages):
    core = VisualCore((3, 40, 40), "MVPConv", {}, None, feature_dimension=None)
    assert core(torch.rand(2, 3, 40, 40)).shape == (2, 12) and core.output_dim == 12
    with pytest.raises(ValueError, match="pool_class"):
        VisualCore((3, 40, 40), "MVPConv", {})


def test_wrong_options_are_named(packages):
    with pytest.raises(ValueError, match="r3m_model_class: 'resnet99'"):
        r3m_conv(r3m_model_class="resnet99")
    with pytest.raises(ValueError, match="MVPConv"):
        mvp_conv(input_channel=1)


def test_a_policy_with_r3m_is_deployed_without_its_package(packages, monkeypatch, small_config):
    with_images = {
        "core_class": "VisualCore",
        "core_kwargs": {"backbone_class": "R3MConv", "pool_class": None},
    }
    overrides = {
        "observation": {
            "modalities": {"obs": {"low_dim": ["speed"], "rgb": ["image"]}},
            "encoder": {"rgb": with_images},
        }
    }
    config = small_config(overrides)
    shapes = {"speed": (2,), "image": (3, 40, 40)}
    nets = algo_factory("bc", config, shapes, 2, "cpu").nets.state_dict()
    monkeypatch.delitem(sys.modules, "r3m")
    content = {
        "model": {"nets": nets},
        "config": config.dump(),
        "algo_name": "bc",
        "shape_metadata": {"all_shapes": shapes, "ac_dim": 2},
        "provenance": {},
    }
    policy, _ = policy_from_checkpoint(ckpt_dict=content)
    loaded = policy.policy.nets.state_dict()
    assert all(torch.equal(loaded[name], weight) for name, weight in nets.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bc", "iql"])
def test_networks_around_a_frozen_backbone_are_trained(packages, name):
    encoder = {
        "core_class": "VisualCore",
        "core_kwargs": {"backbone_class": "R3MConv", "pool_class": None},
    }
    obs = {"modalities": {"obs": {"low_dim": [], "rgb": ["image"]}}, "encoder": {"rgb": encoder}}
    config = config_factory(name, {"observation": obs})
    algo = algo_factory(name, config, {"image": (3, 40, 40)}, 2, "cpu")
    before = {key: value.clone() for key, value in algo.nets.state_dict().items()}
    images = torch.randint(0, 256, (2, 1, 40, 40, 3), dtype=torch.uint8)
    batch = {
        "obs": {"image": images},
        "next_obs": {"image": images},
        "actions": torch.rand(2, 1, 2),
        "rewards": torch.ones(2, 1),
        "dones": torch.zeros(2, 1),
    }
    algo.set_train()
    algo.train_on_batch(algo.process_batch_for_training(batch), epoch=1)
    for key, value in algo.nets.state_dict().items():
        changed = not torch.equal(value, before[key])
        if "backbone" in key:
            assert not changed, key
        elif key.endswith("core.linear.weight"):
            assert changed, key
