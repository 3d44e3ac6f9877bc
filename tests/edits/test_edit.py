"""Edits: what they choose, that what they do not change is what it was to the bit, and that they go
back again."""

import json

import h5py
import numpy as np
import pytest
from conftest import write_demos
from hypothesis import given, settings
from hypothesis import strategies as st

from offrl.data.formats.hdf5 import DemoFile
from offrl.data.storage import StoredArray, create
from offrl.data.validation import Validation
from offrl.data.writer import DemoWriter
from offrl.edits import rearrange
from offrl.edits.edit import of_files, open_file
from offrl.edits.selection import facts, keep, subset

ENV = {"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20, "camera_names": ["a"]}}


def write_own(path, lengths=(5, 7, 6), seed=0, env_args=ENV, images=False, **attributes):
    """A file as offrl records it; every third demonstration fails."""
    rng = np.random.default_rng(seed)
    with DemoWriter(path, env_args, durable=False) as writer:
        for i, length in enumerate(lengths):
            success = np.eye(length)[-1] * (i % 3 < 2)
            arrays = {"actions": rng.uniform(-1, 1, (length, 3)), "dones": success}
            arrays |= {"rewards": success, "obs/a": rng.normal(size=(length, 2))}
            arrays |= {"next_obs/a": rng.normal(size=(length, 2))}
            arrays["states"] = rng.normal(size=(length, 4))
            if images:
                arrays["obs/camera"] = rng.integers(0, 255, (length, 8, 8, 3), dtype=np.uint8)
            writer.write(arrays, seed=100 * seed + i, **attributes)
        writer.write_mask("train", [f"demo_{i}" for i in range(len(lengths) - 1)])
        writer.write_mask("valid", [f"demo_{len(lengths) - 1}"])
    return path


@pytest.fixture
def own(tmp_path):
    return write_own(tmp_path / "own.hdf5", lengths=(5, 7, 6, 4, 8, 3, 9, 5))


def edited(edit, path, make=None):
    """The file that an edit of another makes, open."""
    edit.write(path, {"command": "a test"})
    assert Validation(path).wrong == []
    return open_file(path)


def arrays_of(file, demo):
    return {k: v for k, v in file.trajectory(demo).items() if isinstance(v, np.ndarray)}


def assert_same(file, demo, other, other_demo):
    """The same arrays, to the bit, of the same kinds, and stored alike."""
    ones, others = arrays_of(file, demo), arrays_of(other, other_demo)
    assert ones.keys() == others.keys()
    for key in ones:
        assert ones[key].dtype == others[key].dtype
        np.testing.assert_array_equal(ones[key], others[key])
    for key, array in file.stored(demo).items():
        if isinstance(array, StoredArray):
            dataset, twin = array.dataset, other.stored(other_demo)[key].dataset
            assert (dataset.chunks, dataset.compression) == (twin.chunks, twin.compression)
            assert dataset.fletcher32 == twin.fletcher32


def test_what_was_never_written_is_not_read_as_zeros_but_can_be_left_out(tmp_path):
    path = write_demos(tmp_path / "x.hdf5")
    with h5py.File(path, "r+") as file:
        length = len(file["data/demo_0/actions"])
        file["data/demo_0"].create_dataset("obs/lost", (length, 3), np.float32)
    with open_file(path) as file:
        with pytest.raises(ValueError, match="x.hdf5: data/demo_0/obs/lost .* ever written"):
            file.trajectory("demo_0")
        rearrange.rename(file, {}, ["obs/lost"]).write(tmp_path / "out.hdf5", {})
    with open_file(tmp_path / "out.hdf5") as file:
        assert "obs/lost" not in arrays_of(file, "demo_0")


# -- splits ---------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(num=st.integers(2, 12), share=st.floats(0.01, 0.6), seed=st.integers(0, 99))
def test_every_demonstration_is_in_one_of_two_parts(num, share, seed, tmp_path_factory):
    path = write_demos(tmp_path_factory.mktemp("split") / "x.hdf5", lengths=[2] * num)
    with open_file(path) as file:
        masks = rearrange.split(file, share, seed).masks
        train, valid = ([demo for _, demo in masks[key]] for key in ("train", "valid"))
        assert sorted(train + valid) == sorted(file.demos())
        assert len(valid) == max(1, round(share * num)) and train
        again = rearrange.split(file, share, seed).masks["valid"]
        assert [demo for _, demo in again] == valid


def test_a_split_is_that_of_a_recording(own, tmp_path):
    with DemoWriter(tmp_path / "recorded.hdf5") as writer:
        for _ in range(8):
            writer.write({"actions": np.zeros((3, 1))})
        writer.write_split(0.25, seed=5)
    with open_file(own) as file, open_file(tmp_path / "recorded.hdf5") as recorded:
        with edited(rearrange.split(file, 0.25, 5), tmp_path / "out.hdf5") as out:
            for key in ("train", "valid"):
                assert out.mask(key) == recorded.mask(key)
            for demo in file.demos():
                assert_same(file, demo, out, demo)


def test_successes_and_failures_are_told_apart_and_can_be_shared_alike(own, tmp_path):
    with open_file(own) as file:
        by_success = rearrange.split(file, by="success")
        with edited(by_success, tmp_path / "a.hdf5") as out:
            assert out.mask("success") == [f"demo_{i}" for i in (0, 1, 3, 4, 6, 7)]
            assert out.mask("failure") == ["demo_2", "demo_5"]
            assert out.mask("train") == file.mask("train")
        for seed in range(5):
            valid = [
                demo for _, demo in rearrange.split(file, 0.3, seed, by="success").masks["valid"]
            ]
            assert sorted(demo in ("demo_2", "demo_5") for demo in valid) == [False, False, True]


def test_a_part_of_nothing_is_refused(own):
    with open_file(own) as file, pytest.raises(ValueError, match="mask/train"):
        rearrange.split(file, 0.99)


def test_a_filter_key_can_be_split(own):
    with open_file(own) as file:
        masks = rearrange.split(file, 0.5, names=("mine", "yours"), filter_key="train").masks
        parts = [demo for key in ("mine", "yours") for _, demo in masks[key]]
        assert sorted(parts) == sorted(file.mask("train"))


# -- filters and subsets --------------------------------------------------------------------------


def names_of(edit):
    return [demo for _, demo in edit.demos]


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        ("length > 5", [1, 2, 4, 6]),
        ("not success", [2, 5]),
        ("return == 1 and length < 6", [0, 3, 7]),
        ("seed % 2 == 1", [1, 3, 5, 7]),
    ],
)
def test_a_condition_chooses(own, condition, kept, tmp_path):
    with open_file(own) as file:
        chosen = keep(file, where=condition)
        demos = names_of(chosen)
        assert demos == [f"demo_{i}" for i in kept]
        with edited(chosen, tmp_path / "out.hdf5") as out:
            for new, old in zip(out.demos(), demos, strict=True):
                assert_same(file, old, out, new)
                assert out.attributes(new)["source"] == f"own.hdf5/{old}"
                assert out.attributes(new)["seed"] == file.attributes(old)["seed"]


