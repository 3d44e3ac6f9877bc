"""``offrl validate``: what it finds, where, and what it leaves in peace."""

import h5py
import numpy as np
import pytest
from conftest import ROOT

from offrl.__main__ import main
from offrl.data.info import DataInfo
from offrl.data.validation import Validation


def edit(path, change):
    with h5py.File(path, "r+") as file:
        change(file)


def replace(file, key, value):
    if key in file:
        del file[key]
    file[key] = value


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f.pop("data/demo_1/obs/speed"), ["data/demo_1 lacks obs/speed"]),
        (lambda f: f.pop("data/demo_1/actions"), ["data/demo_1", "no 'actions'"]),
        (lambda f: replace(f, "data/demo_1/rewards", np.zeros(3)), ["demo_1/rewards has 3 steps"]),
        (lambda f: replace(f, "data/demo_1/obs/speed", np.zeros((7, 5))), ["demo_1/obs/speed"]),
        (
            lambda f: replace(f, "data/demo_1/obs/speed", np.zeros((7, 2), np.uint8)),
            ["demo_1/obs/speed has steps of bytes [2]"],
        ),
        (lambda f: f["data/demo_2/dones"].__setitem__(0, 3), ["demo_2/dones is neither 0 nor 1"]),
        (lambda f: f["data/demo_2/rewards"].__setitem__(1, np.nan), ["NaN or infinity at step 1"]),
        (lambda f: f["data/demo_2/actions"].__setitem__((1, 0), 1e99), ["beyond what float32"]),
        (lambda f: replace(f, "data/demo_0/actions", 1.0), ["data/demo_0/actions"]),
        (lambda f: replace(f, "mask/valid", np.array(["demo_1"], "S")), ["common: demo_1"]),
        (lambda f: replace(f, "mask/some", np.array(["demo_1"] * 2, "S")), ["more than once"]),
        (lambda f: replace(f, "mask/some", np.array(["demo_9"], "S")), ["not there: demo_9"]),
        (lambda f: replace(f, "mask/some", np.arange(3)), ["mask/some is no list of names"]),
        (lambda f: f["data"].attrs.__setitem__("env_args", "{"), ["env_args", "not JSON"]),
        (
            lambda f: f["data/demo_1"].attrs.__setitem__("num_samples", 9),
            ["data/demo_1", "9 steps", "7"],
        ),
        (
            lambda f: f["data/demo_0/obs"].__setitem__("x", h5py.SoftLink("/no")),
            ["data/demo_0/obs/x", "leads nowhere"],
        ),
        (
            lambda f: f["data/demo_0"].__setitem__("again", f["data/demo_0"]),
            ["a group within itself"],
        ),
        (lambda f: f.pop("data"), ["no demonstrations"]),
    ],
)
def test_what_is_wrong_is_found_with_its_place(demos, change, words, capsys):
    edit(demos, change)
    assert main(["validate", str(demos)]) == 1
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("wrong: ")]
    for word in [str(demos), *words]:
        assert any(word in line for line in lines), lines


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: [x["dones"].__setitem__(..., 0) for x in f["data"].values()], "never 1"),
        (
            lambda f: [x["obs/speed"].__setitem__((..., 1), 4) for x in f["data"].values()],
            "obs/speed never changes in dimension 1",
        ),
        (lambda f: f["data/demo_1/actions"].__setitem__((0, 0), 2.5), "actions reach 2.5"),
        (lambda f: f["data"].attrs.__setitem__("total", 99), "recorded with 99 steps"),
        (lambda f: f.copy("data/demo_1", "data/demo_3"), "demo_1, demo_3 are the same"),
        (lambda f: f["data/demo_1/obs/speed"].__setitem__((3, 0), 1e7), "speed at step 3: 1e+07"),
    ],
)
def test_what_is_odd_is_remarked_on_and_does_not_fail(demos, change, words, capsys):
    edit(demos, change)
    assert main(["validate", str(demos)]) == 0
    out = capsys.readouterr().out
    assert any(x.startswith("remark: ") and words in x for x in out.splitlines()), out


@pytest.mark.slow
def test_sound_files_are_counted(demos, capsys):
    assert main(["validate", str(demos)]) == 0
    assert "0 wrong, 0 remarks; 3 demonstrations, 18 steps, 17 arrays" in capsys.readouterr().out
    for path in (ROOT / "datasets/lift").glob("*.hdf5"):
        found = Validation(path)
        assert not found.wrong and not found.remarks
        assert found.counts["checksums"] == found.counts["arrays"] > 2000


