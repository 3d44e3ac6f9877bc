"""What HDF5 takes from other files: data that is complete, or one clear line; never zeros, never
the bytes of a file that has nothing to do with the data."""

import os

import h5py
import numpy as np
import pytest
from conftest import write_demos

from offrl.__main__ import main
from offrl.data.sequence import SequenceDataset
from offrl.links import FOLLOWED

KEY = "data/demo_1/obs/speed"


def external(target, name=KEY, inside="/" + KEY):
    def change(file):
        file.pop(name)
        file[name] = h5py.ExternalLink(target, inside)

    return change


def virtual(target, rows=7, key=KEY, of=7, name=KEY):
    """``rows`` of what ``target`` holds, which is said to have ``of`` rows."""

    def change(file):
        kind, shape = file[name].dtype, file[name].shape
        file.pop(name)
        layout = h5py.VirtualLayout(shape, kind)
        layout[:rows] = h5py.VirtualSource(target, key, (of, *shape[1:]), kind)[:rows]
        file.create_virtual_dataset(name, layout)

    return change


def stored_outside(file):
    file.pop(KEY)
    file.create_dataset(KEY, (7, 2), "u1", external=[("/etc/passwd", 0, 14)])


def chained(file):
    with h5py.File("folder/next.hdf5", "w") as other:
        other["speed"] = h5py.ExternalLink("../away/demos.hdf5", KEY)
    external("next.hdf5", inside="/speed")(file)


def nested(file):
    """Sources that are named whole, not by rows, as h5py's pages have it."""
    file.pop(KEY)
    with h5py.File("folder/next.hdf5", "w") as other:
        for made, key, name, there in (
            (other, "speed", "beside.hdf5", KEY),
            (file, KEY, "next.hdf5", "speed"),
        ):
            layout = h5py.VirtualLayout((7, 2), "f8")
            layout[:] = h5py.VirtualSource(name, there, (7, 2), "f8")
            made.create_virtual_dataset(key, layout)


def linked_source(file):
    chained(file)
    virtual("next.hdf5", key="speed")(file)


def overlapping(file):
    file.pop(KEY)
    layout = h5py.VirtualLayout((7, 2), "f8")
    for rows in (slice(0, 4), slice(1, 4)):  # as many in all as the array has
        layout[rows] = h5py.VirtualSource("beside.hdf5", KEY, (7, 2), "f8")[rows]
    file.create_virtual_dataset(KEY, layout)


def endless(file):
    file.pop(KEY)
    space = h5py.h5s.create_simple((7, 2), (h5py.h5s.UNLIMITED, 2))
    space.select_hyperslab((0, 0), (h5py.h5s.UNLIMITED, 1), (1, 1), (1, 2))
    settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    settings.set_virtual(space, b"beside.hdf5", KEY.encode(), space)
    group, kind = file["data/demo_1/obs"].id, h5py.h5t.IEEE_F64LE
    h5py.h5d.create(group, b"speed", kind, space, dcpl=settings)


def through(make, name):
    def change(file):
        make(f"folder/{name}")
        external(name)(file)

    return change