def test_masks_follow_their_demonstrations_and_empty_ones_are_left_out(own, tmp_path, caplog):
    with open_file(own) as file:
        chosen = of_files([file], [(file, demo) for demo in ("demo_6", "demo_2")])
        with edited(chosen, tmp_path / "out.hdf5") as out:
            assert out.mask("train") == ["demo_1", "demo_0"]
            assert out.filter_keys() == ["train"]
    assert "mask/valid is left out" in caplog.text


def test_nothing_that_fulfils_is_said(own):
    with open_file(own) as file, pytest.raises(ValueError, match="success .*length > 99"):
        keep(file, success=True, where="length > 99")


def test_an_attribute_says_whether_an_episode_succeeded_before_rewards_do(tmp_path):
    path = write_own(tmp_path / "x.hdf5", lengths=(3, 4), success=False)
    with open_file(path) as file:
        known = facts(file, "demo_0")
        assert not known["success"]() and known["return"]() == 1


def test_dense_rewards_do_not_say_who_succeeded_and_dones_do(tmp_path):
    path = tmp_path / "x.hdf5"
    with DemoWriter(path) as writer:
        for done in (0, 1):
            arrays = {"actions": np.zeros((3, 1)), "rewards": np.full(3, 0.3)}
            writer.write(arrays | {"dones": np.array([0, 0, done])})
    with open_file(path) as file:
        assert names_of(keep(file, success=True)) == ["demo_1"]


