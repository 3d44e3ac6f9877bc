"""``offrl rollout``, ``collect`` and ``doctor``, and the examples."""

import json
import os
import subprocess
import sys

import h5py
import numpy as np
import pytest
import torch
from conftest import ROOT
from toy_env import toy_args

from offrl import Trainer
from offrl.__main__ import main
from offrl.algos.bc import BC
from offrl.checkpoint import write_checkpoint
from offrl.data.sequence import SequenceDataset
from offrl.data.writer import DemoWriter
from offrl.envs import say_once


@pytest.fixture
def checkpoint(small_config, tmp_path):
    trainer = Trainer(small_config())
    list(trainer())
    path = tmp_path / "model.pth"
    write_checkpoint(path, trainer.state() | {"env_metadata": toy_args()})
    return path


def evaluate(checkpoint, *arguments):
    return main(
        [
            "rollout",
            "--checkpoint",
            str(checkpoint),
            "--n",
            "4",
            "--horizon",
            "6",
            "--workers",
            "2",
            *arguments,
        ]
    )


def test_an_evaluation_is_repeatable_and_seeds_count_on(checkpoint, tmp_path, capsys):
    for name, seed in (("a", "0"), ("b", "0"), ("c", "2")):
        assert evaluate(checkpoint, "--seed", seed, "--json", str(tmp_path / f"{name}.json")) == 0
    a, b, c = (json.loads((tmp_path / f"{name}.json").read_text()) for name in "abc")
    assert a == b != c and a["n"] == 4
    assert "95 % interval" in capsys.readouterr().out


def test_how_a_policy_without_act_is_run_is_said_at_the_terminal(checkpoint, monkeypatch, capsys):
    def get_action(self, obs_dict, goal_dict=None):
        return torch.zeros(1, 2)

    monkeypatch.delattr(BC, "act")
    monkeypatch.setattr(BC, "get_action", get_action)
    say_once.cache_clear()
    assert evaluate(checkpoint) == 0
    assert "bc: workers reduced to 1; it serves no more" in capsys.readouterr().err


def test_what_a_policy_did_is_a_dataset_to_train_on(checkpoint, tmp_path, small_config):
    path = tmp_path / "recorded.hdf5"
    assert evaluate(checkpoint, "--record", str(path)) == 0
    with h5py.File(path) as file:
        assert list(file["data"]) == [f"demo_{i}" for i in range(4)]
        assert [file[f"data/demo_{i}"].attrs["seed"] for i in range(4)] == [0, 1, 2, 3]
        assert file["data"].attrs["total"] == sum(
            d.attrs["num_samples"] for d in file["data"].values()
        )
    trainer = Trainer(small_config({"train": {"data": str(path)}}))
    list(trainer())
    assert trainer.env_args == toy_args()


def test_nothing_is_overwritten(checkpoint, tmp_path, capsys):
    path = tmp_path / "precious.hdf5"
    path.write_text("work of years")
    for option in ("--record", "--video", "--json"):
        assert evaluate(checkpoint, option, str(path)) == 1
    assert main(["collect", "--n", "1", "--output", str(path)]) == 1
    assert path.read_text() == "work of years"
    assert capsys.readouterr().err.count("exists; choose another name") == 4


def test_a_recording_that_fails_at_once_leaves_no_file(tmp_path):
    with pytest.raises(ValueError, match="is a list"):
        with DemoWriter(tmp_path / "demos.hdf5", {}) as writer:
            writer.write({"actions": [0.0]})
    assert list(tmp_path.iterdir()) == []


def test_an_environment_that_is_not_there_fails(checkpoint, capsys):
    assert evaluate(checkpoint, "--env", "toy_env:Missing-v0") == 1
    assert "the environment 'toy_env:Missing-v0'" in capsys.readouterr().err


