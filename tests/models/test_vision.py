"""Image encoders: shapes, and what each part does to images whose answer is known."""

import pytest
import torch

from offrl import algo_factory, config_factory
from offrl.models import randomizers
from offrl.models.backbones import FiLMResNet, load_imagenet, resnet
from offrl.models.encoder import Encoder, KeyEncoder
from offrl.models.randomizers import (
    ColorRandomizer,
    CropRandomizer,
    GaussianNoiseRandomizer,
    ShiftRandomizer,
)
from offrl.models.vision import (
    NatureCNN,
    ScanCore,
    SpatialMeanPool,
    SpatialSoftmax,
    VisualCore,
    VisualCoreLanguageConditioned,
)
from offrl.specs import EncoderConfig, ObsKey, ObsSpec


def seeing(size, **core):
    rgb = {"core_class": "VisualCore", "core_kwargs": {"feature_dimension": 4, **core}}
    seen = {"modalities": {"obs": {"rgb": ["camera"], "low_dim": []}}, "encoder": {"rgb": rgb}}
    config = config_factory("bc", {"observation": seen, "algo": {"actor_layer_dims": [4]}})
    return algo_factory("bc", config, {"camera": (3, size, size)}, 2, "cpu")


def test_what_sees_nothing_of_its_images_is_not_trained():
    """But loads and acts, as policies of earlier versions do."""
    blind = seeing(32)
    blind.get_action({"camera": torch.zeros(1, 32, 32, 3, dtype=torch.uint8)})
    with pytest.raises(ValueError, match="SpatialSoftmax .*obs.camera.*one pixel"):
        _ = blind.optimizers
    for size, core in (
        (33, {}),
        (32, {"backbone_class": "ShallowConv"}),
        (32, {"pool_class": None}),
    ):
        assert seeing(size, **core).optimizers


@pytest.mark.parametrize("shape", [(2, 1, 4), (2, 4, 1)])
def test_feature_maps_of_one_row_or_column_are_loaded_and_averaged(shape):
    pool = SpatialSoftmax(shape)
    pool.load_state_dict(SpatialSoftmax(shape).state_dict())
    for position in (pool.pos_x, pool.pos_y):
        assert torch.equal(position.clone(), position.lerp_(position.clone(), 0.5))


@pytest.mark.parametrize(
    ("depth", "parameters", "channels"), [(18, 11_176_512, 512), (50, 23_508_032, 2048)]
)
def test_resnets_are_the_published_ones(depth, parameters, channels):
    net = resnet(depth)
    assert sum(p.numel() for p in net.parameters()) == parameters
    assert net(torch.zeros(2, 3, 64, 96)).shape == (2, channels, 2, 3)


def test_imagenet_weights_load_from_the_cache_and_are_asked_for_offline(tmp_path, monkeypatch):
    def state(name, **_):
        assert "resnet18" in name
        return {"conv1.weight": torch.ones(64, 3, 7, 7), "layer2.0.bn2.bias": torch.ones(128)}

    net = resnet(18)
    monkeypatch.setattr("torch.hub.load_state_dict_from_url", state)
    load_imagenet(net, 18)
    assert (net[0].weight == 1).all() and (net[5][0].bn2.bias == 1).all()
    with_depth = resnet(18, input_channel=1)
    load_imagenet(with_depth, 18)  # keeps its own first layer
    assert not (with_depth[0].weight == 1).all()

    def offline(name, **_):
        raise OSError("no route to host")

    monkeypatch.setattr("torch.hub.load_state_dict_from_url", offline)
    with pytest.raises(ValueError, match="pretrained: .*no route to host.*https://"):
        VisualCore((3, 32, 32), backbone_kwargs={"pretrained": True})


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"backbone_class": "ResNet50Conv", "pool_class": "SpatialMeanPool"},
        {"backbone_class": "ShallowConv", "pool_class": None, "feature_dimension": None},
        {"backbone_kwargs": {"input_coord_conv": True}},
        {"pool_kwargs": {"output_variance": True, "learnable_temperature": True}},
    ],
)
def test_visual_cores(kwargs):
    core = VisualCore((3, 40, 40), **kwargs)
    features = core(torch.rand(2, 3, 40, 40))
    assert features.shape == (2, core.output_dim)
    features.sum().backward()
    unused = [n for n, p in core.named_parameters() if p.grad is None]
    assert not unused