def test_what_does_not_say_whether_it_succeeded_is_refused(tmp_path):
    with DemoWriter(tmp_path / "x.hdf5") as writer:
        writer.write({"actions": np.zeros((3, 1))})
    with open_file(tmp_path / "x.hdf5") as file:
        with pytest.raises(ValueError, match="data/demo_0 .*success"):
            keep(file, success=True)
        with pytest.raises(ValueError, match="'age > 3'.*length, return, success"):
            keep(file, where="age > 3")


def test_demonstrations_are_chosen_by_number_name_and_chance(own):
    with open_file(own) as file:
        assert names_of(subset(file, n=2)) == ["demo_0", "demo_1"]
        assert names_of(subset(file, demos=["demo_5", "demo_2"])) == ["demo_2", "demo_5"]
        assert names_of(subset(file, filter_key="valid")) == ["demo_7"]
        drawn = names_of(subset(file, n=4, seed=1))
        assert drawn == names_of(subset(file, n=4, seed=1)) == sorted(drawn)
        assert len(set(drawn)) == 4
        assert any(names_of(subset(file, n=4, seed=seed)) != drawn for seed in range(2, 5))
        with pytest.raises(ValueError, match="mask/valid .*demo_1"):
            subset(file, filter_key="valid", demos=["demo_1"])
        with pytest.raises(ValueError, match="9 .* 8; .*--n"):
            subset(file, n=9)


# -- merging --------------------------------------------------------------------------------------


def test_parts_of_a_file_merge_into_what_it_was(own, tmp_path):
    with open_file(own) as file:
        parts = []
        for name, demos in (("a", file.demos()[:3]), ("b", file.demos()[3:])):
            chosen = of_files([file], [(file, demo) for demo in demos])
            parts.append(edited(chosen, tmp_path / f"{name}.hdf5"))
        with edited(rearrange.merge(*parts, masks=True), tmp_path / "out.hdf5") as out:
            assert out.demos() == file.demos()
            for demo in file.demos():
                assert_same(file, demo, out, demo)
            for key in ("train", "valid"):
                assert out.mask(key) == file.mask(key)
            assert out.mask("a") == file.demos()[:3] and out.mask("b") == file.demos()[3:]
            assert out.attributes("demo_4")["source"] == "b.hdf5/demo_1 < own.hdf5/demo_4"
            assert out.env_args == file.env_args
        for part in parts:
            part.close()


def changed(**kwargs):
    return {**ENV, "env_kwargs": {**ENV["env_kwargs"], **kwargs}}


@pytest.mark.parametrize(
    ("env_args", "words"),
    [
        ({**ENV, "env_name": "Can"}, 'env_name .*"Lift" .*a.hdf5 .*"Can" .*b.hdf5'),
        ({**ENV, "type": 2}, " type .* 1 .* 2 "),
        (changed(control_freq=10), "env_kwargs.control_freq .*20 .* 10 "),
        (changed(controller_configs={"type": "X"}), "env_kwargs.controller_configs .*null"),
        (None, 'env_name .*"Lift" .*null'),
    ],
)
def test_recordings_of_two_tasks_are_not_merged(env_args, words, tmp_path):
    one = write_own(tmp_path / "a.hdf5")
    other = write_own(tmp_path / "b.hdf5", env_args=env_args)
    with open_file(one) as a, open_file(other) as b, pytest.raises(ValueError, match=words):
        rearrange.merge(a, b)


