"""Images as frames in a file: the same wherever they are read; other compressions and chunks."""

import io
import shutil
from contextlib import closing
from itertools import islice

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from offrl.data.formats.hdf5 import DemoFile
from offrl.data.loader import BatchLoader
from offrl.data.sequence import SequenceDataset
from offrl.data.storage import COMPRESSIONS, StoredArray, create, decode_image
from offrl.data.validation import Validation
from offrl.data.writer import DemoWriter

SIZES = st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3]))
IMAGES = SIZES.flatmap(lambda shape: arrays(np.uint8, shape))


def smooth(seed=0, steps=6, size=32, channels=3):
    """Images without noise, such as JPEG is made for."""
    rng = np.random.default_rng(seed)
    waves = np.linspace(0, 3, size)[:, None] + np.linspace(0, 2, size)
    phases = rng.uniform(0, 6, (steps, 1, 1, channels))
    return (127 + 120 * np.sin(waves[None, ..., None] + phases)).astype(np.uint8)


def stored_and_read(file, array, *options):
    create(file, f"x{len(file)}", array, *options)
    return StoredArray(file[f"x{len(file) - 1}"].id)


@pytest.fixture
def file(tmp_path):
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        yield file


@settings(max_examples=40)
@given(images=IMAGES, rows=st.slices(4))
def test_png_frames_are_the_images_to_the_bit(images, rows):
    with h5py.File("memory", "w", driver="core", backing_store=False) as file:
        found = stored_and_read(file, images, "png")
        assert found.shape == images.shape and found.dtype == np.uint8
        np.testing.assert_array_equal(found[()], images)
        forwards = slice(rows.start, rows.stop, abs(rows.step or 1))
        start, stop, step = forwards.indices(len(images))
        if start < stop:  # HDF5 knows no other slices
            np.testing.assert_array_equal(found[start:stop:step], images[start:stop:step])
        np.testing.assert_array_equal(found[0], images[0])


@pytest.mark.parametrize("seed", range(3))
def test_jpeg_frames_are_close_and_small(seed, file):
    images = smooth(seed, size=96)
    found = stored_and_read(file, images, "jpeg")
    assert np.abs(found[()].astype(int) - images).max() <= 6
    assert file["x0"].id.get_storage_size() < images.nbytes / 5


def test_images_of_one_channel_may_be_labels_and_lose_nothing_as_jpeg(file):
    labels = np.random.default_rng(0).integers(0, 9, (3, 8, 8, 1), dtype=np.uint8)
    found = stored_and_read(file, labels, "jpeg")
    np.testing.assert_array_equal(found[()], labels)


@pytest.mark.parametrize("compression", [None, *COMPRESSIONS])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8])
def test_what_is_no_image_is_the_same_in_every_compression(compression, dtype, file):
    rows = (np.random.default_rng(0).normal(size=(50, 3)) * 99).astype(dtype)
    found = stored_and_read(file, rows, compression)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found[()], rows)
    dataset, expected = found.dataset, {"gzip": "gzip", "lzf": "lzf"}.get(compression)
    assert dataset.fletcher32 and dataset.compression == expected


