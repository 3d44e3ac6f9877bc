"""A search for the best settings, in one process."""

import json

import pytest

from offrl.config import config_from_content
from offrl.config.files import read_config_file
from offrl.reports.run import Run
from offrl.studies.cells import Plan
from offrl.studies.config import read_study
from offrl.studies.run import CellRunner
from offrl.studies.search import search
from offrl.studies.table import CONFIG
from offrl.training import launch
from offrl.tree import leaves, merge


class Here:
    """A training in this process, which is over when it begins."""

    def __init__(self, folder, run):
        launch.train(config_from_content(read_config_file(folder / CONFIG)))

    def outcome(self):
        return ""

    def stop(self):
        pass

    close = stop


SEARCHED = {
    "acting": (
        {
            "algo_name": "ppo",
            "experiment": {"env": "toy_env:Toy-v0", "epoch_every_n_steps": 20},
            "train": {"num_steps": 40, "online": {"collect_steps": 20, "horizon": 10}},
        },
        {"algo.discount": [0.8, 0.9]},
        "toy_env:Toy-v0",
    ),
    "data": (
        {
            "algo_name": "bc",
            "algo": {"actor_layer_dims": [8]},
            "experiment": {"epoch_every_n_steps": 2, "validate": True},
            "train": {
                "num_epochs": 1,
                "hdf5_filter_key": "train",
                "hdf5_validation_filter_key": "valid",
            },
            "observation": {"modalities": {"obs": {"low_dim": ["position"]}}},
        },
        {"train.batch_size": [4, 8]},
        "demos",
    ),
}


SCORES = {
    "acting": lambda run: run.logs("collect")["Return"],
    "data": lambda run: -run.logs("valid")["Loss"],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SEARCHED)
@pytest.mark.parametrize("said", [{}, {"dataset": None}])
def test_a_search_needs_no_data_of_its_own_and_no_evaluations(
    demos, tmp_path, monkeypatch, kind, said
):
    pytest.importorskip("optuna")
    monkeypatch.setattr(launch, "write_learning_curve", lambda run: None)
    monkeypatch.chdir(tmp_path)
    content, space, where = SEARCHED[kind]
    own = {"experiment": {"rollout": {"enabled": False}, "logging": {"log_tb": False}}}
    own["train"] = {"cuda": False, **({"data": str(demos)} if kind == "data" else {})}
    (tmp_path / "own.json").write_text(json.dumps(merge(content, own)))
    searches = {"trials": 2, "space": {"own": space}, **said}
    made = {"output": "out", "configs": ["own.json"], "search": searches}
    (tmp_path / "study.json").write_text(json.dumps(made))
    study = read_study(tmp_path / "study.json")
    found = search(Plan(study, tmp_path), CellRunner(tmp_path / "out", 1, Here, "again"))["own"]
    assert found.words.endswith(f"(trials: 2, on {where})") and found.settings.keys() == {*space}
    runs = [Run(path) for path in tmp_path.glob("out/search/*/2*")]
    best = max(runs, key=lambda run: SCORES[kind](run))
    assert len(runs) == 2 and leaves(best.config).items() >= found.settings.items()