def test_what_changes_nothing_that_actions_do_may_differ(tmp_path, caplog):
    one = write_own(tmp_path / "a.hdf5", env_args={**ENV, "env_version": "1.4.1"})
    views = changed(camera_names=["b"], has_renderer=True, reward_shaping=None)
    other = write_own(tmp_path / "b.hdf5", seed=1, env_args={**views, "env_version": "1.5.2"})
    with open_file(one) as a, open_file(other) as b:
        assert len(rearrange.merge(a, b).demos) == 6
    assert "version 1.5.2 of the simulator" in caplog.text


def test_arrays_that_do_not_go_together_are_named_before_anything_is_copied(tmp_path):
    one, other = write_own(tmp_path / "a.hdf5"), write_own(tmp_path / "b.hdf5", images=True)
    doubles = write_demos(tmp_path / "c.hdf5", obs={"a": (2,)}, next_obs=True)
    with h5py.File(doubles, "r+") as file:
        file["data"].attrs["env_args"] = json.dumps(ENV)
        for demo in file["data"].values():
            demo["states"] = np.zeros((len(demo["actions"]), 4))
            demo["actions3"] = np.zeros((len(demo["actions"]), 3))
            del demo["actions"]
            demo.move("actions3", "actions")
    with open_file(one) as a, open_file(other) as b, open_file(doubles) as c:
        with pytest.raises(ValueError, match="a.hdf5: .*obs/camera.*--drop obs/camera"):
            rearrange.merge(a, b)
        with pytest.raises(ValueError, match=r"float64 \[3\].*a.hdf5 .*float32 \[3\]"):
            rearrange.merge(a, c)
        with edited(rearrange.repack(c), tmp_path / "d.hdf5") as d:
            assert len(rearrange.merge(a, d).demos) == 6
        with pytest.raises(ValueError, match="a.hdf5"):
            rearrange.merge(a, a)


def test_a_key_that_only_some_files_have_under_a_mask_is_said(tmp_path, caplog):
    one, other = write_own(tmp_path / "a.hdf5"), write_own(tmp_path / "b.hdf5", seed=1)
    with h5py.File(other, "r+") as file:
        del file["mask/valid"]
    with open_file(one) as a, open_file(other) as b:
        rearrange.merge(a, b)
    assert "mask/valid has no demonstrations of b.hdf5" in caplog.text


# -- names and storage ----------------------------------------------------------------------------


def test_what_is_renamed_and_back_is_what_it_was(own, tmp_path):
    there = {"obs/a": "obs/b", "states": "old/states", "mask/train": "mask/mine"}
    with open_file(own) as file:
        with edited(rearrange.rename(file, there), tmp_path / "a.hdf5") as other:
            assert {"obs/b", "next_obs/b", "old/states"} <= arrays_of(other, "demo_0").keys()
            assert not {"obs/a", "next_obs/a", "states"} & arrays_of(other, "demo_0").keys()
            assert set(other.filter_keys()) == {"mine", "valid"}
            back = {new: old for old, new in there.items()}
            with edited(rearrange.rename(other, back), tmp_path / "b.hdf5") as again:
                for demo in file.demos():
                    assert_same(file, demo, again, demo)
                assert set(again.filter_keys()) == {"train", "valid"}


def test_names_can_be_exchanged_and_things_left_out(own, tmp_path):
    with open_file(own) as file:
        swapped = rearrange.rename(file, {"actions": "states", "states": "actions"}, ["next_obs"])
        with edited(swapped, tmp_path / "a.hdf5") as out:
            old, new = arrays_of(file, "demo_1"), arrays_of(out, "demo_1")
            np.testing.assert_array_equal(old["states"], new["actions"])
            assert "obs/a" in new and not [key for key in new if key.startswith("next_obs")]
        with edited(
            rearrange.rename(file, {}, ["obs/a", "mask/valid"]), tmp_path / "b.hdf5"
        ) as out:
            assert not [key for key in arrays_of(out, "demo_0") if "obs" in key]
            assert out.filter_keys() == ["train"]


