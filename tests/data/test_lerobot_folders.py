"""Folders of LeRobot, which are trained on as they are."""

import json
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import train_completely
from hypothesis import given, settings
from hypothesis import strategies as st
from lerobot_folders import CAMERA, LENGTHS, TASKS, VERSIONS, make_episodes, parquet, write_folder
from read_with_lerobot import read_theirs

from offrl import Trainer
from offrl.__main__ import main
from offrl.data.formats.files import open_demos
from offrl.data.formats.hdf5 import DemoFile
from offrl.data.sequence import SequenceDataset

KINDS = ["video", "image"]
FRONT = "obs/front_image"


def close(images, others):
    """Equal but for what a film costs."""
    return np.abs(images.astype(float) - others).mean() < 6


def same_batch(one, other):
    for key, value in one.items():
        if isinstance(value, dict):
            same_batch(value, other[key])
        elif value is not None:
            assert torch.equal(value, other[key]), key


def state(folder, **changes):
    path = folder / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_all_that_is_there_is_read(version, kind, tmp_path):
    turned = version == "v2.1"
    written = write_folder(tmp_path / "set", version, kind, channels_first=turned)
    with open_demos(tmp_path / "set") as file:
        demos = file.demos()
        assert demos == ["demo_0", "demo_1", "demo_2"]
        assert set(file.keys("demo_0")) == {"actions", "obs/state", FRONT}
        assert file.lengths(demos).tolist() == [*LENGTHS]
        for demo, episode in zip(demos, written, strict=True):
            found = file.trajectory(demo)
            assert found["task"] == episode["task"] and found["fps"] == 20
            np.testing.assert_array_equal(found["actions"], episode["action"])
            np.testing.assert_array_equal(found["obs/state"], episode["observation.state"])
            assert found[FRONT].dtype == np.uint8 and found[FRONT].shape[1:] == (48, 48, 3)
            if kind == "image":
                np.testing.assert_array_equal(found[FRONT], episode[CAMERA])
            assert close(found[FRONT], episode[CAMERA])
            for start, stop in ((0, 1), (3, 5), (len(episode[CAMERA]) - 1, len(episode[CAMERA]))):
                rows = file.array(demo, FRONT).rows(start, stop)
                np.testing.assert_array_equal(rows, found[FRONT][start:stop])


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    version=st.sampled_from(VERSIONS),
    group=st.integers(1, 12),
    part_bytes=st.integers(1, 2000),
    kept=st.integers(1, 2000),
    shuffled=st.booleans(),
    data=st.data(),
)
def test_tables_are_read_in_any_parts(lengths, version, group, part_bytes, kept, shuffled, data):
    """Whatever their row groups, and the order of their rows."""
    episodes = make_episodes(lengths, size=16)
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        folder = Path(place, "set")
        write_folder(folder, version, "image", episodes=episodes)
        for path in folder.glob("data/*/*.parquet"):
            table = parquet.read_table(path)
            if shuffled:
                table = table.take(np.random.default_rng(0).permutation(len(table)))
            parquet.write_table(table, path, row_group_size=group)
        for name, value in (("PART_BYTES", part_bytes), ("STEPS_BYTES", kept), ("OPEN_FILES", 1)):
            patch.setattr(f"offrl.data.formats.lerobot_steps.{name}", value)
        with open_demos(folder) as file:
            order = data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=12))
            for k in [*order, *range(len(lengths))]:
                begin = data.draw(st.integers(0, lengths[k] - 1))
                for key, name in ((FRONT, CAMERA), ("actions", "action")):
                    rows = file.array(f"demo_{k}", key).rows(begin, lengths[k])
                    np.testing.assert_array_equal(rows, episodes[k][name][begin:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_batches_have_the_same_bits_wherever_the_data_is(version, kind, tmp_path):
    write_folder(tmp_path / "set", version, kind)
    options = {"seq_length": 4, "frame_stack": 2, "load_next_obs": False}

    def batch(mode, **more):
        data = SequenceDataset(
            tmp_path / "set", ["state", "front_image"], hdf5_cache_mode=mode, **options, **more
        )
        return data.get_batch(torch.arange(len(data)))

    expected = batch("all")
    assert expected["obs"]["front_image"].shape == (sum(LENGTHS), 5, 48, 48, 3)
    assert expected["rewards"].abs().sum() == 0 and expected["dones"].abs().sum() == 0
    for mode, more in (("low_dim", {}), (None, {}), ("auto", {"cache_gb": 1e-4})):
        same_batch(expected, batch(mode, **more))
    same_batch(expected, batch("low_dim", cache_dir=str(tmp_path / "cache")))


@pytest.mark.parametrize("fps", [10, 15, 30, 50])
def test_frames_are_found_at_any_rate(fps, tmp_path):
    """Of images for each step, by which its number is told."""
    steps = np.arange(80, dtype=np.uint8)
    images = np.broadcast_to(3 * steps[:, None, None, None], (80, 32, 32, 3))
    vectors = np.zeros((80, 1), np.float32)
    episode = {"observation.state": vectors, "action": vectors, CAMERA: images, "task": TASKS[0]}
    write_folder(tmp_path / "set", "v3.0", fps=fps, episodes=[episode] * 3)
    with open_demos(tmp_path / "set") as file:
        for demo in file.demos():
            film = file.array(demo, FRONT)
            found = np.concatenate([film.rows(t, t + 1) for t in steps])
            assert np.round(found.mean((1, 2, 3)) / 3).tolist() == steps.tolist()
            np.testing.assert_array_equal(film[:], found)  # which threads decode


def test_splits_and_ranges_of_episodes_are_filter_keys(tmp_path):
    write_folder(tmp_path / "set")
    state(tmp_path / "set", splits={"train": "0:2", "test": "2:3"})
    with open_demos(tmp_path / "set") as file:
        assert file.masks() == {"train": ["demo_0", "demo_1"], "test": ["demo_2"]}
        assert file.demos("test") == file.demos("2:") == file.demos("2:3") == ["demo_2"]
        assert file.demos("train", 1) == file.demos(":1") == ["demo_0"]
        for wrong, words in (
            ("valid", "it has train, test"),
            ("1:9", "are 0 to 2"),
            ("2:2", "2:2"),
            ("0:0", "0:0"),
        ):
            with pytest.raises(ValueError, match=f"set: .*{words}"):
                file.demos(wrong)
    state(tmp_path / "set", splits={"train": "0:3"})
    with open_demos(tmp_path / "set") as file:  # all episodes: it chooses nothing
        assert file.masks() == {} and file.demos("train") == file.demos()
    state(tmp_path / "set", splits={"train": "all"})
    with open_demos(tmp_path / "set") as file, pytest.raises(ValueError, match="the split train"):
        file.masks()


def test_tasks_are_instructions(tmp_path):
    write_folder(tmp_path / "one", "v3.0")
    write_folder(tmp_path / "two", "v2.0")
    instructions = {task: np.full(4, i, np.float32) for i, task in enumerate(TASKS)}
    paths = [tmp_path / "one", tmp_path / "two"]
    constants = [{}, {"lang_emb": np.full(4, 7, np.float32)}]
    options = {"instructions": instructions, "constants": constants, "load_next_obs": False}
    data = SequenceDataset(paths, ["state", "lang_emb"], **options)
    batch = data.get_batch(torch.arange(len(data)))
    expected = np.repeat([0, 1, 0, 7], [*LENGTHS, sum(LENGTHS)])
    assert batch["obs"]["lang_emb"][:, 0, 0].tolist() == expected.tolist()
    assert batch["obs"]["lang_emb"].shape == (2 * sum(LENGTHS), 1, 4)
    path = tmp_path / "one/data/chunk-000/file-001.parquet"  # of the third episode
    table = parquet.read_table(path)
    at = table.column_names.index("task_index")
    parquet.write_table(table.set_column(at, "task_index", [np.arange(LENGTHS[2]) % 2]), path)
    batch = SequenceDataset(tmp_path / "one", ["lang_emb"], **options | {"constants": None})
    found = batch.get_batch(torch.arange(sum(LENGTHS)))["obs"]["lang_emb"][-LENGTHS[2] :, 0, 0]
    assert found.tolist() == (np.arange(LENGTHS[2]) % 2).tolist()  # one for each step
    with pytest.raises(ValueError, match="one: the task_index 1 is 'close it', which has no emb"):
        SequenceDataset(paths, ["lang_emb"], instructions={TASKS[0]: np.zeros(4)})


def test_a_policy_is_trained_on_a_folder_and_its_tasks(small_config, tmp_path, monkeypatch):
    write_folder(tmp_path / "set", "v2.1")
    told = []

    def embed(sentences):
        told.extend(sentences)
        return {s: np.full(5, len(s), np.float32) for s in sentences}

    monkeypatch.setattr("offrl.data.datasets.embed", embed)
    config = small_config(
        {
            "train": {"data": [{"path": str(tmp_path / "set")}], "hdf5_filter_key": "0:2"},
            "observation": {"modalities": {"obs": {"low_dim": ["state", "lang_emb"]}}},
        }
    )
    trainer = Trainer(config)
    train_completely(trainer)
    assert sorted(told) == sorted(TASKS) == sorted(trainer.instructions)
    assert len(trainer.dataset) == sum(LENGTHS[:2])


GOLDEN = Path(__file__).parents[1] / "golden/lerobot"


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_what_lerobot_wrote_is_read(version):
    """Films in AV1, and images in tables; ``tests/read_with_lerobot.py`` wrote them."""
    read_theirs(GOLDEN / version)


def test_the_layout_2_0_has_its_statistics_elsewhere(tmp_path):
    folder = shutil.copytree(GOLDEN / "v2.1", tmp_path / "set")
    (folder / "meta/episodes_stats.jsonl").unlink()
    (folder / "meta/stats.json").write_text("{}")
    state(folder, codebase_version="v2.0")
    read_theirs(folder)


HUB = {
    "names in a dict": {"observation.state": {"names": {"motors": ["x", "y", "z"]}}},
    "no names": {"observation.state": {"names": None}, "action": {"names": None}},
    "channels first": {CAMERA: {"shape": [3, 48, 48], "names": ["channels", "height", "width"]}},
    "a channel": {CAMERA: {"names": ["height", "width", "channel"]}},
    "images without names": {CAMERA: {"names": None}},
    "channels first without names": {CAMERA: {"shape": [3, 48, 48], "names": None}},
    "facts of a film": {CAMERA: {"video_info": {"video.fps": 20.0, "video.codec": "av1"}}},
    "text": {"language_instruction": {"dtype": "string", "shape": [1], "names": None}},
    "depth": {"observation.images.depth": {"dtype": "image", "shape": [48, 48, 1]}},
}


@pytest.mark.parametrize("said", HUB)
def test_features_are_described_in_many_ways(said, tmp_path):
    episodes = write_folder(tmp_path / "set")
    features = json.loads((tmp_path / "set/meta/info.json").read_text())["features"]
    for name, changes in HUB[said].items():
        features[name] = features.get(name, {}) | changes
    state(tmp_path / "set", features=features)
    with open_demos(tmp_path / "set") as file:
        assert set(file.keys("demo_0")) == {"actions", "obs/state", FRONT}
        known = {"observation.state", "action", CAMERA}
        assert file.unread() == [name for name in HUB[said] if name not in known]
        assert close(file.array("demo_1", FRONT)[:], episodes[1][CAMERA])


@pytest.mark.parametrize(
    ("words", "num_demos", "change"),
    [
        ("split --valid 0.4", 3, {}),
        ("filter --max-length 10", 2, {}),
        ("rename --drop obs/front_image", 3, {FRONT: None}),
        ("repack --compression png", 3, {}),
        ("subset --n 2", 2, {}),
    ],
)
def test_an_edit_of_a_folder_is_a_file(words, num_demos, change, tmp_path):
    episodes = write_folder(tmp_path / "set", kind="image")
    what, *options = words.split()
    output = tmp_path / "out.hdf5"
    assert main(["edit", what, str(tmp_path / "set"), *options, "--output", str(output)]) == 0
    with DemoFile(output) as file:
        assert len(file.demos()) == num_demos
        for demo in file.demos():
            found = file.trajectory(demo)
            episode = episodes[int(found["source"].rpartition("_")[2])]
            expected = {
                "actions": episode["action"],
                "obs/state": episode["observation.state"],
                FRONT: episode[CAMERA],
            } | change
            for key, array in expected.items():
                if array is None:
                    assert key not in found
                else:
                    np.testing.assert_array_equal(found[key], array)
            assert found["task"] == episode["task"] and found["fps"] == 20


@pytest.mark.parametrize("command", ["info", "validate"])
def test_commands_read_a_folder(command, tmp_path, capsys):
    write_folder(tmp_path / "set", "v2.0")
    assert main([command, str(tmp_path / "set")]) == 0
    assert re.search(r"28 steps|steps: +28", capsys.readouterr().out)
