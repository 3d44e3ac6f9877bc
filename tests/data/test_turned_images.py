"""Images of other forms, which ``images`` in an entry of ``train.data`` names: they are turned as
they are read."""

import itertools
from typing import get_args

import h5py
import numpy as np
import pytest
from conftest import train_completely, write_demos
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from layouts import write_maniskill

from offrl import DemoWriter, Trainer
from offrl.data.datasets import make_dataset
from offrl.data.info import DataInfo
from offrl.data.sequence import SequenceDataset
from offrl.data.validation import Validation
from offrl.images import FORMS, Form, pictures, step_after, turned

SIDES = st.integers(1, 5)
COLOURS = st.tuples(st.integers(0, 4), SIDES, SIDES, st.just(3)).flatmap(
    lambda shape: arrays(np.uint8, shape)
)
# How offrl's own images come to have a form.
STORED = {
    "channels_first": lambda x: np.moveaxis(x, -1, 1),
    "no_channel": lambda x: x[..., 0],
    "unit_floats": lambda x: x.astype(np.float64) / 255,
    "signed_floats": lambda x: x.astype(np.float32) / 127.5 - 1,
    "byte_numbers": lambda x: x.astype(np.int32),
    "rgba": lambda x: np.concatenate([x, x[..., :1]], axis=-1),
    "grey": lambda x: x[..., :1],
    "millimetres": lambda x: x[..., :1].astype(np.uint16) * 20,
}
MEANT = {
    "no_channel": lambda x: x[..., :1],
    "grey": lambda x: x[..., [0, 0, 0]],
    "millimetres": lambda x: x[..., :1].astype(np.float32) * 20 / 1000,
}


def test_all_forms_are_known_to_configs():
    assert [*FORMS] == [*get_args(Form)] == [*STORED]


@pytest.mark.parametrize("form", STORED)
@given(images=COLOURS)
def test_rows_of_a_form_become_offrls_own(form, images):
    stored = STORED[form](images)
    before = stored.copy()
    rows = turned(stored, [form])
    meant = MEANT.get(form, lambda x: x)(images)
    assert rows.dtype == meant.dtype
    np.testing.assert_allclose(rows, meant, rtol=1e-6)
    assert step_after(stored.shape[1:], stored.dtype, [form]) == (rows.shape[1:], rows.dtype)
    np.testing.assert_array_equal(stored, before)


@pytest.mark.parametrize(
    ("form", "rows", "words"),
    [
        ("channels_first", np.zeros((2, 9, 9, 3)), r"\[9, 9, 3\] of float64, not \[C, H, W\]"),
        ("no_channel", np.zeros((2, 9, 9, 1)), r"\[9, 9, 1\] of float64, not \[H, W\]"),
        ("unit_floats", np.zeros((2, 9, 9, 3), np.uint8), "of uint8, not floats from 0 to 1"),
        ("unit_floats", np.full((2, 9, 9, 3), 1.01), "holds 1.01, .*from 0 to 1"),
        ("unit_floats", np.full((2, 9, 9, 3), np.nan), "holds nan"),
        ("signed_floats", np.full((2, 9, 9, 3), -1.01), "holds -1.01, .*from -1 to 1"),
        ("byte_numbers", np.full((2, 9, 9, 3), 300), "holds 300"),
        ("rgba", np.zeros((2, 9, 9, 3)), r"\[9, 9, 3\] of float64, not \[H, W, 4\]"),
        ("grey", np.zeros((2, 9, 9)), r"\[9, 9\] of float64, not \[H, W, 1\]"),
        ("millimetres", np.zeros((2, 9, 9, 1), np.uint8), "of uint8"),
    ],
)
def test_rows_of_another_form_are_refused(form, rows, words):
    with pytest.raises(ValueError, match=rf"{words}.* \({form}\)"):
        turned(rows, [form])


def test_numbers_that_round_to_the_ends_are_in_range():
    rows = np.array([-1e-4, 1.0000001])[:, None, None, None]
    assert turned(rows, ["unit_floats"]).ravel().tolist() == [0, 255]


@pytest.mark.parametrize("form", [form for form in STORED if form != "millimetres"])
@pytest.mark.parametrize("first", [True, False])
def test_images_of_all_forms_can_be_looked_at(form, first):
    images = np.random.default_rng(0).integers(0, 256, (2, 9, 10, 3)).astype(np.uint8)
    stored, meant = STORED[form](images), MEANT.get(form, lambda x: x)(images)
    if form == "grey":  # it may be looked at as it is
        meant = meant[..., :1]
    if first and stored.ndim == 4 and form != "channels_first":
        stored = np.moveaxis(stored, -1, 1)
    np.testing.assert_array_equal(pictures(stored), meant)