def test_a_folder_of_the_same_name_does_not_hide_the_package(tmp_path):
    (tmp_path / "offrl").mkdir()
    command = [sys.executable, "-c", "import offrl; print(offrl.__version__)"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_demonstrations_are_collected_the_same_by_any_number_of_workers(tmp_path):
    for workers in ("1", "2"):
        assert (
            main(
                [
                    "collect",
                    "--n",
                    "4",
                    "--noise",
                    "0.2",
                    "--workers",
                    workers,
                    "--output",
                    str(tmp_path / f"{workers}.hdf5"),
                ]
            )
            == 0
        )
    with h5py.File(tmp_path / "1.hdf5") as one, h5py.File(tmp_path / "2.hdf5") as two:
        assert json.loads(one["data"].attrs["env_args"])["env_name"] == "Lift"
        assert [len(one[f"mask/{key}"]) for key in ("train", "valid")] == [3, 1]
        for name in ("demo_0", "demo_3"):
            for key in ("actions", "states", "obs/object", "rewards", "dones"):
                np.testing.assert_array_equal(one[f"data/{name}/{key}"], two[f"data/{name}/{key}"])
            demo = one[f"data/{name}"]
            assert demo["actions"].dtype == np.float32 and "next_obs" not in demo
            assert demo["rewards"][-1] == demo["dones"][-1] == 1.0
            assert "<mujoco" in demo.attrs["model_file"]


@pytest.mark.slow
def test_failures_are_dropped_unless_asked_for(tmp_path, capsys):
    # With five steps nobody lifts anything.
    hopeless = ["collect", "--n", "2", "--horizon", "5", "--workers", "1", "--output"]
    assert main([*hopeless, str(tmp_path / "none.hdf5")]) == 1
    assert "none of 2 episodes succeeded" in capsys.readouterr().err
    assert not (tmp_path / "none.hdf5").exists()
    assert main([*hopeless, str(tmp_path / "failures.hdf5"), "--keep-failures"]) == 0
    dataset = SequenceDataset(tmp_path / "failures.hdf5", ["object"])
    assert dataset.lengths.tolist() == [5, 5]


@pytest.mark.slow
def test_dense_rewards_are_recorded_and_success_is_still_the_end(tmp_path):
    path = tmp_path / "dense.hdf5"
    command = "collect --n 2 --noise 0.1 3 --keep-failures --horizon 60 --workers 1".split()
    shaped = ["--env-kwargs", '{"reward_shaping": true}']
    assert main([*command, *shaped, "--output", str(path)]) == 0
    with h5py.File(path) as file:
        success, failure = file["data/demo_0"], file["data/demo_1"]
        for demo in (success, failure):
            assert (demo["rewards"][:-1] > 0).all() and len(set(demo["rewards"])) > 10
        assert success["rewards"][-1] == success["dones"][-1] == success["dones"][()].sum() == 1
        assert len(failure["dones"]) == 60 and not failure["dones"][()].any()


def test_the_shipped_dataset_is_as_described():
    path = ROOT / "datasets/lift/low_dim.hdf5"
    assert path.stat().st_size < 12e6
    with h5py.File(path) as file:
        assert len(file["data"]) == 200
        assert set(file["mask"]) == {"train", "valid"}
        assert len(file["mask/train"]) + len(file["mask/valid"]) == 200
        demo = file["data/demo_0"]
        assert demo["actions"].dtype == np.float32 and "next_obs" not in demo
        assert demo["actions"].compression is None
    assert b"/site-packages/" not in path.read_bytes()


def test_the_doctor_shows_versions_devices_and_rendering(capsys):
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for word in ("torch:", "robosuite:", "cores:", "GPUs:", "egl:", "osmesa:"):
        assert word in shown


def test_an_unknown_expert_names_those_there_are(tmp_path, capsys):
    assert main(["collect", "--env", "Lyft", "--output", str(tmp_path / "x.hdf5")]) == 1
    assert "Did you mean 'Lift'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--n", "0"],
        ["--seed", "-1"],
        ["--horizon", "0"],
        ["--workers", "many"],
        ["--env-kwargs", "{"],
    ],
)
def test_numbers_out_of_range_are_refused(tmp_path, capsys, arguments):
    with pytest.raises(SystemExit) as stop:
        main(["collect", "--output", str(tmp_path / "x.hdf5"), *arguments])
    assert stop.value.code == 2
    assert arguments[0] in capsys.readouterr().err and not (tmp_path / "x.hdf5").exists()


@pytest.mark.slow
def test_the_examples_run(checkpoint, tmp_path):
    def run(*args):
        environ = {"PYTHONPATH": str(ROOT / "tests"), "PATH": os.environ["PATH"]}
        command = [sys.executable, *args]
        return subprocess.check_output(command, cwd=ROOT, env=environ, text=True)

    shown = run("examples/simple_train_loop.py", "--epochs", "2")
    assert "epoch 2" in shown and "policy" in shown
    config = ["--config", "examples/new_algorithm.json", "--output", str(tmp_path)]
    shown = run("-m", "offrl", "train", *config, "--debug")
    assert "success rate" in shown and (tmp_path / "robust_bc").exists()
    shown = run("examples/rollout.py", "--checkpoint", str(checkpoint), "--n", "2")
    assert shown.count("success") == 2
