"""What ``offrl info`` finds in data, in a run and in a checkpoint."""

import json
import signal
import subprocess
import sys

import h5py
import numpy as np
import programs
import pytest
from conftest import ROOT, train_completely, write_demos

from offrl import DemoWriter, Trainer
from offrl.__main__ import main
from offrl.data.info import DataInfo
from offrl.data.provenance import provenance


def facts_of(path, capsys, *options):
    capsys.readouterr()
    status = main(["info", str(path), "--json", *options])
    return status, json.loads(capsys.readouterr().out)


def test_the_shipped_data_is_described(capsys):
    status, facts = facts_of(ROOT / "datasets/lift/low_dim.hdf5", capsys)
    assert status == 0 and facts["demonstrations"] == 200 and facts["steps"] == 6014
    assert facts["lengths"] == {"min": 24, "median": 28, "max": 137}
    assert facts["success"] == {"demonstrations": 200, "rate": 1.0}
    assert facts["filter_keys"] == {"train": 180, "valid": 20} and facts["overlaps"] == {}
    assert facts["environment"]["env_name"] == "Lift" and not facts["wrong"] + facts["remarks"]
    assert (
        facts["keys"]["states"]["shape"] == [32] and facts["keys"]["states"]["dtype"] == "float64"
    )
    with h5py.File(ROOT / "datasets/lift/low_dim.hdf5") as file:
        rows = np.concatenate([demo["obs/object"][()] for demo in file["data"].values()])
    ranges = np.array(facts["keys"]["obs/object"]["ranges"])
    np.testing.assert_array_equal(ranges, np.stack([rows.min(0), rows.max(0)], axis=1))
    assert facts["bytes_on_disk"] == (ROOT / "datasets/lift/low_dim.hdf5").stat().st_size
    assert main(["info", str(ROOT / "datasets/lift/mixed.hdf5")]) == 0
    assert "10.0% of 150" in capsys.readouterr().out


def test_what_is_odd_is_remarked(tmp_path, capsys):
    path = write_demos(tmp_path / "odd.hdf5", lengths=(5, 7, 6, 9))
    with h5py.File(path, "r+") as file:
        for demo in file["data"].values():
            demo["actions"][:, 1] = 0.25
            demo["actions"][2, 0] = 3.5
            demo["obs/speed"][0, 0] = 1e6 if len(demo["actions"]) == 7 else 0
        file.copy("data/demo_0", "data/demo_4")
        del file["mask/valid"]
        file["mask/valid"] = np.array(["demo_0", "demo_2"], dtype="S")
    status, facts = facts_of(path, capsys)
    remarks = "\n".join(facts["remarks"])
    for words in (
        "actions never changes in dimension 1",
        "actions reach 3.5, beyond [-1, 1]",
        "data/demo_1/obs/speed at step 0: 1e+06 in dimension 0",
        "demo_0, demo_4 are the same, but for images",
    ):
        assert words in remarks
    assert status == 0 and facts["overlaps"] == {"train and valid": 2}


@pytest.mark.parametrize(
    ("key", "rows"),
    [
        ("obs/position", np.full((6, 3), np.nan)),
        ("actions", np.full((6, 2), np.inf)),
        ("rewards", np.ones(4)),
        ("obs/position", np.zeros((8, 3))),
    ],
)
def test_what_training_refuses_is_wrong(key, rows, tmp_path, capsys):
    path = write_demos(tmp_path / "wrong.hdf5", lengths=(5, 6))
    with h5py.File(path, "r+") as file:
        del file[f"data/demo_1/{key}"]
        file[f"data/demo_1/{key}"] = rows
    status, facts = facts_of(path, capsys)
    (wrong,) = facts["wrong"]
    assert status == 1 and f"data/demo_1/{key} " in wrong


def test_a_mask_that_names_what_is_not_there_is_wrong(tmp_path, capsys):
    path = write_demos(tmp_path / "wrong.hdf5")
    with h5py.File(path, "r+") as file:
        file["mask/best"] = np.array(["demo_1", "demo_99"], dtype="S")
    assert main(["info", str(path)]) == 1
    assert "wrong: " in (said := capsys.readouterr().out) and "demo_99" in said


