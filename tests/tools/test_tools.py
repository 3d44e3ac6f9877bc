"""``offrl rollout`` and ``doctor``, and the examples."""

import json
import os
import subprocess
import sys

import h5py
import numpy as np
import programs
import pytest
import torch
from conftest import ROOT
from toy_env import toy_args

from offrl import Trainer
from offrl.__main__ import main
from offrl.algos.bc import BC
from offrl.checkpoint import write_checkpoint
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


@pytest.mark.slow
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
    with pytest.raises(ValueError, match="demo_0/actions"):
        with DemoWriter(tmp_path / "demos.hdf5", {}) as writer:
            writer.write({"actions": [0.0]})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_environment_that_is_not_there_fails(checkpoint, capsys):
    assert evaluate(checkpoint, "--env", "toy_env:Missing-v0") == 1
    assert "the environment 'toy_env:Missing-v0'" in capsys.readouterr().err


def test_a_folder_of_the_same_name_does_not_hide_the_package(tmp_path):
    (tmp_path / "offrl").mkdir()
    command = [sys.executable, "-c", "import offrl; print(offrl.__version__)"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


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


@pytest.mark.slow
def test_the_doctor_shows_versions_devices_and_rendering(capsys, monkeypatch):
    monkeypatch.setenv("CXX", f"{sys.executable} -O2")
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for word in ("torch:", "robosuite:", "cores:", "GPUs:", "egl:", "osmesa:"):
        assert word in shown
    assert f"C++:        {sys.executable}\n" in shown


def test_the_doctor_says_that_there_is_no_compiler(capsys, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr("offrl.envs.rendering.probe", lambda backend: None)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "no no-such-compiler: train.engine=compile does not work on the CPU" in shown


def run(*args):
    environ = {"PYTHONPATH": str(ROOT / "tests"), "PATH": os.environ["PATH"]}
    options = {"cwd": ROOT, "env": environ, "text": True, "stdout": subprocess.PIPE}
    return programs.run([sys.executable, *args], check=True, **options).stdout


@pytest.mark.slow
def test_the_examples_run(checkpoint):
    shown = run("examples/simple_train_loop.py", "--epochs", "1")
    assert "epoch 1" in shown and "policy" in shown
    module = ("--module", "toy_env")
    shown = run("examples/rollout.py", "--checkpoint", str(checkpoint), "--n", "2", *module)
    assert shown.count("success") == 2


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("example", "name"), [("new_algorithm", "robust_bc"), ("new_chunk_policy", "chunk_regression")]
)
def test_a_new_algorithm_trains(tmp_path, example, name):
    config = ["--config", f"examples/{example}.json", "--output", str(tmp_path)]
    shown = run("-m", "offrl", "train", *config, "--debug")
    assert "success rate" in shown and (tmp_path / name).exists()
