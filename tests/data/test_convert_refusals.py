"""What cannot be converted: said in a line, and nothing left over."""

import re

import h5py
import numpy as np
import pytest
from conversions import convert, write_source

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")  # of Minari's spaces


@pytest.fixture
def source(tmp_path):
    return write_source(tmp_path / "source.hdf5")


def edited(path, change):
    with h5py.File(path, "a") as file:
        change(file)
    return path


@pytest.mark.parametrize(
    ("change", "to", "options", "words"),
    [
        (None, "d4rl", (), "one vector of observations; choose .* --obs; it has agentview_image"),
        (
            None,
            "d4rl",
            ("--obs", "agentview_image"),
            "agentview_image .*D4RL's layout has no place",
        ),
        (None, "lerobot", ("--obs", "sped"), "no observation sped .*it has .*speed"),
        (lambda f: f.pop("data/demo_0/rewards"), "minari", (), "demo_0 has no rewards"),
        (
            lambda f: f["data"].attrs.pop("env_args"),
            "lerobot",
            (),
            "how many steps a second.*--fps",
        ),
        (lambda f: f.pop("data/demo_3/obs/speed"), "lerobot", (), "demo_3/obs/speed is missing"),
        (lambda f: f.pop("data/demo_3/obs/speed"), "robomimic", (), "demo_3/obs/speed is missing"),
        (
            lambda f: f["data/demo_4/obs/speed"].__setitem__((1, 0), np.nan),
            "minari",
            (),
            "demo_4/obs/speed holds NaN or infinity at step 1",
        ),
        (
            lambda f: (f.pop("data/demo_2/actions"), f["data/demo_2"].update({"actions": [1.0]})),
            *("d4rl", ("--obs", "speed"), r"demo_2/actions is float64 \[1\]"),
        ),
        (
            lambda f: f["mask"].create_dataset("odd", data=np.array(["demo_77"], dtype="S")),
            *("lerobot", (), "mask/odd names missing demos: demo_77"),
        ),
    ],
)
def test_what_cannot_be_converted_is_said_in_a_line(
    change, to, options, words, source, tmp_path, capsys
):
    if change:
        edited(source, change)
    before = source.read_bytes()
    assert convert(source, tmp_path / "out-v0", to, *options, "--workers", "1") == 1
    assert_one_line(capsys, words)
    assert [path.name for path in tmp_path.iterdir()] == [source.name]
    assert source.read_bytes() == before


def assert_one_line(capsys, words):
    said = capsys.readouterr().err.splitlines()
    errors = [line for line in said if line.startswith("offrl: error: ")]
    assert len(errors) == 1 and re.search(words, errors[0]), said
    assert not any("Traceback" in line for line in said)


@pytest.mark.parametrize("to", ["robomimic", "d4rl", "minari", "lerobot", "lerobot-v2.1"])
def test_an_existing_output_stays(to, source, tmp_path, capsys):
    (tmp_path / "mine-v0").mkdir()
    (tmp_path / "mine-v0/work").write_text("of years")
    options = ["--obs", "speed"] if to == "d4rl" else []
    assert convert(source, tmp_path / "mine-v0", to, *options) == 1
    assert_one_line(capsys, "exists; choose another name")
    assert [path.name for path in tmp_path.rglob("*")] == ["mine-v0", "source.hdf5", "work"]


def cut(path, share=0.5):
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: cut(f / "data/chunk-000/file-000.parquet"), "file-000.parquet.*cannot be read"),
        (lambda f: cut(f / "videos/observation.images.agentview/chunk-000/file-000.mp4"), ".mp4"),
        (
            lambda f: (f / "videos/observation.images.agentview/chunk-000/file-000.mp4").unlink(),
            "file-000.mp4.*cannot be read",
        ),
        (lambda f: cut(f / "meta/info.json"), "info.json cannot be read"),
        (lambda f: cut(f / "meta/offrl.json"), "what offrl noted .* cannot be read"),
        (lambda f: cut(f / "meta/tasks.parquet"), "tasks.parquet cannot be read"),
        (lambda f: cut(f / "meta/episodes/chunk-000/file-000.parquet"), "meta/episodes cannot"),
        (
            lambda f: (f / "meta/info.json").write_text(
                (f / "meta/info.json").read_text().replace("v3.0", "v1.6")
            ),
            "is of LeRobot's layout v1.6, but offrl reads v2.0, v2.1, v3.0; bring it to one",
        ),
    ],
)
def test_a_damaged_lerobot_folder_says_where(damage, words, source, tmp_path, capsys):
    folder = tmp_path / "lift"
    assert convert(source, folder, "lerobot", "--workers", "1") == 0
    damage(folder)
    assert convert(folder, tmp_path / "out.hdf5", "robomimic", "--workers", "1") == 1
    assert_one_line(capsys, words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lift", "source.hdf5"]


@pytest.mark.parametrize("to", ["robomimic", "d4rl"])
def test_other_things_are_refused(to, tmp_path, capsys):
    (tmp_path / "text.hdf5").write_text("no HDF5")
    (tmp_path / "folder").mkdir()
    for name, words in (
        ("text.hdf5", "not a readable HDF5 file"),
        ("folder", "neither of a run"),
        ("nothing.hdf5", "no such file"),
    ):
        assert convert(tmp_path / name, tmp_path / "out", to) == 1
        assert_one_line(capsys, words)
    assert not (tmp_path / "out").exists()
