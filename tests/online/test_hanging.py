"""Environments that hang while a policy learns in them: those in processes begin anew, explorers on
Ray are replaced, and of others it is said what is waited for."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import acting_in

from offrl import config_factory
from offrl.envs import vector
from offrl.online import Trainer
from offrl.training import RunFolder, train
from offrl.training.interrupts import Interrupts


@pytest.fixture(autouse=True)
def odd_envs_are_found(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)


def config_of(tmp_path, algo_name="ppo", num_steps=80, timeout=1.0, **env_kwargs):
    return {
        "algo_name": algo_name,
        "experiment": acting_in("odd_envs:Hanging-v0", 40)
        | {"env_meta_update_dict": {"env_kwargs": env_kwargs}},
        "train": {
            "num_steps": num_steps,
            "output_dir": str(tmp_path / "runs"),
            "batch_size": 4,
            "online": {"num_envs": 2, "collect_steps": 10, "timeout": timeout},
        },
        "algo": {"policy_layer_dims": [8], "value_layer_dims": [8]} if algo_name == "ppo" else {},
    }


@pytest.fixture
def in_processes(monkeypatch):
    """Environments are in two processes."""
    monkeypatch.setattr(vector, "MESSAGES", -1.0)
    monkeypatch.setattr(vector, "MEASURED", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.mark.slow
@pytest.mark.usefixtures("in_processes")
def test_a_training_goes_on_behind_an_environment_that_hung(tmp_path):
    content = config_of(tmp_path, at=25, marker=str(tmp_path / "hung"))
    result = train(config_factory("ppo", content))
    records = [json.loads(line) for line in result.run.metrics.read_text().splitlines()]
    (restart,) = [record for record in records if record["type"] == "restart"]
    assert restart["logs"] == {"Restarts": 1} and 40 < restart["step"] <= 99
    assert "hung" in result.problems[0]
    checkpoint = torch.load(result.run.last_checkpoint, weights_only=True)
    assert checkpoint["online"]["num_restarts"] == 1
    run, config = RunFolder.open(result.run.path)
    run.unlock()
    again = Trainer(config, earlier=checkpoint)
    again.restore(checkpoint["online"])
    assert again.num_restarts == 1 and again.step == records[-1]["step"] >= 80
    again.close()


@pytest.mark.slow
@pytest.mark.usefixtures("in_processes")
def test_the_steps_before_it_hung_end_as_truncated(tmp_path):
    trainer = Trainer(config_of(tmp_path, at=7, marker=str(tmp_path / "hung")))
    records = trainer._run_collect()
    assert trainer.step == 19 and records["logs"]["Episodes"] == 0
    store = trainer.buffer.store
    (hung,) = [env for env in range(2) if (~store.is_step[store.parts[env] :][:10]).any()]
    lost = store.parts[hung] + store.num_before + 6
    rows = np.arange(store.parts[hung] + store.num_before, lost + 4)
    assert store.is_step[rows].tolist() == [True] * 6 + [False] + [True] * 3
    assert (store.ends[rows[:6]] == lost - 1).all() and not store.arrays["dones"].any()
    assert (store.begins[rows[7:]] == lost + 1).all()
    assert trainer.buffer.take()["truncated"][hung].nonzero().tolist() == [[5]]
    trainer.close()


@pytest.mark.thorough
def test_an_explorer_on_ray_that_hangs_is_replaced(tmp_path, caplog):
    pytest.importorskip("ray")
    marker = tmp_path / "hung"
    content = config_of(tmp_path, num_steps=120, timeout=3.0, at=5, marker=str(marker))
    content["train"]["online"]["num_envs"] = 1
    content["distributed"] = {"explorers": 1, "address": "local"}
    result = train(config_factory("ppo", content))
    assert marker.exists() and "it made no step for 3 s" in caplog.text
    assert torch.load(result.checkpoint, weights_only=True)["variable_state"]["step"] == 120


def test_a_first_signal_says_that_it_waits(caplog, monkeypatch):
    monkeypatch.setattr("offrl.training.interrupts.SAID_AFTER_S", 0.05)
    for seconds, says in ((0.0, 0), (0.3, 1)):
        interrupts = Interrupts()
        with interrupts.wait():
            interrupts.stop(signal.SIGTERM)
            time.sleep(seconds)
        time.sleep(0.1)
        assert caplog.text.count("SIGTERM: the training stops after") == says


def test_neither_a_close_that_raises_nor_another_working_folder_spoils_a_training(
    tmp_path, monkeypatch, caplog
):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    goes_to = str(tmp_path / "elsewhere")
    content = config_of(tmp_path, num_steps=40, closes=False, goes_to=goes_to)
    content["train"] |= {"output_dir": "runs", "online": {"num_envs": 1, "collect_steps": 10}}
    result = train(config_factory("ppo", content))
    assert result.run.path.is_relative_to(tmp_path / "runs") and result.run.path.is_dir()
    assert result.run.last_checkpoint.exists() and not [*(tmp_path / "elsewhere").iterdir()]
    assert "odd_envs:Hanging-v0 could not be closed: RuntimeError: the viewer" in caplog.text