@pytest.mark.parametrize(
    "rows",
    [
        np.zeros((2, 9, 9, 1), np.float32),  # a depth map
        np.full((2, 9, 9), 500, np.uint16),
        np.full((2, 9, 9, 3), 300.0),
        np.full((2, 9, 9, 3), np.nan),
        np.ones((2, 9, 9, 3), bool),
        np.zeros((2, 40, 3), np.float32),  # points
        np.zeros((2, 9), np.uint8),
        np.array("text"),
        "text",
    ],
)
def test_other_arrays_are_no_pictures(rows):
    assert pictures(rows) is None


IMAGES = {"front": ["channels_first", "unit_floats"], "far": ["no_channel", "millimetres"]}


@pytest.fixture
def elsewhere(tmp_path):
    """A file with images of other forms, and one with the same images in offrl's own."""
    rng = np.random.default_rng(0)
    paths = [write_demos(tmp_path / name, next_obs=True) for name in ("other.hdf5", "own.hdf5")]
    with h5py.File(paths[0], "r+") as other, h5py.File(paths[1], "r+") as own:
        for demo, group in itertools.product(own["data"], ("obs", "next_obs")):
            place, steps = f"data/{demo}/{group}", len(own[f"data/{demo}/actions"])
            front = rng.integers(0, 256, (steps, 12, 10, 3)).astype(np.uint8)
            far = rng.integers(0, 4000, (steps, 12, 10)).astype(np.uint16)
            other[f"{place}/front"] = np.moveaxis(front, -1, 1).astype(np.float32) / 255
            other[f"{place}/far"] = far
            own[f"{place}/front"] = front
            own[f"{place}/far"] = far[..., None].astype(np.float32) / 1000
    return paths


def batches(path, **options):
    dataset = SequenceDataset(path, ["front", "far", "speed"], seq_length=2, **options)
    return dataset.obs_shapes, dataset.get_batch(np.arange(len(dataset)))


PLACES = {
    "all": {"hdf5_cache_mode": "all"},
    "vectors": {"hdf5_cache_mode": "low_dim"},
    "none": {"hdf5_cache_mode": None},
    "some": {"hdf5_cache_mode": "auto", "cache_gb": 1e-5},
    "disk": {"hdf5_cache_mode": "low_dim", "cache_dir": "{}"},
}


@pytest.mark.parametrize("place", PLACES)
def test_batches_are_those_of_turned_images(elsewhere, place, monkeypatch, tmp_path):
    monkeypatch.setattr("offrl.data.arrays.TURNED_BYTES", 3000)  # several parts of a demo
    other, own = elsewhere
    options = {
        key: value.format(tmp_path / "rows") if isinstance(value, str) else value
        for key, value in PLACES[place].items()
    }
    shapes, batch = batches(other, images=[IMAGES], **options)
    meant_shapes, meant = batches(own, **options)
    assert shapes == meant_shapes
    for group, key in itertools.product(("obs", "next_obs"), IMAGES):
        assert batch[group][key].dtype == meant[group][key].dtype
        np.testing.assert_array_equal(batch[group][key], meant[group][key])


def test_rows_on_disk_are_those_of_one_form(elsewhere, tmp_path):
    seen = []
    for forms in (["channels_first", "unit_floats"], ["channels_first", "signed_floats"]):
        images = [IMAGES | {"front": forms}]
        _, batch = batches(elsewhere[0], images=images, cache_dir=str(tmp_path / "rows"))
        seen.append(batch["obs"]["front"])
    assert not (seen[0] == seen[1]).all()


@pytest.mark.parametrize("place", ["all", "none"])
def test_images_of_other_layouts_are_turned(place, tmp_path):
    episodes = write_maniskill(tmp_path / "trajectory.h5")
    key, images = "base_camera_depth", [{"base_camera_depth": ["millimetres"]}]
    remarks = DataInfo(tmp_path / "trajectory.h5").facts()["remarks"]
    assert any("base_camera_depth=millimetres" in remark for remark in remarks)
    dataset = SequenceDataset(
        str(tmp_path / "trajectory.h5"), [key], images=images, **PLACES[place]
    )
    batch = dataset.get_batch(np.arange(len(dataset)))
    for group in ("obs", "next_obs"):
        rows = np.concatenate([arrays[f"{group}/{key}"] for arrays in episodes.values()])
        np.testing.assert_array_equal(batch[group][key][:, 0], rows / np.float32(1000))


SHALLOW = {"backbone_class": "ShallowConv", "feature_dimension": 4, "pool_kwargs": {"num_kp": 2}}
SEEN = {
    "modalities": {"obs": {"low_dim": ["speed"], "rgb": ["front"], "depth": ["far"]}},
    "encoder": {"rgb": {"core_kwargs": SHALLOW}, "depth": {"core_kwargs": SHALLOW}},
}