@pytest.mark.parametrize(
    ("compression", "storage"), [("png", "png frames"), (None, "checksums"), ("lzf", "lzf, checks")]
)
def test_ranges_of_images_are_of_a_sample_or_of_all(tmp_path, compression, storage):
    path = tmp_path / "images.hdf5"
    with DemoWriter(path, compression=compression, durable=False) as writer:
        for i in range(70):
            images = np.full((4, 8, 8, 3), 100, np.uint8)
            images[0] = i
            writer.write({"actions": np.full((4, 2), i / 70), "obs/camera_image": images})
    sampled, all_of_them = DataInfo(path).facts(), DataInfo(path, reads_all=True).facts()
    key = "obs/camera_image"
    assert (sampled["keys"][key]["min"], sampled["keys"][key]["max"]) == (100, 100)
    assert (all_of_them["keys"][key]["min"], all_of_them["keys"][key]["max"]) == (0, 100)
    assert sampled["keys"][key]["shape"] == [8, 8, 3]
    assert sampled["keys"][key]["storage"].startswith(storage)
    assert sampled["bytes_in_memory"] == 70 * 4 * (8 * 8 * 3 + 2 * 4)


@pytest.mark.parametrize("damaged", [False, True])
def test_images_that_are_none_and_frames_that_are_damaged(tmp_path, damaged):
    path, key = tmp_path / "images.hdf5", "obs/camera_image"
    with DemoWriter(path, compression="png", durable=False) as writer:
        images = np.zeros((4, 8, 8, 3), np.uint8)
        writer.write({"actions": np.zeros((4, 2)), key: images})
    with h5py.File(path, "a") as file:
        demo = file["data/demo_0"]
        demo.attrs["num_samples"] = h5py.Empty("i4")  # says nothing
        demo["obs/none"] = images[:0]
        if damaged:
            del demo[key].attrs["frame_shape"]
    if damaged:
        with pytest.raises(ValueError, match=f"images.hdf5: data/demo_0/{key} .*frame_shape"):
            DataInfo(path)
    else:
        assert DataInfo(path).facts()["keys"][key]["shape"] == [8, 8, 3]


@pytest.mark.parametrize(
    ("trajectory", "expected"),
    [
        ({"rewards": np.array([0.0, 1.0]), "dones": np.zeros(2)}, 1.0),
        ({"rewards": np.array([0.0, 0.0]), "dones": np.ones(2)}, 0.0),
        ({"rewards": np.array([0.2, 0.7]), "dones": np.array([0, 1])}, 1.0),
        ({"rewards": np.array([0.2, 0.7]), "dones": np.ones(2), "success": False}, 0.0),
        ({"rewards": np.ones(2), "dones": np.zeros(2)}, 0.0),  # each step that is survived
        ({}, None),
    ],
)
def test_success_is_what_the_data_says_of_it(tmp_path, trajectory, expected):
    with DemoWriter(tmp_path / "x.hdf5") as writer:
        writer.write({"actions": np.zeros((2, 1)), **trajectory})
    success = DataInfo(tmp_path / "x.hdf5").facts()["success"]
    assert (success and success["rate"]) == expected


def test_gymnasium_s_episodes_end_in_failure_too(tmp_path):
    with DemoWriter(tmp_path / "x.hdf5", {"env_name": "CartPole-v1", "type": 2}) as writer:
        writer.write({"actions": np.zeros(2, int), "rewards": np.ones(2), "dones": np.eye(2)[1]})
    assert DataInfo(tmp_path / "x.hdf5").facts()["success"] is None


def test_how_a_file_came_about_is_told_through_all_of_its_sources(tmp_path, capsys):
    first, second = tmp_path / "first.hdf5", tmp_path / "second.hdf5"
    for path, command, sources in (
        (first, "offrl collect", []),
        (second, "offrl edit", [first]),
    ):
        with DemoWriter(path, provenance=provenance(command, sources)) as writer:
            writer.write({"actions": np.zeros((2, 1))})
    _, facts = facts_of(second, capsys)
    (source,) = facts["provenance"]["inputs"]
    assert facts["provenance"]["command"] == "offrl edit"
    before = facts["provenance"]["history"][source["fingerprint"]]
    assert source["file"] == "first.hdf5" and before["command"] == "offrl collect"


def test_what_others_say_of_where_a_file_is_from_is_shown(tmp_path, capsys):
    path = write_demos(tmp_path / "x.hdf5")
    with h5py.File(path, "r+") as file:
        file["data"].attrs["provenance"] = "recorded by Ada"
    assert facts_of(path, capsys)[1]["provenance"] == {"said": "recorded by Ada"}


