"""Folders in LeRobot's layout 2.1 that are damaged or contradict themselves: one line, at once."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from lerobot_folders import CAMERA, LENGTHS, parquet, pyarrow, write_folder

from offrl.__main__ import main
from offrl.data.formats.film import encode_film
from offrl.data.sequence import SequenceDataset

INFO, EPISODES, TASKS = "meta/info.json", "meta/episodes.jsonl", "meta/tasks.jsonl"
DATA = "data/chunk-000/episode_000001.parquet"
FILM = f"videos/chunk-000/{CAMERA}/episode_000001.mp4"
KEYS = ["state", "front_image"]


@pytest.fixture(scope="module")
def wholes(tmp_path_factory):
    place = tmp_path_factory.mktemp("whole")
    for kind in ("video", "image"):
        write_folder(place / kind, "v2.1", kind)
    return place


def stated(**changes):
    def change(folder):
        info = json.loads((folder / INFO).read_text()) | changes
        (folder / INFO).write_text(json.dumps(info))

    return change


def featured(name, **changes):
    """Change what is said of a feature; without changes, leave it out."""

    def change(folder):
        info = json.loads((folder / INFO).read_text())
        info["features"][name] |= changes
        if not changes:
            del info["features"][name]
        (folder / INFO).write_text(json.dumps(info))

    return change


def listed(number, **changes):
    """Change the row of an episode in the list of them."""

    def change(folder):
        rows = [json.loads(line) for line in (folder / EPISODES).read_text().splitlines()]
        rows[number] |= changes
        (folder / EPISODES).write_text("\n".join(map(json.dumps, rows)))

    return change


def table(change):
    def changed(folder):
        parquet.write_table(change(parquet.read_table(folder / DATA)), folder / DATA)

    return changed


def column(name, values):
    def change(rows):
        at = rows.column_names.index(name)
        return rows.set_column(at, name, pyarrow.array(values(rows[name].to_pylist())))

    return table(change)


def cut(name, share=0.6):
    def change(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(share * len(content))])

    return change


def without(name):
    return lambda folder: (folder / name).unlink()


def filmed(num_frames, fps=20, size=48):
    def change(folder):
        images = np.zeros((num_frames, size, size, 3), np.uint8)
        (folder / FILM).write_bytes(encode_film(images, fps))

    return change


def elsewhere(name):
    def change(folder):
        shutil.copy(folder / name, folder.parent / "other")
        (folder / name).unlink()
        (folder / name).symlink_to(folder.parent / "other")

    return change


def broken_image(folder):
    cells = parquet.read_table(folder / DATA)[CAMERA].to_pylist()
    cells[4]["bytes"] = cells[4]["bytes"][:60]
    column(CAMERA, lambda _: cells)(folder)


def no_image(folder):
    column(CAMERA, lambda cells: [*cells[:-1], {"bytes": None, "path": None}])(folder)


def image_elsewhere(folder):
    (folder.parent / "mine.png").write_bytes(b"secret")
    outside = {"bytes": None, "path": "../mine.png"}
    column(CAMERA, lambda cells: [outside, *cells[1:]])(folder)


FAULTS = {
    "no column of a feature": (table(lambda t: t.drop(["action"])), "has no action, which meta/"),
    "no feature of the actions": (featured("action"), "demo_0 has no 'actions'; it has obs/"),
    "no feature of the camera": (
        featured(CAMERA),
        "no 'obs/front_image'; it has obs/state; a",
    ),
    "a step is missing": (table(lambda t: t.slice(0, 5)), "its 5 steps are not numbered 0 to 11"),
    "an episode is longer than it is said": (listed(1, length=13), "its 12 steps"),
    "an episode is shorter than it is said": (listed(1, length=3), "its 12 steps"),
    "an episode of absurd length": (listed(1, length=10**15), "its 12 steps"),
    "a negative length": (listed(1, length=-2), "length is -2"),
    "a length in words": (listed(1, length="many"), "length is 'many'"),
    "no steps": (listed(1, length=0), "its 12 steps|has no steps"),
    "two episodes of one index": (listed(1, episode_index=0), "3 rows of 2 episodes"),
    "steps of another episode": (column("episode_index", lambda x: [7] * len(x)), "its 0 steps"),
    "a film that is shorter": (filmed(9), "it has 9 frames there, but the episode 12"),
    "a film of another rate": (filmed(12, 10), "10 frames a second, but the steps' fps is 20"),
    "a film of another size": (filmed(12, size=32), r"of \[32, 32\] pixels"),
    "another fps": (stated(fps=30), r"the timestamp of step \d+ is .* s, but fps in .* is 30"),
    "fps of zero": (stated(fps=0), "fps is 0"),
    "fps of infinity": (stated(fps=float("inf")), "fps is inf"),
    "a cut table": (cut(DATA), "episode_000001.parquet"),
    "a cut film": (cut(FILM), "episode_000001.mp4"),
    "a cut info.json": (cut(INFO), "info.json cannot be read"),
    "a cut list": (cut(EPISODES), "episodes.jsonl cannot be read"),
    "a cut list of tasks": (cut(TASKS), "tasks.jsonl cannot be read"),
    "no table": (without(DATA), "episode_000001.parquet"),
    "no film": (without(FILM), "episode_000001.mp4"),
    "no list": (without(EPISODES), "episodes.jsonl has 0 rows"),
    "a link out of the folder": (elsewhere(DATA), "outside of .*--follow-links"),
    "a film elsewhere": (elsewhere(FILM), "outside of .*--follow-links"),
    "a path out of the folder": (
        stated(data_path="../{episode_chunk}/{episode_index}.parquet"),
        "outside of .*--follow-links",
    ),
    "images of absurd size": (featured(CAMERA, shape=[10**7, 10**7, 3]), "pixels|memory"),
    "an absurd vector": (featured("action", shape=[10**12]), "action has 14 values"),
    "no shape": (featured("action", shape=None), "features in meta/info.json"),
    "no type": (featured("action", dtype=None), "features in meta/info.json|info.json cannot"),
}
OF_IMAGES = {
    "an image that is cut": (broken_image, "images observation.images.front cannot be read"),
    "no image": (no_image, "row 11 has no image"),
    "an image elsewhere": (image_elsewhere, "outside of .*--follow-links"),
    "no column of images": (table(lambda t: t.drop([CAMERA])), "has no observation.images.front"),
    "images of another size": (featured(CAMERA, shape=[40, 48, 3]), r"of \[48, 48\] pixels"),
}
CASES = [("video", name) for name in FAULTS] + [("image", name) for name in OF_IMAGES]


@pytest.mark.parametrize(("kind", "fault"), CASES)
def test_a_fault_is_a_line_before_the_training(kind, fault, wholes, tmp_path):
    folder = shutil.copytree(wholes / kind, tmp_path / "set")
    change, words = (FAULTS | OF_IMAGES)[fault]
    change(folder)
    for mode in ("all", "low_dim"):
        with pytest.raises(ValueError, match=f"^{folder}.*{words}") as raised:
            data = SequenceDataset(folder, KEYS, hdf5_cache_mode=mode)
            data.get_batch(torch.arange(len(data)))
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("command", ["info", "convert", "view", "validate"])
@pytest.mark.parametrize("fault", ["a film that is shorter", "another fps", "a cut list"])
def test_commands_say_it_in_a_line(command, fault, wholes, tmp_path, capsys):
    folder = shutil.copytree(wholes / "video", tmp_path / "set")
    FAULTS[fault][0](folder)
    out = {"convert": [str(tmp_path / "out.hdf5"), "--to", "robomimic", "--workers", "1"]}
    words = [command, str(folder), *out.get(command, [])]
    assert main([*words, *(["--output", str(tmp_path / "out")] if command == "view" else [])]) == 1
    said = capsys.readouterr()
    assert "Traceback" not in said.err and str(folder) in said.err + said.out
    assert sorted(os.listdir(tmp_path)) == ["set"]


def test_images_in_files_of_their_own_are_read(wholes, tmp_path):
    folder = shutil.copytree(wholes / "image", tmp_path / "set")
    expected = SequenceDataset(folder, KEYS).get_batch(torch.arange(5))
    cells = parquet.read_table(folder / DATA)[CAMERA].to_pylist()
    (folder / "images").mkdir()
    for i, cell in enumerate(cells):
        (folder / f"images/{i}.png").write_bytes(cell["bytes"])
    named = [{"bytes": None, "path": f"images/{i}.png"} for i in range(len(cells))]
    column(CAMERA, lambda _: named)(folder)
    found = SequenceDataset(folder, KEYS).get_batch(torch.arange(5))
    assert torch.equal(found["obs"]["front_image"], expected["obs"]["front_image"])


def test_the_same_folders_without_faults_are_read(wholes):
    for kind in ("video", "image"):
        data = SequenceDataset(wholes / kind, KEYS, load_next_obs=False)
        assert len(data) == sum(LENGTHS)