@pytest.mark.slow
def test_a_bit_that_flipped_anywhere_in_shipped_data_is_found(tmp_path):
    content = bytearray((ROOT / "datasets/lift/low_dim.hdf5").read_bytes())
    with h5py.File(ROOT / "datasets/lift/low_dim.hdf5") as file:
        place = file["data/demo_77/states"].id.get_chunk_info(0).byte_offset
    content[place + 100] ^= 4
    path = tmp_path / "flipped.hdf5"
    path.write_bytes(content)
    (sentence,) = Validation(path).wrong
    assert sentence.startswith(f"{path}: data/demo_77/states cannot be read")


def test_d4rls_files_are_validated_too(tmp_path, capsys):
    path = tmp_path / "d4rl.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"] = np.random.default_rng(0).normal(size=(16, 2))
        file["actions"] = np.random.default_rng(1).uniform(-1, 1, (16, 3))
        file["rewards"] = np.arange(16.0)
        file["terminals"] = np.arange(16) % 4 == 3
        file["timeouts"] = np.arange(16) == 9
        file["infos/qpos"] = np.full((16, 2), np.nan)  # which nobody trains on
    assert main(["validate", str(path)]) == 0
    assert "0 wrong, 0 remarks; 5 demonstrations, 16 steps" in capsys.readouterr().out
    edit(path, lambda f: f["observations"].__setitem__((6, 1), np.nan))
    edit(path, lambda f: replace(f, "timeouts", np.full(16, 0.5)))
    assert main(["validate", str(path), str(tmp_path / "none.hdf5")]) == 1
    out = capsys.readouterr().out
    for words in ("observations holds NaN", "timeouts is neither 0 nor 1", "none.hdf5: no such"):
        assert words in out


def without_steps(file):
    for key in ("actions", "rewards", "dones", "obs/position", "obs/speed"):
        shape = file[f"data/demo_1/{key}"].shape
        replace(file, f"data/demo_1/{key}", np.zeros((0, *shape[1:])))
    file["data/demo_1"].attrs["num_samples"] = 0
    del file["data"].attrs["total"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_steps, "data/demo_1 has no steps"),
        (
            lambda f: f.move("data/demo_1/obs/speed", "data/demo_1/obs/pace"),
            "data/demo_1 lacks obs/speed and has obs/pace, unlike the first",
        ),
        (lambda f: replace(f, "data/demo_1/obs/new", np.ones(7)), "data/demo_1 has obs/new"),
    ],
)
def test_an_odd_demonstration_is_one_sentence(demos, change, words):
    edit(demos, change)
    (sentence,) = Validation(demos).wrong
    assert sentence.startswith(f"{demos}: {words}")


def following(file, *breaks):
    """``next_obs`` as they follow from ``obs``, but for some (demonstration, step)."""
    for name, demo in file["data"].items():
        for key, rows in list(demo["obs"].items()):
            new = np.append(rows[1:], rows[-1:], axis=0)
            for step in (step for demo_name, step in breaks if demo_name == name):
                new[step] += 1
            demo[f"next_obs/{key}"] = new


def test_next_obs_that_do_not_follow_are_counted(demos):
    edit(demos, lambda f: following(f, ("demo_1", 2), ("demo_1", 4), ("demo_2", 5)))
    found = Validation(demos)  # the last step of demo_2 is an end: nobody knows better
    assert not found.wrong
    (remark,) = found.remarks
    assert remark.startswith("data/demo_1/next_obs at step 2") and "at 2 of 15 steps" in remark


def stamped(file, kind, start):
    for demo in file["data"].values():
        demo["obs/time"] = (start + 0.05 * np.arange(len(demo["actions"]))).astype(kind)


@pytest.mark.parametrize(
    ("kind", "start", "is_lost"), [("f8", 1.7e9, True), ("f8", 0.0, False), ("f4", 0.0, False)]
)
def test_numbers_that_float32_cannot_tell_apart_are_remarked_on(demos, kind, start, is_lost):
    edit(demos, lambda f: stamped(f, kind, start))
    remarks = [*Validation(demos).remarks, *DataInfo(demos).facts()["remarks"]]
    assert [x.startswith("obs/time changes by less than float32") for x in remarks] == [
        True for _ in range(2 * is_lost)
    ]