def test_a_demonstration_without_steps_is_wrong(tmp_path, capsys):
    path = write_demos(tmp_path / "x.hdf5")
    with h5py.File(path, "r+") as file:
        del file["data/demo_1"]
        file["data/demo_1/actions"] = np.zeros((0, 2))
    assert main(["info", str(path)]) == 1
    assert "data/demo_1 has no steps (actions)" in capsys.readouterr().out


@pytest.mark.parametrize("key", ["actions", "rewards"])
def test_text_in_place_of_numbers_is_wrong(key, tmp_path, capsys):
    path = write_demos(tmp_path / "x.hdf5")
    with h5py.File(path, "r+") as file:
        length = len(file[f"data/demo_1/{key}"])
        del file[f"data/demo_1/{key}"]
        file[f"data/demo_1/{key}"] = np.array(["a"] * length, dtype="S")
    assert main(["info", str(path)]) == 1
    assert f"data/demo_1/{key} holds no numbers" in capsys.readouterr().out


def test_an_observation_that_is_no_number_is_described(tmp_path, capsys):
    path = write_demos(tmp_path / "x.hdf5")
    with h5py.File(path, "r+") as file:
        for demo in file["data"].values():
            demo["obs/pairs"] = np.zeros(len(demo["actions"]), [("a", "f4"), ("b", "i4")])
    assert main(["info", str(path)]) == 0
    assert "obs/pairs" in capsys.readouterr().out


def test_a_run_and_its_checkpoint_are_described(small_config, capsys):
    trainer = Trainer(small_config())
    train_completely(trainer)
    run = trainer.run.path
    trainer.run.unlock()
    status, facts = facts_of(run, capsys)
    assert status == 0 and facts["algorithm"] == "bc" and facts["epochs"] == {"done": 3, "of": 3}
    assert facts["steps"] == 15 and facts["resume"] is None
    assert facts["repeat"] == f"offrl train --config {trainer.run.config_file}"
    status, facts = facts_of(trainer.run.last_checkpoint, capsys)
    assert status == 0 and facts["action_dimensions"] == 2 and facts["trained"]["step"] == 15
    assert facts["observations"] == {"position": [3], "speed": [2]}
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"type": "tr')
    assert main(["info", str(run)]) == 1
    assert "1 damaged lines" in capsys.readouterr().out
    assert main(["info", str(run / "nothing.pth")]) == 1


def test_how_updates_were_made_is_shown_where_it_is_not_as_usual(small_config, capsys):
    trainer = Trainer(small_config({"train": {"engine": "eager"}}))
    trainer.run.unlock()
    assert facts_of(trainer.run.path, capsys)[1]["updates"] == {}
    content = json.loads(trainer.run.config_file.read_text())
    content["train"] |= {"engine": "compile", "accumulate": 2}
    trainer.run.config_file.write_text(json.dumps(content))
    assert main(["info", str(trainer.run.path)]) == 0
    assert "updates:            engine compile, accumulate 2\n" in capsys.readouterr().out


def test_the_best_and_the_last_success_of_a_run_have_intervals(small_config, capsys):
    trainer = Trainer(small_config())
    train_completely(trainer)
    trainer.run.unlock()
    with open(trainer.run.metrics, "a") as file:
        for epoch, rate in ((1, 0.25), (2, 0.75), (3, 0.5)):
            logs = {"n": 4, "Crashed": 0, "Success_Rate": rate, "Return": rate}
            logs |= {"Success_Rate_Low": rate / 2, "Success_Rate_High": (1 + rate) / 2}
            record = {"type": "rollout", "epoch": epoch, "step": epoch, "time": 1.0, "logs": logs}
            file.write(json.dumps(record) + "\n")
    assert main(["info", str(trainer.run.path)]) == 0
    said = capsys.readouterr().out
    assert "75.0% of 4, 95 % interval 37.5% to 87.5%, return 0.75, epoch 2" in said
    assert "50.0% of 4, 95 % interval 25.0% to 75.0%, return 0.5, epoch 3" in said


@pytest.mark.slow
def test_who_has_seen_enough_is_told_no_more():
    command = [sys.executable, "-m", "offrl", "info", "datasets/lift/low_dim.hdf5"]
    pipe = subprocess.PIPE
    with programs.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe) as process:
        process.stdout.close()
        assert (process.wait(), process.stderr.read()) == (128 + signal.SIGPIPE, b"")
