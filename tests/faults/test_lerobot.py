"""Folders in LeRobot's layout that are damaged, or made to read what is not theirs."""

import json
import os
import shutil
from fractions import Fraction

import numpy as np
import pytest
from conversions import write_source

from offrl.__main__ import main
from offrl.data.formats.files import open_episodes

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

INFO, DATA = "meta/info.json", "data/chunk-000/file-000.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
FILM = "videos/observation.images.agentview/chunk-000/file-000.mp4"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder that is right, and the trajectories in it."""
    place = tmp_path_factory.mktemp("whole")
    source = write_source(place / "source.hdf5")
    words = ["convert", str(source), str(place / "lift"), "--to", "lerobot", "--workers", "1"]
    assert main(words) == 0
    return place / "lift"


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "lift")


def read(folder):
    with open_episodes(folder) as episodes:
        return {demo: episodes.trajectory(demo) for demo in episodes.demos()}


def stated(**changes):
    """Change what ``info.json`` states; ``None`` leaves it out."""

    def change(folder):
        info = json.loads((folder / INFO).read_text()) | changes
        info = {key: value for key, value in info.items() if value is not None}
        (folder / INFO).write_text(json.dumps(info))

    return change


def noted(**changes):
    def change(folder):
        notes = json.loads((folder / "meta/offrl.json").read_text()) | changes
        (folder / "meta/offrl.json").write_text(json.dumps(notes))

    return change


def rows(change, name=DATA):
    def changed(folder):
        table = change(parquet.read_table(folder / name))
        parquet.write_table(table, folder / name)

    return changed


def without(row):
    return lambda table: pyarrow.concat_tables([table.slice(0, row), table.slice(row + 1)])


def column(name, change):
    """Change the values of a column: a list, of a value for each row."""

    def changed(table):
        values = table[name].to_pylist()
        change(values)
        kind = table[name].type
        if pyarrow.types.is_fixed_size_list(kind):
            kind = pyarrow.list_(kind.value_type)
        at = table.column_names.index(name)
        return table.set_column(at, name, pyarrow.array(values, kind))

    return changed


def longer_then_shorter(values):
    """Two lists of wrong lengths, which together have as many values as before."""
    values[1] = values[1] + values[2][:1]
    values[2] = values[2][1:]


def link(name, target):
    def change(folder):
        there = folder.parent / "elsewhere"
        shutil.copytree(folder, there)
        (folder / name).unlink()
        (folder / name).symlink_to(target.format(there=there))

    return change


def pipe(name):
    def change(folder):
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


FAULTS = {
    "a step is missing": (rows(without(3)), "frame_index"),
    "a step is there twice": (
        rows(lambda table: pyarrow.concat_tables([table.slice(0, 4), table.slice(3)])),
        "frame_index",
    ),
    "two steps have one number": (
        rows(column("frame_index", lambda values: values.__setitem__(1, 2))),
        "frame_index",
    ),
    "a step has no number": (
        rows(column("frame_index", lambda values: values.__setitem__(1, None))),
        "frame_index",
    ),
    "steps are not numbered": (rows(lambda table: table.drop(["frame_index"])), "frame_index"),
    "an episode is missing": (rows(without(2), EPISODES), "total_episodes"),
    "an episode is there twice": (
        rows(
            lambda table: pyarrow.concat_tables([table.slice(0, 3), table.slice(2)]),
            EPISODES,
        ),
        "12 episodes",
    ),
    "lists are too long and too short": (
        rows(column("action", longer_then_shorter)),
        "action has lists of",
    ),
    "a list is missing": (rows(column("action", lambda v: v.__setitem__(2, None))), "action"),
    "a number is missing": (
        rows(column("next.reward", lambda values: values.__setitem__(2, None))),
        "next.reward has",
    ),
    "a value in a list is missing": (
        rows(column("action", lambda values: values[2].__setitem__(1, None))),
        "action has",
    ),
    "all lists are longer than is said": (
        rows(column("action", lambda values: [value.append(0.0) for value in values])),
        "action has",
    ),
    "no data_path": (stated(data_path=None), "data_path"),
    "a number for data_path": (stated(data_path=3), "data_path"),
    "a list for video_path": (stated(video_path=["a"]), "video_path"),
    "an unknown version": (stated(codebase_version="v4.0"), "v4.0"),
    "a number for the version": (stated(codebase_version=3), "layout 3"),
    "no version": (stated(codebase_version=None), "codebase_version"),
    "an earlier version": (stated(codebase_version="v1.6"), "v1.6, but offrl reads v2.0, v2.1"),
    "another version's paths": (stated(codebase_version="v2.1"), "episode_chunk"),
    "no features": (stated(features=None), "features"),
    "features in a list": (stated(features=[1]), INFO),
    "a word for fps": (stated(fps="fast"), "fast"),
    "info.json is a list": (lambda f: (f / INFO).write_text("[]"), INFO),
    "padding": (stated(data_path="data/{chunk_index:03000000000d}.parquet"), "data_path"),
    "a field's attribute": (stated(data_path="{chunk_index.__class__}"), "data_path"),
    "an unknown field": (stated(data_path="data/{password}.parquet"), "data_path"),
    "a path above": (
        stated(data_path="../../elsewhere/{chunk_index:03d}.parquet"),
        "follow-links",
    ),
    "an absolute path": (stated(video_path="/etc/{video_key}"), "follow-links"),
    "no character of a path": (stated(data_path="data/\0{chunk_index}"), "data_path"),
    "a path too long for any system": (stated(data_path="a" * 5000), "cannot be read"),
    "a file without a number": (
        rows(column("data/chunk_index", lambda v: v.__setitem__(0, None)), EPISODES),
        "data_path of episode 0",
    ),
    "a film of an episode that ends early": (
        rows(
            column(
                "videos/observation.images.agentview/to_timestamp",
                lambda values: values.__setitem__(3, values[3] - 0.1),
            ),
            EPISODES,
        ),
        "of a film, and ends 0.1 s later, before the episode's 4 steps",
    ),
    "a film that begins nowhere": (
        rows(
            column(
                "videos/observation.images.agentview/from_timestamp",
                lambda values: values.__setitem__(3, float("nan")),
            ),
            EPISODES,
        ),
        "begins at nan s",
    ),
    "filter keys in a list": (noted(masks=["demo_0"]), "what offrl noted"),
    "a filter key of a number": (noted(masks={"train": 5}), "what offrl noted"),
    "a list for an environment": (noted(env_args=["Lift"]), "env_args is no JSON object"),
    "a list for an environment's name": (noted(env_args={"env_name": ["Lift"]}), "env_name"),
    "a link out": (link(DATA, "{there}/" + DATA), "follow-links"),
    "a link out for a film": (link(FILM, "{there}/" + FILM), "follow-links"),
    "a link out for info.json": (link(INFO, "{there}/" + INFO), "follow-links"),
    "a pipe": (pipe(DATA), "no regular file"),
    "a pipe for a film": (pipe(FILM), "no regular file"),
    "a pipe for a table": (pipe(EPISODES), "no regular file"),
}


def resized(folder):
    info = json.loads((folder / INFO).read_text())
    info["features"]["observation.images.agentview"]["shape"] = [40, 48, 3]
    (folder / INFO).write_text(json.dumps(info))


def film_of(times):
    """The film anew, with frames at these times (in steps)."""

    def change(folder):
        av = pytest.importorskip("av")
        with av.open(str(folder / FILM), "w", format="mp4") as clip:
            stream = clip.add_stream("libx264", rate=20, options={"g": "2", "bf": "0"})
            stream.height = stream.width = 48
            stream.pix_fmt = "yuv420p"
            for time in times:
                frame = av.VideoFrame.from_ndarray(np.full((48, 48, 3), time, np.uint8))
                frame.pts, frame.time_base = time, Fraction(1, 20)
                clip.mux(stream.encode(frame))
            clip.mux(stream.encode())

    return change


FAULTS |= {
    "images of another size": (resized, "pixels"),
    "a frame is missing": (film_of([t for t in range(66) if t != 30]), "no frame of step"),
    "frames are missing at the end": (film_of(range(40)), "frames there"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(fault, folder):
    change, words = FAULTS[fault]
    change(folder)
    with pytest.raises(ValueError, match=f"(?s)^{folder}.*{words}"):
        read(folder)


@pytest.mark.parametrize("name", [DATA, FILM, INFO])
def test_links_are_followed_on_request(name, whole, folder, tmp_path):
    link(name, "{there}/" + name)(folder)
    words = ["convert", str(folder), str(tmp_path / "back.hdf5"), "--to", "robomimic"]
    assert main([*words, "--workers", "1"]) == 1
    assert main([*words, "--workers", "1", "--follow-links"]) == 0
    assert "OFFRL_FOLLOW_LINKS" not in os.environ
    same(read(whole), read(tmp_path / "back.hdf5"))


def same(one, other):
    for demo in one:
        for key, value in one[demo].items():
            np.testing.assert_array_equal(value, other[demo][key])


@pytest.mark.parametrize(
    "order", [np.s_[::-1], np.random.default_rng(0).permutation(66)], ids=["reversed", "shuffled"]
)
def test_steps_have_the_order_of_their_numbers(order, whole, folder):
    rows(lambda table: table.take(np.arange(66)[order]))(folder)
    rows(lambda table: table.take(np.arange(12)[::-1]), EPISODES)(folder)
    same(read(whole), read(folder))


def test_a_hub_keeps_files_as_links(whole, tmp_path):
    """``snapshots/COMMIT/FILE`` is a link to ``blobs/SUM``."""
    folder = shutil.copytree(whole, tmp_path / "datasets--me--lift/snapshots/f00")
    blobs = tmp_path / "datasets--me--lift/blobs"
    blobs.mkdir()
    for i, path in enumerate([p for p in folder.rglob("*") if p.is_file()]):
        path.rename(blobs / f"{i}")
        path.symlink_to(os.path.relpath(blobs / f"{i}", path.parent))
    same(read(whole), read(folder))
    blobs.rename(tmp_path / "datasets--me--lift/others")
    with pytest.raises(ValueError, match=INFO):
        read(folder)


def test_filter_keys_of_unknown_demonstrations_are_not_converted(folder, tmp_path, capsys):
    noted(masks={"train": ["demo_99"]})(folder)
    words = ["convert", str(folder), str(tmp_path / "new.hdf5"), "--to", "robomimic"]
    assert main([*words, "--workers", "1"]) == 1
    said = capsys.readouterr().err
    assert str(folder) in said and "demo_99" in said and "Traceback" not in said