def language_spec(**encoder):
    keys = {
        "image": ObsKey("rgb", (3, 40, 40), EncoderConfig(**encoder)),
        "lang_emb": ObsKey("low_dim", (6,), EncoderConfig()),
    }
    return ObsSpec({"obs": keys, "goal": {"image": keys["image"]}})


def test_an_instruction_steers_the_image_features():
    torch.manual_seed(0)
    spec = language_spec(
        core_class="VisualCoreLanguageConditioned",
        obs_randomizer_class="CropRandomizer",
        obs_randomizer_kwargs={"crop_height": 36, "crop_width": 38, "num_crops": 2},
    )
    encoder = Encoder(spec)
    obs = {"image": torch.rand(2, 3, 3, 40, 40), "lang_emb": torch.randn(2, 3, 6)}
    goal = {"image": torch.rand(2, 3, 40, 40)}
    assert encoder(obs, goal).shape == (2, 3, encoder.output_dim) == (2, 3, 2 * 64)
    encoder.eval()
    before = encoder(obs, goal)
    obs["lang_emb"][1] += 1.0
    changed = (encoder(obs, goal) != before).flatten(1)
    assert not changed[0].any() and changed[1].any()
    obs["lang_emb"][0, 2] += 1.0  # each time step has its own
    changed = (encoder(obs, goal) != before)[0]
    assert not changed[:2].any() and changed[2, :64].any()


def test_film_without_a_change_is_the_plain_network():
    backbone = FiLMResNet(resnet(18), 6).eval()
    for film in backbone.films:
        torch.nn.init.zeros_(film.weight)
        torch.nn.init.zeros_(film.bias)
    images = torch.rand(2, 3, 40, 40)
    plain = torch.nn.Sequential(backbone.stem, *backbone.blocks)
    torch.testing.assert_close(backbone(images, torch.randn(2, 6)), plain(images))
    with torch.no_grad():  # shifts come first, then scales
        backbone.films[-1].bias[:512] = 3.0
        backbone.films[-1].bias[512:] = 0.5
    torch.testing.assert_close(backbone(images, torch.randn(2, 6)), 1.5 * plain(images) + 3.0)


def test_language_is_a_feature_where_no_image_core_sees_it():
    assert Encoder(language_spec(core_class="VisualCore"), ("obs",)).output_dim == 64 + 6


def test_language_and_backbones_that_do_not_go_together():
    with pytest.raises(ValueError, match="lang_emb"):
        VisualCoreLanguageConditioned((3, 40, 40))
    with pytest.raises(ValueError, match="ResNet18ConvFiLM"):
        VisualCore((3, 40, 40), "ResNet18ConvFiLM")
    with pytest.raises(ValueError, match="ShallowConv"):
        VisualCoreLanguageConditioned((3, 40, 40), "ShallowConv", language_dim=6)


def test_scans():
    core = ScanCore((64,), pool_class="SpatialMeanPool", feature_dimension=8)
    assert core(torch.rand(3, 64)).shape == core(torch.rand(3, 1, 64)).shape == (3, 8)


def test_spatial_softmax_points_at_the_peak():
    features = torch.zeros(1, 2, 9, 9)
    features[0, 0, 0, 8] = features[0, 1, 8, 4] = 50.0
    pool = SpatialSoftmax((2, 9, 9), num_kp=None)
    torch.testing.assert_close(pool(features), torch.tensor([[[1.0, -1.0], [0.0, 1.0]]]))
    covariance = SpatialSoftmax((2, 9, 9), num_kp=None, output_variance=True)(
        torch.zeros(1, 2, 9, 9)
    )
    variance = torch.linspace(-1, 1, 9).square().mean()
    expected = torch.tensor([0, 0, variance, 0, 0, variance]).expand(1, 2, 6)
    torch.testing.assert_close(covariance, expected, atol=1e-6, rtol=1e-5)
    assert SpatialMeanPool((2, 9, 9))(features).shape == (1, 2)


def test_random_crops_are_parts_of_the_image():
    images = torch.arange(2 * 3 * 10 * 12).reshape(2, 3, 10, 12).float()
    crop = CropRandomizer((3, 10, 12), 4, 6, num_crops=50).train()
    crops = crop(images).unflatten(0, (2, 50))
    starts = crops[:, :, 0, 0, 0]
    assert len(starts[0].unique()) > 10
    for i in range(2):
        for part in crops[i]:
            row, column = divmod(int(part[0, 0, 0] - images[i, 0, 0, 0]), 12)
            assert torch.equal(part, images[i, :, row : row + 4, column : column + 6])
    centre = crop.eval()(images)
    assert torch.equal(centre, images[:, :, 3:7, 3:9])
    assert torch.equal(CropRandomizer((3, 10, 12), 10, 12)(images), images)
    assert CropRandomizer((3, 10, 12), 4, 6, pos_enc=True)(images).shape == (2, 5, 4, 6)
    with pytest.raises(ValueError, match="11 x 6"):
        CropRandomizer((3, 10, 12), 11, 6)


