"""Images of other forms, which ``offrl validate`` names and ``offrl edit pixels`` turns."""

import h5py
import numpy as np
import pytest
import torch

from offrl.__main__ import main
from offrl.data.formats.hdf5 import DemoFile
from offrl.data.info import DataInfo
from offrl.data.validation import Validation
from offrl.specs import MODALITIES

RGB = np.random.default_rng(0).integers(0, 256, (7, 12, 10, 3)).astype(np.uint8)
GREY, DEPTH = RGB[..., :1], RGB[..., :1].astype(np.float32) / 300


def first(images):
    return np.moveaxis(images, -1, 1)


FORMS = {
    "channels first": (first(RGB), RGB, []),
    "one channel first": (first(GREY), GREY, []),
    "no channel": (GREY[..., 0], GREY, []),
    "floats up to 1": (RGB / 255, RGB, []),
    "floats up to 255": (RGB.astype(np.float32), RGB, []),
    "numbers of 8 bytes": (RGB.astype(np.int64), RGB, []),
    "floats from -1, channels first": (first(RGB / 127.5 - 1), RGB, ["--range", "-1", "1"]),
    "depth without channel": (DEPTH[..., 0], DEPTH, []),
    "depth, channel first": (first(DEPTH), DEPTH, []),
}


def with_images(path, images):
    with h5py.File(path, "r+") as file:
        for demo in file["data"].values():
            for group in ("obs", "next_obs"):
                demo[f"{group}/front_image"] = images[: len(demo["actions"])]


@pytest.mark.parametrize(("stored", "turned", "options"), FORMS.values(), ids=FORMS)
def test_images_of_other_forms_are_said_and_turned(stored, turned, options, demos, tmp_path):
    with_images(demos, stored)
    for remarks in (Validation(demos).remarks, DataInfo(demos).facts()["remarks"]):
        odd = [x.split()[0] for x in remarks if "offrl edit pixels" in x]
        assert sorted(odd) == ["next_obs/front_image", "obs/front_image"]
    out = tmp_path / "turned.hdf5"
    assert main(["edit", "pixels", str(demos), "--output", str(out), *options]) == 0
    with DemoFile(out) as file:
        for key in ("obs/front_image", "next_obs/front_image"):
            rows = file.trajectory("demo_1")[key]
            assert rows.dtype == turned.dtype
            np.testing.assert_array_equal(rows, turned)
    assert not any("pixels" in x for x in Validation(out).remarks)


NAMED = {
    "a fourth channel": (np.concatenate([RGB, GREY], -1), RGB, "rgba"),
    "a fourth channel first": (first(np.concatenate([RGB, GREY], -1)), RGB, "channels_first,rgba"),
    "millimetres": (GREY[..., 0].astype(np.uint16) * 9, None, "no_channel,millimetres"),
    "millimetres in a channel": (GREY.astype(np.uint16) * 9, None, "millimetres"),
    "floats from -1": (RGB / 127.5 - 1, RGB, "signed_floats"),
}


@pytest.mark.parametrize(("stored", "turned", "forms"), NAMED.values(), ids=NAMED)
def test_what_a_remark_says_turns_images(stored, turned, forms, demos, tmp_path):
    with_images(demos, stored)
    words = f"offrl edit pixels IN --output OUT --images front_image={forms}"
    for remarks in (Validation(demos).remarks, DataInfo(demos).facts()["remarks"]):
        assert sorted(x.split()[0] for x in remarks if x.endswith(words)) == [
            "next_obs/front_image",
            "obs/front_image",
        ]
    out = tmp_path / "turned.hdf5"
    assert main(words.replace("IN", str(demos)).replace("OUT", str(out)).split()[1:]) == 0
    turned = GREY * np.float32(9) / np.float32(1000) if turned is None else turned
    with DemoFile(out) as file:
        for key in ("obs/front_image", "next_obs/front_image"):
            np.testing.assert_array_equal(file.trajectory("demo_1")[key], turned)
    assert not any("pixels" in x for x in Validation(out).remarks)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("front=grey", "--images: has no obs/front; it has front_image"),
        ("front_image=gray", "unknown form of images 'gray'. Did you mean 'grey'?"),
        ("front_image=grey", "demo_0/obs/front_image is [12, 10, 3] of uint8, not [H, W, 1]"),
        ("front_image", "A=B is needed"),
    ],
)
def test_forms_that_images_do_not_have_are_refused(named, words, demos, tmp_path, capsys):
    with_images(demos, RGB)
    out = tmp_path / "out.hdf5"
    try:
        status = main(["edit", "pixels", str(demos), "--output", str(out), "--images", named])
    except SystemExit as error:
        status = error.code
    assert status and words in capsys.readouterr().err and not out.exists()


def test_what_is_no_image_or_has_no_plain_range_is_refused(demos, tmp_path, capsys):
    command = ["edit", "pixels", str(demos), "--output", str(tmp_path / "out.hdf5")]
    assert main(command) == 1
    assert "has no images that would have to be turned" in capsys.readouterr().err
    with_images(demos, RGB / 127.5 - 1)
    assert main(command) == 1
    assert "obs/front_image is between -1 and 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "images",
    [RGB, GREY, DEPTH, RGB[:, :4, :4, 0] * 1.0, GREY.astype(np.int32), GREY.astype(np.int16)],
)
def test_images_depth_maps_and_matrices_are_left_in_peace(images, demos):
    with_images(demos, images)
    assert not any("pixels" in x for x in Validation(demos).remarks)


@pytest.mark.parametrize(
    ("modality", "shape", "dtype", "remedy"),
    [
        ("rgb", (3, 12, 10), torch.uint8, "edit pixels"),
        ("rgb", (12, 10), torch.uint8, "edit pixels"),
        ("rgb", (12, 10, 3), torch.float32, "edit pixels"),
        ("rgb", (12, 10, 1), torch.float32, "depth"),
        ("rgb", (12, 12, 10), torch.uint8, "train.frame_stack"),
        ("rgb", (4, 12, 10, 3), torch.uint8, "train.frame_stack"),
        ("depth", (1, 12, 10), torch.float32, "edit pixels"),
        ("depth", (12, 10, 3), torch.float32, "name colours in rgb"),
    ],
)
def test_training_names_what_helps(modality, shape, dtype, remedy):
    kind = MODALITIES[modality]()
    with pytest.raises(ValueError, match=remedy) as raised:
        kind.shape(shape)
        kind.process(torch.zeros(2, *shape, dtype=dtype))
    assert ("edit pixels" in str(raised.value)) == (remedy == "edit pixels")