# Of the file folder/demos.hdf5: folder/beside.hdf5 and away/demos.hdf5 hold the same as it does.
CASES = {
    "a link to a file beside it": (external("beside.hdf5"), "unharmed"),
    "a demonstration that is a link": (
        external("beside.hdf5", "data/demo_1", "/data/demo_1"),
        "unharmed",
    ),
    "an array of a file beside it": (virtual("beside.hdf5"), "unharmed"),
    "a link to another folder": (external("../away/demos.hdf5"), [KEY, "away", "--follow-links"]),
    "a group in another folder": (
        external("../away/demos.hdf5", "data", "/data"),
        ["data leads to", "away", "--follow-links"],
    ),
    "a mask in another folder": (
        external("../away/demos.hdf5", "mask/train", "/mask/train"),
        ["mask/train leads to", "--follow-links"],
    ),
    "a link by way of another file": (chained, ["next.hdf5: speed", "away", "--follow-links"]),
    "a link by way of a symbolic one": (
        through(lambda path: os.symlink("../away/demos.hdf5", path), "symbolic.hdf5"),
        [KEY, "away", "--follow-links"],
    ),
    "a link to a pipe": (through(os.mkfifo, "pipe"), [KEY, "no regular file"]),
    "an array of another folder": (virtual("../away/demos.hdf5"), [KEY, "--follow-links"]),
    "an array of a file that is gone": (virtual("gone.hdf5"), [KEY, "gone.hdf5", "not all"]),
    "an array that is gone there": (virtual("beside.hdf5", key="no"), [KEY, "beside", "not all"]),
    "an array that was longer": (
        virtual("beside.hdf5", key="data/demo_0/obs/speed"),
        [KEY, "beside.hdf5", "not all"],
    ),
    "an array of itself": (virtual("."), [KEY, "virtual array of too many"]),
    "all of an array of a virtual one": (nested, "unharmed"),
    "a virtual array of a link out": (linked_source, [KEY, "away", "--follow-links"]),
    "parts of one array overlap, and leave a hole": (overlapping, [KEY, "names no source"]),
    "an array without a length of its own": (endless, [KEY, "cannot be read"]),
    "an array of parts": (virtual("beside.hdf5", rows=4), [KEY, "names no source"]),
    "a mask of a file that is gone": (
        virtual("gone.hdf5", 2, "mask/train", 2, "mask/train"),
        ["mask/train", "gone.hdf5", "not all"],
    ),
    "bytes of any file": (stored_outside, [KEY, "external storage"]),
}
READERS = {
    "validate": ["validate", "folder/demos.hdf5"],
    "info": ["info", "folder/demos.hdf5"],
    "repack": ["edit", "repack", "folder/demos.hdf5", "--output", "new.hdf5"],
    "split": ["edit", "split", "folder/demos.hdf5", "--output", "new.hdf5"],
    "convert": ["convert", "folder/demos.hdf5", "new.hdf5", "--to", "robomimic"],
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("folder/demos.hdf5", "folder/beside.hdf5", "away/demos.hdf5"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        write_demos(tmp_path / path)
    return tmp_path


def load():
    data = SequenceDataset("folder/demos.hdf5", ["speed"], filter_by_attribute="train")
    return data.values("actions"), data.store.values("obs/speed")


@pytest.mark.parametrize(("change", "expected"), CASES.values(), ids=CASES)
def test_what_lies_elsewhere_is_complete_or_refused(change, expected, place, monkeypatch):
    sound = load()
    with h5py.File("folder/demos.hdf5", "r+") as file:
        change(file)
    if expected != "unharmed":
        with pytest.raises(ValueError) as error:
            load()
        assert str(error.value).startswith("folder/") or str(error.value).startswith(str(place))
        for word in expected:
            assert word in str(error.value)
    if expected == "unharmed" or expected[-1] == "--follow-links":
        monkeypatch.setenv(FOLLOWED, "1")
        for before, after in zip(sound, load(), strict=True):
            np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "case", ["bytes of any file", "an array of a file that is gone", "a link to another folder"]
)
def test_every_command_refuses_it(case, reader, place, capsys):
    change, expected = CASES[case]
    with h5py.File("folder/demos.hdf5", "r+") as file:
        change(file)
    assert main(READERS[reader]) == 1
    said = "".join(capsys.readouterr())
    assert all(word in said for word in expected), said
    assert "Traceback" not in said and not os.path.exists("new.hdf5")


@pytest.mark.parametrize("reader", READERS)
def test_links_are_followed_where_that_is_asked_for(reader, place, capsys):
    with h5py.File("folder/demos.hdf5", "r+") as file:
        external("../away/demos.hdf5")(file)
    assert main([*READERS[reader], "--follow-links"]) == 0
    assert FOLLOWED not in os.environ
    if os.path.exists("new.hdf5"):
        with h5py.File("new.hdf5") as new, h5py.File("away/demos.hdf5") as old:
            np.testing.assert_allclose(new[KEY], old[KEY], rtol=1e-6)


@pytest.mark.parametrize("command", ["convert", "split"])
def test_what_is_virtual_is_copied_as_it_is(command, place):
    with h5py.File("folder/demos.hdf5", "r+") as file:
        nested(file)
    assert main(READERS[command]) == 0
    with h5py.File("new.hdf5") as new, h5py.File("folder/beside.hdf5") as old:
        assert new[KEY].dtype == old[KEY].dtype and not new[KEY].is_virtual
        np.testing.assert_array_equal(new[KEY], old[KEY])


@pytest.mark.parametrize("command", ["validate", "info"])
@pytest.mark.parametrize("case", ["a link to a file beside it", "an array of a file beside it"])
def test_what_has_to_be_copied_along_is_said(command, case, place, capsys):
    with h5py.File("folder/demos.hdf5", "r+") as file:
        CASES[case][0](file)
    assert main([command, "folder/demos.hdf5"]) == 0
    said = [x for x in capsys.readouterr().out.splitlines() if x.startswith("remark")]
    assert any(KEY in line and "beside.hdf5: copy that along" in line for line in said), said
