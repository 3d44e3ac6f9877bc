"""Each kind of broken file gets a message that says what, where and how to correct it."""

import h5py
import numpy as np
import pytest
from conftest import write_demos

from offrl.data.formats.hdf5 import DemoFile
from offrl.data.provenance import fingerprint
from offrl.data.sequence import SequenceDataset


def load(path, **arguments):
    return SequenceDataset(path, ["position", "speed"], **arguments)


def edit(path, change):
    with h5py.File(path, "r+") as file:
        change(file)


def replace(file, key, value):
    del file[key]
    file[key] = value


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f.pop("data/demo_1/actions"), ["data/demo_1", "no 'actions'", "obs, rewards"]),
        (lambda f: f.pop("data/demo_1/obs/speed"), ["data/demo_1", "'obs/speed'", "obs/position"]),
        (
            lambda f: replace(f, "data/demo_2/rewards", np.zeros(3)),
            ["data/demo_2/rewards", "[3]", "[6]"],
        ),
        (
            lambda f: replace(f, "data/demo_2/obs/speed", np.zeros((6, 5))),
            ["data/demo_2/obs/speed", "[6, 5]", "[6, 2]"],
        ),
        (
            lambda f: f["data/demo_1/obs/speed"].__setitem__((4, 1), np.nan),
            ["data/demo_1/obs/speed", "NaN", "step 4"],
        ),
        (
            lambda f: f["data/demo_2/actions"].__setitem__((0, 0), np.inf),
            ["data/demo_2/actions", "infinity", "step 0"],
        ),
        (lambda f: f.pop("data"), ["no demonstrations"]),
        (lambda f: f.move("data/demo_1", "data/second"), ["demo_0, demo_1", "second"]),
    ],
)
@pytest.mark.parametrize("cache_mode", ["all", None])
def test_broken_content_is_located(demos, change, words, cache_mode):
    edit(demos, change)
    with pytest.raises(ValueError) as error:
        dataset = load(demos, hdf5_cache_mode=cache_mode)
        for i in range(len(dataset)):  # what stays in the file is looked at when it is read
            dataset[i]
    for word in [str(demos), *words]:
        assert word in str(error.value)


def test_a_missing_filter_key_lists_the_ones_there_are(demos):
    with pytest.raises(ValueError, match="'test'.*train, valid"):
        load(demos, filter_by_attribute="test")
    edit(demos, lambda f: f.__setitem__("mask/lost", np.array(["demo_9"], dtype="S")))
    with pytest.raises(ValueError, match="mask/lost .*demo_9"):
        load(demos, filter_by_attribute="lost")


def test_a_missing_or_truncated_file_is_named(demos, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.hdf5"):
        load(tmp_path / "nowhere.hdf5")
    content = demos.read_bytes()
    demos.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="demos.hdf5"):
        load(demos)


def test_the_fingerprint_tells_contents_apart(tmp_path):
    first = write_demos(tmp_path / "a.hdf5", seed=0)
    second = write_demos(tmp_path / "b.hdf5", seed=1)
    assert fingerprint([first]) != fingerprint([second])
    assert fingerprint([first]) == fingerprint([first])


def test_the_environment_is_read(tmp_path):
    path = write_demos(tmp_path / "demos.hdf5", env_args='{"env_name": "Lift", "type": 1}')
    with DemoFile(path) as file:
        assert file.env_args == {"env_name": "Lift", "type": 1}


def test_the_best_demonstrations_by_their_returns(tmp_path):
    path = write_demos(tmp_path / "demos.hdf5", lengths=(3, 3, 3, 3))
    with h5py.File(path, "a") as file:
        for demo, total in zip(file["data"], (1.0, 0.0, 2.0, 1.0), strict=True):
            file[f"data/{demo}/rewards"][...] = total / 3
    assert SequenceDataset(path, ["position"], top_share=0.5).demos == ["demo_0", "demo_2"]
    assert SequenceDataset(path, ["position"], top_share=0.01).demos == ["demo_2"]
    with h5py.File(path, "a") as file:
        for demo in file["data"]:
            file[f"data/{demo}/rewards"][...] = 0
    with pytest.raises(ValueError, match="train.data.top_share"):
        SequenceDataset(path, ["position"], top_share=0.5)
    with h5py.File(path, "a") as file:
        del file["data/demo_1/rewards"]
    with pytest.raises(ValueError, match="demo_1 .*train.data.top_share"):
        SequenceDataset(path, ["position"], top_share=0.5)