@pytest.mark.parametrize(
    ("names", "dropped", "words"),
    [
        ({"obs/c": "obs/d"}, [], "obs/c.*actions, .*mask/train"),
        ({}, ["obs/c"], "obs/c"),
        ({"rewards": "dones"}, [], " dones;"),
        ({"mask/train": "mask/valid"}, [], " mask/valid;"),
        ({"mask/train": "train"}, [], "mask/train .* train"),
        ({"obs/a": "mask/a"}, [], "obs/a .*mask/a"),
    ],
)
def test_names_that_cannot_be_are_refused(own, names, dropped, words):
    with open_file(own) as file, pytest.raises(ValueError, match=words):
        rearrange.rename(file, names, dropped)


@pytest.mark.parametrize("compression", ["png", "gzip", "lzf", None])
def test_what_is_repacked_and_back_is_what_it_was(compression, tmp_path):
    own = write_own(tmp_path / "own.hdf5", images=True)
    with open_file(own) as file:
        with edited(rearrange.repack(file, compression, 4096), tmp_path / "a.hdf5") as packed:
            assert packed.shape("demo_0", "obs/camera") == (8, 8, 3)
            with edited(rearrange.repack(packed), tmp_path / "b.hdf5") as back:
                for demo in file.demos():
                    assert_same(file, demo, back, demo)


def test_doubles_become_float32_but_the_simulator_s_states(tmp_path):
    path = write_demos(tmp_path / "x.hdf5", obs={"a": (2,), "states": (3,)})
    with h5py.File(path, "r+") as file:
        for demo in file["data"].values():
            demo.move("obs/states", "states")
    with open_file(path) as file, edited(rearrange.repack(file), tmp_path / "out.hdf5") as out:
        for demo in file.demos():
            old, new = arrays_of(file, demo), arrays_of(out, demo)
            assert {key: str(x.dtype) for key, x in new.items()} == {
                **dict.fromkeys(("actions", "rewards", "dones", "obs/a"), "float32"),
                "states": "float64",
            }
            for key in old:
                np.testing.assert_allclose(new[key], old[key], rtol=1e-7, atol=1e-30)


def test_jpeg_images_are_not_lost_twice(tmp_path):
    own = write_own(tmp_path / "own.hdf5", images=True)
    with open_file(own) as file:
        with edited(rearrange.repack(file, "jpeg"), tmp_path / "a.hdf5") as once:
            with edited(rearrange.repack(once, "jpeg", 100), tmp_path / "b.hdf5") as twice:
                images = [arrays_of(x, "demo_1")["obs/camera"] for x in (file, once, twice)]
                assert (images[0] != images[1]).any()
                np.testing.assert_array_equal(images[1], images[2])


# -- what is kept ---------------------------------------------------------------------------------


def test_all_that_is_said_of_data_and_demonstrations_is_kept(own, tmp_path, caplog):
    with h5py.File(own, "r+") as file:
        file["data"].attrs["operator"] = "Ada"
        file["data"].attrs["gains"] = np.arange(3.0)
        file["data/demo_0"].attrs["weights"] = np.arange(4)
        file["data/demo_0"].attrs["names"] = ["a", "b"]
        file["data/demo_0"].attrs["nothing"] = h5py.Empty("f")
        del file["data"].attrs["text_crc32"], file["data/demo_0"].attrs["text_crc32"]
        file["calibration"] = np.eye(3)
    with open_file(own) as file, edited(of_files([file]), tmp_path / "out.hdf5") as out:
        assert out.attributes()["operator"] == "Ada"
        np.testing.assert_array_equal(out.attributes()["gains"], np.arange(3.0))
        np.testing.assert_array_equal(out.attributes("demo_0")["weights"], np.arange(4))
        assert list(out.attributes("demo_0")["names"]) == ["a", "b"]
    assert "calibration are neither data nor mask: left behind" in caplog.text