def test_shifted_images_are_filled_by_their_edges():
    images = torch.arange(2 * 3 * 6 * 7).reshape(2, 3, 6, 7).float()
    shift = ShiftRandomizer((3, 6, 7), pad=2, num_samples=400).train()
    seen = set()
    for image, versions in zip(images, shift(images).unflatten(0, (2, 400)), strict=True):
        for version in versions:
            row, column = divmod(int(version[0, 3, 3] - image[0, 3, 3]), 7)  # of its centre
            column, row = (column - 7, row + 1) if column > 3 else (column, row)
            rows = (torch.arange(6) + row).clamp(0, 5)
            columns = (torch.arange(7) + column).clamp(0, 6)
            assert torch.equal(version, image[:, rows][:, :, columns])
            seen.add((row, column))
    assert seen == {(row, column) for row in range(-2, 3) for column in range(-2, 3)}
    assert torch.equal(shift.eval()(images), images)
    for pad in (0, -1, 7):
        with pytest.raises(ValueError, match=f"up to {pad} pixels.*6 x 7"):
            ShiftRandomizer((3, 6, 7), pad=pad)


def test_draws_are_those_of_the_generator_alone():
    images = torch.rand(4, 3, 8, 8)
    changes = [
        CropRandomizer((3, 8, 8), 6, 6),
        ShiftRandomizer((3, 8, 8)),
        ColorRandomizer((3, 8, 8)),
        GaussianNoiseRandomizer((3, 8, 8)),
    ]
    for randomizer in changes:
        randomizer.train()
        first, again, other = (
            (torch.manual_seed(seed), randomizer(images))[1] for seed in (0, 0, 1)
        )
        assert torch.equal(first, again) and not torch.equal(first, other)
        state = torch.get_rng_state()
        randomizer.eval()(images)
        assert torch.equal(torch.get_rng_state(), state)


def amount(value):
    return torch.full((1, 1, 1, 1), value)


def test_colours():
    red, grey = torch.zeros(1, 3, 2, 2), torch.full((1, 3, 2, 2), 0.5)
    red[:, 0] = 1.0
    images = torch.rand(1, 3, 5, 5)
    for adjust, nothing in (
        (randomizers.adjust_brightness, 1.0),
        (randomizers.adjust_contrast, 1.0),
        (randomizers.adjust_saturation, 1.0),
        (randomizers.adjust_hue, 0.0),
        (randomizers.adjust_hue, 1.0),
    ):
        torch.testing.assert_close(adjust(images, amount(nothing)), images, atol=1e-5, rtol=0)
    green = torch.zeros(1, 3, 2, 2)
    green[:, 1] = 1.0
    torch.testing.assert_close(randomizers.adjust_hue(red, amount(1 / 3)), green, atol=1e-5, rtol=0)
    torch.testing.assert_close(randomizers.adjust_hue(grey, amount(0.2)), grey)
    assert randomizers.adjust_saturation(red, amount(0.0)).std(1).max() < 1e-6
    assert randomizers.adjust_brightness(grey, amount(0.5)).max() == 0.25


@pytest.mark.parametrize(
    "randomizer",
    [
        ShiftRandomizer((3, 8, 8), num_samples=3),
        ColorRandomizer((3, 8, 8), num_samples=3),
        GaussianNoiseRandomizer((3, 8, 8), noise_std=0.1, limits=[0.0, 1.0], num_samples=3),
    ],
)
def test_randomizers_change_images_in_training_only(randomizer):
    images = torch.rand(4, 3, 8, 8)
    changed = randomizer.train()(images)
    assert changed.shape == (12, 3, 8, 8) and changed.min() >= 0 and changed.max() <= 1
    assert not torch.equal(changed[0], changed[1])
    assert randomizer.average(changed.flatten(1)).shape == (4, 192)
    assert torch.equal(randomizer.eval()(images), images)