@pytest.fixture
def seeing(small_config):
    def make(path, images=None, **train):
        entry = {"path": str(path), **({"images": images} if images else {})}
        return small_config({"observation": SEEN, "train": {"data": [entry], **train}})

    return make


def test_a_training_has_the_weights_of_one_on_turned_images(seeing, elsewhere, tmp_path):
    other, own = elsewhere
    weights = []
    for config in (seeing(other, IMAGES, num_epochs=1), seeing(own, num_epochs=1)):
        trainer = Trainer(config)
        train_completely(trainer)
        weights.append(trainer.algo.nets.state_dict())
    assert all((weights[1][key] == x).all() for key, x in weights[0].items())


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ({"fornt": ["grey"]}, "train.data.images: demo_0 has no obs/fornt.*far, front"),
        (IMAGES | {"front": ["no_channel"]}, r"demo_0/obs/front is \[3, 12, 10\].*no_channel"),
        (IMAGES | {"front": ["channels_first", "signed_floats"]}, None),
        (IMAGES | {"far": ["no_channel", "unit_floats"]}, "far is .*uint16, not floats.*images"),
        ({"far": IMAGES["far"]}, '"images": {"front": \\["channels_first", "unit_floats"\\]}'),
        ({"front": ["channels_first"], "far": IMAGES["far"]}, '"channels_first", "unit_floats"'),
        ({"front": IMAGES["front"]}, 'uint16.* {"far": \\["no_channel", "millimetres"\\]}'),
    ],
)
def test_an_error_says_which_images_have_another_form(seeing, elsewhere, images, words):
    other, _ = elsewhere
    if words is None:  # a form that fits, though it is not meant
        assert make_dataset(seeing(other, images), {})
        return
    with pytest.raises(ValueError, match=words) as raised:
        Trainer(seeing(other, images))
    assert str(raised.value).startswith(f"{other}: ") and "\n" not in str(raised.value)


def test_an_image_before_the_camera_started_does_not_tell_the_form(seeing, elsewhere):
    other, _ = elsewhere
    with h5py.File(other, "r+") as file:
        for demo in file["data"].values():
            demo["obs/front"][...] = np.rint(demo["obs/front"][:] * 255)
            demo["obs/front"][0] = 0
    assert any("front=channels_first,byte_numbers" in x for x in Validation(other).remarks)
    with pytest.raises(ValueError, match='"front": \\["channels_first", "byte_numbers"\\]'):
        Trainer(seeing(other, {"far": IMAGES["far"]}))


@pytest.mark.parametrize("cache_mode", ["all", "low_dim"])
def test_a_value_out_of_range_is_said_with_its_place(seeing, elsewhere, cache_mode):
    other, _ = elsewhere
    with h5py.File(other, "r+") as file:
        file["data/demo_1/obs/front"][3, 1, 2, 3] = 7.5
    with pytest.raises(ValueError, match=r"data/demo_1/obs/front holds 7.5.*unit_floats"):
        train_completely(Trainer(seeing(other, IMAGES, hdf5_cache_mode=cache_mode)))


def test_an_unknown_form_is_an_error_of_the_config(seeing, elsewhere):
    for forms in (["channel_first"], [], "rgba"):
        with pytest.raises(ValueError, match="train.data.0.images.front"):
            seeing(elsewhere[0], {"front": forms})


def test_a_layout_of_flat_arrays_names_the_way_out(tmp_path):
    path = tmp_path / "flat.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"], file["actions"] = np.zeros((4, 3)), np.zeros((4, 2))
        file["rewards"], file["terminals"] = np.zeros(4), np.eye(4)[-1]
        file["timeouts"] = np.zeros(4)
    with pytest.raises(ValueError, match="train.data.images.*offrl convert"):
        SequenceDataset(str(path), ["flat"], images=[{"flat": ["grey"]}])


def test_one_file_has_one_form(small_config, elsewhere):
    entries = [{"path": str(elsewhere[0]), "images": images} for images in (IMAGES, {})]
    with pytest.raises(ValueError, match="twice, with different forms"):
        Trainer(small_config({"observation": SEEN, "train": {"data": entries}}))


@pytest.mark.parametrize("place", ["all", "none", "some"])
def test_compressed_images_are_turned(place, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (6, 12, 10, 1)).astype(np.uint8)
    path = str(tmp_path / "demos.hdf5")
    with DemoWriter(path, compression="png") as writer:
        writer.write({"actions": np.zeros((6, 2)), "obs/front": images})
    options = PLACES[place] | {"images": [{"front": ["grey"]}], "load_next_obs": False}
    dataset = SequenceDataset(path, ["front"], **options)
    seen = dataset.get_batch(np.arange(6))["obs"]["front"][:, 0]
    np.testing.assert_array_equal(seen, images.repeat(3, axis=-1))