def test_only_what_all_files_say_is_said_of_the_merged_data(tmp_path):
    paths = [write_own(tmp_path / f"{name}.hdf5", seed=ord(name)) for name in "ab"]
    for path, operator in zip(paths, ("Ada", "Bob"), strict=True):
        with h5py.File(path, "r+") as file:
            file["data"].attrs["operator"], file["data"].attrs["robot"] = operator, "arm 7"
            del file["data"].attrs["text_crc32"]
    with open_file(paths[0]) as a, open_file(paths[1]) as b:
        assert rearrange.merge(a, b).attributes == {"robot": "arm 7"}


def test_filters_of_arrays_are_kept_and_nothing_is_unpacked(own, tmp_path, monkeypatch):
    with h5py.File(own, "r+") as file:
        for demo in file["data"].values():
            images = np.zeros((len(demo["actions"]), 8, 8, 3), np.uint8)
            create(demo, "obs/frames", images, "png")
            demo.create_dataset("obs/packed", data=images, compression="gzip", shuffle=True)
    monkeypatch.setattr("offrl.data.storage._decoded", None)
    with open_file(own) as file:
        of_files([file]).write(tmp_path / "out.hdf5", {"command": "a test"})
    with h5py.File(tmp_path / "out.hdf5") as out:
        packed = out["data/demo_3/obs/packed"]
        assert packed.compression == "gzip" and packed.shuffle
        assert out["data/demo_3/obs/frames"].attrs["frames"] == "png"


def test_arrays_that_lie_in_other_files_come_along(own, tmp_path):
    rows = np.arange(40.0, dtype=np.float32).reshape(20, 2)
    with h5py.File(tmp_path / "other.hdf5", "w") as other:
        other["rows"] = rows
    with h5py.File(own, "r+") as file:
        for demo in file["data"].values():
            layout = h5py.VirtualLayout((len(demo["actions"]), 2), np.float32)
            source = h5py.VirtualSource(tmp_path / "other.hdf5", "rows", rows.shape)
            layout[:] = source[: layout.shape[0]]
            demo.create_virtual_dataset("obs/v", layout)
            demo["obs/linked"] = h5py.ExternalLink("own.hdf5", f"{demo.name}/obs/a")
    with open_file(own) as file:
        of_files([file]).write(tmp_path / "out.hdf5", {"command": "a test"})
    (tmp_path / "other.hdf5").unlink()
    own.unlink()
    with DemoFile(tmp_path / "out.hdf5") as out:
        found = arrays_of(out, "demo_0")
        np.testing.assert_array_equal(found["obs/v"], rows[: len(found["obs/v"])])
        np.testing.assert_array_equal(found["obs/linked"], found["obs/a"])


def test_a_demonstration_that_is_under_a_filter_key_twice_is_there_once(own, tmp_path):
    with h5py.File(own, "r+") as file:
        file["mask/twice"] = np.array(["demo_3", "demo_1", "demo_3"], dtype="S")
    with open_file(own) as file:
        of_files([file]).write(tmp_path / "out.hdf5", {"command": "a test"})
    with open_file(tmp_path / "out.hdf5") as out:
        assert out.mask("twice") == ["demo_3", "demo_1"]


def test_demonstrations_are_in_the_order_of_their_numbers(tmp_path):
    path = write_demos(tmp_path / "x.hdf5", lengths=range(2, 14))
    with h5py.File(path, "r+") as file:
        del file["data/demo_3"], file["mask"]
    with open_file(path) as file, edited(of_files([file]), tmp_path / "out.hdf5") as out:
        assert out.lengths(out.demos()).tolist() == [2, 3, 4, *range(6, 14)]
        assert out.attributes("demo_3")["source"] == "x.hdf5/demo_4"