def test_an_observation_goes_through_all_its_randomizers_and_its_core():
    config = EncoderConfig(
        core_class="VisualCore",
        core_kwargs={"backbone_class": "ShallowConv", "feature_dimension": 7},
        obs_randomizer_class=["CropRandomizer", "GaussianNoiseRandomizer"],
        obs_randomizer_kwargs=[
            {"crop_height": 12, "crop_width": 10, "num_crops": 2},
            {"num_samples": 3},
        ],
    )
    encoder = KeyEncoder(ObsKey("rgb", (3, 16, 16), config), core_relu=True)
    images = torch.rand(5, 4, 3, 16, 16)
    assert encoder(images).shape == encoder.eval()(images).shape == (5, 4, 7)


def test_arguments_of_others_are_left_out_and_of_none_are_errors():
    leftover = {"crop_height": 4, "noise_std": 0.1}
    config = EncoderConfig(obs_randomizer_class="ColorRandomizer", obs_randomizer_kwargs=leftover)
    KeyEncoder(ObsKey("rgb", (3, 8, 8), config), core_relu=True)
    for kwargs, words in (
        ({"backbone_kwargs": {"pretraned": True}}, "ResNet18Conv: .*'pretraned'"),
        (
            {"backbone": "ShallowConv"},
            "VisualCore: .*'backbone'.*backbone_class",
        ),
    ):
        config = EncoderConfig(core_class="VisualCore", core_kwargs=kwargs)
        with pytest.raises(ValueError, match=words):
            KeyEncoder(ObsKey("rgb", (3, 32, 32), config), core_relu=True)


def test_parts_of_a_users_own_are_named_by_their_dotted_path(tmp_path, monkeypatch):
    (tmp_path / "my_nets.py").write_text(
        "from torch import nn\n"
        "from offrl.registry import BACKBONES, CORES\n"
        "@BACKBONES.register('one_pixel')\n"
        "def one_pixel(input_channel=3, size_of_my_pixel=1):\n"
        "    return nn.AdaptiveAvgPool2d(size_of_my_pixel)\n"
        "@CORES.register('anything')\n"
        "def anything(input_shape, **options):\n"
        "    core = nn.Flatten()\n"
        "    core.output_dim = options['size_of_my_output']\n"
        "    return core\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OFFRL_MODULES", "my_nets, your_nets")
    options = {"pool_class": None, "feature_dimension": None}
    core = VisualCore((3, 9, 9), "my_nets.one_pixel", {"size_of_my_pixel": 2}, **options)
    assert core(torch.ones(2, 3, 9, 9)).tolist() == [[1.0] * 12] * 2
    config = EncoderConfig(core_class="my_nets.anything", core_kwargs={"size_of_my_output": 4})
    assert KeyEncoder(ObsKey("low_dim", (4,), config), core_relu=True).output_dim == 4
    with pytest.raises(ValueError, match="my_nets"):
        VisualCore((3, 9, 9), "my_nets.two_pixels")
    with pytest.raises(ValueError, match="your_nets"):
        VisualCore((3, 9, 9), "your_nets.pixel")


def test_the_nature_cnn_is_the_published_one():
    core = NatureCNN((4, 84, 84))
    assert core(torch.zeros(2, 4, 84, 84)).shape == (2, 512)
    assert sum(p.numel() for p in core.parameters()) == 1_684_128


def test_frames_are_channels_for_cores_that_stack_them():
    image = ObsKey("rgb", (3, 36, 36), EncoderConfig(core_class="NatureCNN"))
    vector = ObsKey("low_dim", (2,), EncoderConfig())
    spec = ObsSpec({"obs": {"camera": image, "place": vector}})
    encoder = Encoder(spec, num_frames=4)
    obs = {"camera": torch.rand(2, 4, 3, 36, 36), "place": torch.rand(2, 4, 2)}
    features = encoder(obs)
    assert features.shape == (2, 1, encoder.output_dim) and encoder.output_dim == 512 + 8
    stacked = obs["camera"].flatten(1, 2)
    core = encoder.cores["obs"]["camera"].core
    torch.testing.assert_close(features[:, 0, :512], core(stacked).relu())
    assert torch.equal(features[:, 0, 512:], obs["place"].flatten(1))
    alone = Encoder(ObsSpec({"obs": {"camera": image}}), num_frames=4)
    assert alone(obs).shape == (2, 1, 512)
    one_by_one = Encoder(spec)  # for a trunk that sees the frames in turn
    assert one_by_one(obs).shape == (2, 4, 512 + 2)