@given(chunk_bytes=st.integers(1, 10**7), length=st.integers(1, 60))
@settings(max_examples=20)
def test_chunks_are_as_large_as_asked_but_whole_steps(chunk_bytes, length):
    with h5py.File("memory", "w", driver="core", backing_store=False) as file:
        found = stored_and_read(file, np.zeros((length, 5), np.float32), None, chunk_bytes)
        rows, width = found.dataset.chunks
        assert width == 5 and 1 <= rows <= length
        assert rows * 20 <= max(chunk_bytes, 20)
        assert rows == length or (rows + 1) * 20 > chunk_bytes


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The same three demonstrations with images, raw and as frames."""
    folder, paths = tmp_path_factory.mktemp("frames"), {}
    for kind in (None, "png", "jpeg"):
        paths[kind] = folder / f"{kind}.hdf5"
        with DemoWriter(paths[kind], compression=kind) as writer:
            for i in range(3):
                steps = np.random.default_rng(i).normal(size=(6, 2)).clip(-1, 1)
                obs = {"obs/camera": smooth(i), "obs/mask": smooth(i + 9, channels=1)}
                writer.write({"actions": steps, "dones": np.eye(6)[5], **obs})
    return paths


@pytest.fixture
def files(written, tmp_path):
    """Copies of them, to be damaged."""
    return {kind: shutil.copy(path, tmp_path) for kind, path in written.items()}


@pytest.mark.parametrize("cache_mode", ["all", "low_dim", None])
def test_training_sees_the_same_images_whether_they_are_frames_or_not(written, cache_mode):
    def batch(kind):
        data = SequenceDataset(
            written[kind], ["camera", "mask"], hdf5_cache_mode=cache_mode, seq_length=3
        )
        return data.get_batch(list(range(len(data))))

    raw, png, jpeg = (batch(kind) for kind in (None, "png", "jpeg"))
    assert raw["obs"]["camera"].dtype == png["obs"]["camera"].dtype
    for group in ("obs", "next_obs"):
        for key in ("camera", "mask"):
            np.testing.assert_array_equal(raw[group][key], png[group][key])
        far = np.abs(raw[group]["camera"].numpy().astype(int) - jpeg[group]["camera"].numpy())
        assert 0 < far.max() <= 6


@pytest.mark.parametrize("options", [{"hdf5_cache_mode": None}, {"cache_dir": "cache"}])
def test_frames_in_one_piece_are_read_as_frames(files, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def images():
        data = SequenceDataset(files["jpeg"], ["camera"], **options)
        return data.get_batch(list(range(len(data))))["obs"]["camera"].numpy()

    before = images()
    with h5py.File(files["jpeg"], "r+") as file:
        for demo in file["data"].values():
            stored = demo["obs/camera"]
            rows, attributes = stored[()], dict(stored.attrs)
            del demo["obs/camera"]
            demo["obs/camera"] = rows
            demo["obs/camera"].attrs.update(attributes)
    np.testing.assert_array_equal(images(), before)


@pytest.mark.parametrize("shape", [(-8, 8, 3), (0, 8, 3), "abc", (10**9, 10**9, 3)])
def test_frames_of_absurd_sizes_are_refused(files, shape):
    with h5py.File(files["jpeg"], "r+") as file:
        for demo in file["data"].values():
            demo["obs/camera"].attrs["frame_shape"] = shape
    with pytest.raises(ValueError, match="jpeg.hdf5: .*(frame_shape|int|memory)"):
        SequenceDataset(files["jpeg"], ["camera"], hdf5_cache_mode=None)


def test_long_floats_in_one_piece_are_read(tmp_path):
    with h5py.File(tmp_path / "long.hdf5", "w") as file:
        file["x"] = np.arange(6, dtype=np.longdouble).reshape(3, 2)
        rows = np.zeros((2, 2), np.float32)
        StoredArray(file["x"].id).light().read_into(rows, 1)
    assert rows.tolist() == [[2, 3], [4, 5]]


def test_reading_processes_decode_frames(written):
    def images(kind):
        data = SequenceDataset(written[kind], ["camera"], hdf5_cache_mode="low_dim")
        with closing(iter(BatchLoader(data, 4, seed=0, num_workers=2))) as batches:
            return [batch["obs"]["camera"].numpy() for batch in islice(batches, 4)]

    for raw, png in zip(images(None), images("png"), strict=True):
        np.testing.assert_array_equal(raw, png)


@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_frames_are_fit_to_train_on(written, kind):
    found, raw = Validation(written[kind]), Validation(written[None])
    assert found.wrong == [] and found.counts["steps"] == 18
    assert found.counts["arrays"] == found.counts["checksums"] == raw.counts["arrays"]


def test_a_frame_that_is_no_image_is_found_and_named(files):
    with h5py.File(files["png"], "r+") as file:
        rows = file["data/demo_1/obs/camera"]
        broken, attributes = rows[()], dict(rows.attrs)
        broken[4, :8] = 0
        del file["data/demo_1/obs/camera"]
        file["data/demo_1"].create_dataset("obs/camera", data=broken).attrs.update(attributes)
    (wrong,) = Validation(files["png"]).wrong
    assert "data/demo_1/obs/camera cannot be read" in wrong
    with DemoFile(files["png"]) as file, pytest.raises(ValueError, match="demo_1/obs/camera"):
        file.trajectory("demo_1")


def test_frames_of_other_sizes_are_refused(files):
    with h5py.File(files["png"], "r+") as file:
        other = smooth(steps=6, size=16)
        del file["data/demo_2/obs/camera"]
        create(file["data/demo_2"], "obs/camera", other, "png")
    with pytest.raises(ValueError, match="demo_2/obs/camera"):
        SequenceDataset(files["png"], ["camera"])
    assert any(
        "demo_2/obs/camera has steps of" in wrong for wrong in Validation(files["png"]).wrong
    )


def jpeg(image, **options):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "jpeg", **options)
    return np.frombuffer(file.getvalue() + bytes(7), np.uint8)


@pytest.mark.parametrize("subsampling", [0, 2])
def test_a_jpeg_is_decoded_as_by_pil(subsampling):
    image = np.random.default_rng(0).integers(0, 256, (30, 41, 3), np.uint8)
    for options in ({"progressive": True}, {"quality": 20}):
        file, found = jpeg(image, subsampling=subsampling, **options), np.empty_like(image)
        decode_image(file, found)
        assert np.array_equal(found, np.asarray(Image.open(io.BytesIO(file.tobytes()))))


def test_a_jpeg_that_is_cut_off_or_of_another_kind_is_refused():
    image = np.zeros((30, 41, 3), np.uint8)
    file = jpeg(image)
    for wrong in (file[: len(file) // 2], file[:3], jpeg(image[:, :40]), jpeg(image[..., 0])):
        with pytest.raises((ValueError, OSError)):
            decode_image(wrong, np.empty_like(image))
