"""``offrl study``: trainings in real processes, some of which are killed."""

import copy
import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import programs
import pytest
import torch
import yaml
from conftest import ROOT, SMALL, write_demos
from toy_env import toy_args

from offrl.__main__ import main
from offrl.checkpoint import read_checkpoint
from offrl.studies.results import results_of
from offrl.studies.search import _Search

pytestmark = pytest.mark.slow

STUDY = [sys.executable, "-m", "offrl", "study"]


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A function that writes a study of a small config, and gives its path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(map(str, (ROOT, ROOT / "tests"))), prepend=os.pathsep
    )
    write_demos(tmp_path / "demos.hdf5", env_args=json.dumps(toy_args()))
    small = copy.deepcopy(SMALL) | {"algo_name": "bc", "algo": {"actor_layer_dims": [16, 16]}}
    rollout = {"n": 3, "horizon": 5, "rate": 2, "test_last": True, "num_workers": 1}
    small["experiment"] |= {"rollout": rollout, "render_video": False}
    small["experiment"]["logging"] = {"log_tb": False}
    (tmp_path / "small.json").write_text(json.dumps(small))

    def write(name="study.yaml", **content):
        common = {"output": "out", "configs": ["small.json"], "datasets": ["demos.hdf5"]}
        (tmp_path / name).write_text(yaml.dump({**common, **content}))
        return str(tmp_path / name)

    return write


def rows(output="out"):
    with open(Path(output) / "study.csv", newline="") as file:
        return list(csv.DictReader(file))


def weights(output):
    """By cell the weights of the last policy."""
    found = {}
    for row in rows(output):
        (run,) = Path(output, row["cell"]).glob("2*")  # one for ever
        found[row["cell"]] = read_checkpoint(run / "last.pth")["model"]["nets"]
    return found


def processes_in(folder):
    """The processes that work in a study's folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            works_there = process.joinpath("cwd").resolve() == Path(folder).resolve()
            if works_there and int(process.name) != os.getpid():
                found.append(int(process.name))
        except OSError:
            pass
    return found


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("sizes", "seeds"), [([4], [1]), pytest.param([4, 5], [1, 2], marks=pytest.mark.thorough)]
)
def test_a_study_trains_its_cells_and_finds_them_finished(study, capsys, sizes, seeds):
    path = study(seeds=seeds, grid={"train.batch_size": sizes})
    assert main(["study", path, "--jobs", "2"]) == 0
    num_cells = len(sizes) * len(seeds)
    assert f"{num_cells} finished" in capsys.readouterr().out
    first = rows()
    assert [row["cell"] for row in first] == [
        f"small-demos-batch_size_{size}-seed_{seed}" for size in sizes for seed in seeds
    ]
    for row in first:
        assert row["status"] == "finished" and row["why"] == ""
        assert (row["steps"], row["of_steps"]) == ("15", "15")
        assert (row["best_n"], row["last_n"]) == ("3", "3")
        assert row["train.batch_size"] in ("4", "5") and row["algorithm"] == "bc"
    assert main(["study", path]) == 0
    assert rows() == first
    assert len(weights("out")) == num_cells
    results = results_of(["out"])
    assert [(r.algorithm, r.task, r.seed) for r in results] == [
        (f"small, batch_size {size}", "demos", seed) for size in sizes for seed in seeds
    ]
    assert all(r.final and r.best and r.status == "finished" for r in results)
    assert results_of(["."]) == results, "of what is below"
    assert results_of(sorted(map(str, Path("out").glob("*/2*")))) == results, "of the runs"


@pytest.mark.thorough
def test_a_study_that_was_killed_equals_one_that_was_not(study):
    """SIGKILL leaves no child behind, and the same command goes on where each training was."""
    long = {"train.num_epochs": 60, "experiment.epoch_every_n_steps": 60}
    study_of = {"seeds": [1, 2], "set": {**long, "experiment.rollout.rate": 20}}
    assert main(["study", study("whole.yaml", output="whole", **study_of), "--jobs", "2"]) == 0
    path = study(output="killed", **study_of)

    def logged():
        return sum(p.stat().st_size for p in Path("killed").glob("*/2*/metrics.jsonl"))

    for _ in range(2):
        before = logged()
        program = programs.Popen([*STUDY, path, "--jobs", "2"])
        wait_for(lambda before=before: logged() > before + 2000)
        program.send_signal(signal.SIGKILL)
        program.wait()
        wait_for(lambda: not processes_in("."), seconds=20)
        assert "begun" in {result.status for result in results_of(["killed"])}
    assert programs.run([*STUDY, path, "--jobs", "1"], check=False).returncode == 0
    whole, killed = weights("whole"), weights("killed")
    assert whole.keys() == killed.keys()
    for cell, nets in whole.items():
        for name, value in nets.items():
            assert torch.equal(value, killed[cell][name]), (cell, name)
    noted = [
        [
            {k: v for k, v in r.items() if k not in ("minutes", "run", "command")}
            for r in rows(output)
        ]
        for output in ("whole", "killed")
    ]
    assert noted[0] == noted[1]


def test_an_interrupt_saves_what_runs(study):
    path = study(set={"train.num_epochs": 10_000})
    program = programs.Popen([*STUDY, path], stderr=subprocess.PIPE, text=True)
    log = Path("out/small-demos-seed_1/log.txt")
    wait_for(lambda: log.exists() and "epoch" in log.read_text())
    program.send_signal(signal.SIGINT)
    said = program.communicate(timeout=60)[1]
    assert "interrupted" in said and "the same command goes on" in said
    assert program.returncode == 130 and not processes_in(".")
    assert "interrupted" in log.read_text()  # by the study, and it says how to go on
    assert [row["status"] for row in rows()] == ["begun"]
    (result,) = results_of(["out"])
    assert (result.status, result.final) == ("begun", None) and result.steps > 0
    assert result.repeat == f"offrl study {path}"


@pytest.mark.thorough
def test_what_fails_leaves_the_others_to_finish_and_is_taken_up_again(study, capsys):
    path = study(
        configs=[
            {"config": "small.json", "name": "wrong", "set": {"train.batch_sizes": 3}},
            {
                "config": "small.json",
                "name": "diverges",
                "set": {"algo.optim_params.policy.learning_rate.initial": 1e30},
            },
            "small.json",
            "nowhere.json",
        ],
        datasets=["demos.hdf5", "missing.hdf5"],
    )
    assert main(["study", path, "--jobs", "2"]) == 1
    why = {(row["config"], row["dataset"]): (row["status"], row["why"]) for row in rows()}
    assert why[("small", "demos")] == ("finished", "")
    assert "Did you mean train.batch_size?" in why[("wrong", "demos")][1]
    assert "the loss became NaN or infinite" in why[("diverges", "demos")][1]
    assert "missing.hdf5: no such file" in why[("small", "missing")][1]
    assert "nowhere.json: no such file" in why[("nowhere", "demos")][1]
    assert {status for status, _ in why.values()} == {"finished", "failed"}
    shown = capsys.readouterr()
    assert "1 finished" in shown.out and "7 failed" in shown.out
    assert "diverges-demos-seed_1: failed: bc: the loss became NaN" in shown.err
    assert "nowhere-demos-seed_1 and 1 more: failed: nowhere.json: no such file" in shown.err

    write_demos("missing.hdf5", env_args=json.dumps(toy_args()))
    assert main(["study", path, "--jobs", "2"]) == 1
    assert {row["status"] for row in rows() if row["config"] == "small"} == {"finished"}


@pytest.mark.thorough
def test_a_training_that_is_killed_is_taken_up_again(study):
    path = study(set={"train.num_epochs": 300, "experiment.rollout.rate": 300})
    program = programs.Popen([*STUDY, path])
    run = Path("out/small-demos-seed_1")
    wait_for(lambda: [*run.glob("2*/metrics.jsonl")])
    (child,) = [p for p in processes_in(".") if is_child(p, program.pid)]
    os.kill(child, signal.SIGKILL)
    assert program.wait(60) == 1
    assert [(row["status"], row["why"]) for row in rows()] == [
        ("failed", "killed by signal 9, see out/small-demos-seed_1/log.txt")
    ]
    (result,) = results_of(["out"])
    assert (result.status, result.final) == ("failed", None)
    (folder,) = run.glob("2*")
    assert main(["train", "--resume", str(folder)]) == 0
    (result,) = results_of(["out"])
    assert (result.status, result.why) == ("finished", "") and result.final
    assert main(["study", path]) == 0
    assert [(row["status"], row["why"]) for row in rows()] == [("finished", "")]


def is_child(process, of):
    status = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(status[1]) == of


@pytest.mark.thorough
def test_other_settings_are_no_earlier_cell(study, capsys):
    """Nothing is trained, and nothing that is known is lost."""
    assert main(["study", study()]) == 0
    first = rows()
    other = study(set={"train.num_epochs": 4}, seeds=[1, 2])
    assert main(["study", other]) == 1
    said = capsys.readouterr().err
    assert "was trained with other settings: train.num_epochs (4, was 3)" in said
    assert rows() == first and not [*Path("out").glob("*seed_2")]
    data = {"path": "demos.hdf5"}, {"path": "new.hdf5", "collect": "--env reach-v3 --n 1"}
    other = study(set={"train.num_epoch": 4}, datasets=[*data])
    assert main(["study", other]) == 1
    assert "other settings: train.num_epoch: unknown key" in capsys.readouterr().err
    assert rows() == first and not Path("new.hdf5").exists()
    other = study(set={"train.data.top_share": 0.5})
    assert main(["study", other]) == 1
    assert "train.data.0.top_share (0.5, was None)" in capsys.readouterr().err
    Path("other").mkdir()  # robomimic calls the files of all tasks alike
    write_demos("other/demos.hdf5", seed=1)
    assert main(["study", study(datasets=["other/demos.hdf5"])]) == 1
    assert "train.data (other/demos.hdf5: other data than then)" in capsys.readouterr().err
    Path("demos.hdf5").rename("other/demos.hdf5")  # which takes nothing from what is finished
    assert main(["study", study(datasets=["other/demos.hdf5"])]) == 0
    Path("other/demos.hdf5").rename("moved.hdf5")
    assert main(["study", study()]) == 0
    assert rows() == first


def test_what_is_wrong_with_the_whole_study_is_said_before_anything_is_made(study, capsys):
    twice = study(configs=["small.json", {"config": "small.json", "set": {"train.num_epochs": 4}}])
    data = {"path": "new.hdf5", "collect": "--env reach-v3 --nn 1"}
    for path, says in (
        (twice, "two cells are called small-demos-seed_1"),
        (study("typo.yaml", datasets=[data]), "collect of new.hdf5: unrecognized arguments: --nn"),
    ):
        assert main(["study", path]) == 1
        assert says in capsys.readouterr().err and not Path("out").exists()


@pytest.mark.thorough
def test_only_one_study_at_a_time_works_in_a_folder(study, capsys):
    path = study(set={"train.num_epochs": 10_000})
    program = programs.Popen([*STUDY, path])
    try:
        wait_for(lambda: [*Path("out").glob("*/2*")])
        assert main(["study", path]) == 1
        assert "another process is running a study there" in capsys.readouterr().err
    finally:
        program.send_signal(signal.SIGTERM)
        program.wait(60)


@pytest.mark.thorough
def test_an_algorithm_may_lie_beside_the_study(study, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside.py").write_text(
        "from offrl.algos.bc import BC, BCConfig\n"
        "from offrl.algos import register_algo\n"
        "class BesideConfig(BCConfig):\n"
        "    ALGO_NAME = 'beside'\n"
        "@register_algo(BesideConfig)\n"
        "class Beside(BC):\n"
        "    pass\n"
    )
    content = json.loads(Path("small.json").read_text()) | {"algo_name": "beside.beside"}
    Path("own.json").write_text(json.dumps(content))
    (tmp_path / "statistics.py").write_text("raise ImportError('not the standard library')")
    path = study(configs=["own.json"], datasets=[str(tmp_path / "demos.hdf5")])
    Path("elsewhere").mkdir()
    os.chdir("elsewhere")  # which Python looks in itself
    assert main(["study", path]) == 0


@pytest.mark.thorough
def test_a_search_goes_on_and_its_best_settings_are_those_of_the_study(study, capsys):
    pytest.importorskip("optuna")
    write_demos("other.hdf5", env_args=json.dumps(toy_args()))
    space = {"train.batch_size": [4, 5, 6], "algo.loss.l2_weight": {"low": 0.5, "high": 2.0}}
    twin = {"config": "small.json", "name": "twin"}
    spaces = {"small": space, "twin": {"algo.loss.l2_weight": {"low": 1.5, "high": 2.0}}}
    search = {"dataset": "other.hdf5", "trials": 3, "space": spaces}
    path = study(search=search, configs=["small.json", twin])
    program = programs.Popen([*STUDY, path, "--jobs", "1"])
    wait_for(lambda: [*Path("out/search").glob("small-trial_1/2*")])
    program.send_signal(signal.SIGKILL)
    program.wait()
    assert [*Path("out/search").glob("twin-trial_0/2*")], "a trial of each in turn"
    assert main(["study", path, "--jobs", "2"]) == 0
    trials = sorted(path.name for path in Path("out/search").iterdir())
    assert trials == [f"{config}-trial_{i}" for config in spaces for i in range(3)]
    configs = [
        json.loads(path.read_text()) for path in Path("out/search").glob("twin*/config.json")
    ]
    assert len({config["algo"]["loss"]["l2_weight"] for config in configs}) == 3, "none twice"
    best = {}
    for trial in trials[:3]:
        (run,) = Path("out/search", trial).glob("2*")
        records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
        last = [r["logs"] for r in records if r["type"] == "rollout"][-1]
        config = json.loads(next(run.glob("config-*.json")).read_text())
        score = (last["Success_Rate"], last["Return"])
        best[score] = config["train"]["batch_size"], config["algo"]["loss"]["l2_weight"]
        assert (best[score] == (4, 1.0)) == trial.endswith("_0"), "the config's own values first"
    (cell,) = Path("out/small-demos-seed_1").glob("2*/config-*.json")
    config = json.loads(cell.read_text())
    assert (config["train"]["batch_size"], config["algo"]["loss"]["l2_weight"]) == best[max(best)]
    assert "the search found" in capsys.readouterr().err
    more = study(search={**search, "trials": 4}, configs=["small.json", twin])
    assert main(["study", more]) == 0
    assert "small: no more trials: cells have begun" in capsys.readouterr().err
    assert not [*Path("out/search").glob("*trial_3")]
    other = study(search={**search, "seed": 9}, configs=["small.json", twin])
    assert main(["study", other]) == 1
    assert "holds a search for small with another search.seed;" in capsys.readouterr().err
    content = json.loads(Path("small.json").read_text())
    content["train"]["num_epochs"] += 1
    Path("small.json").write_text(json.dumps(content))
    assert main(["study", study(search=search, configs=["small.json", twin])]) == 1
    assert "small with another config.train.num_epochs;" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_trial_that_is_worse_than_the_median_is_stopped(study, capsys, monkeypatch):
    """After five trials that were better, the sixth ends by its first evaluation, although four
    are there when a busy computer first looks."""
    optuna = pytest.importorskip("optuna")
    evaluations = _Search._evaluations

    def four_or_none(search, cell, **options):
        found = list(evaluations(search, cell, **options).items())
        return dict(found[:4]) if len(found) >= 4 else {}

    monkeypatch.setattr(_Search, "_evaluations", four_or_none)
    search = {"dataset": "demos.hdf5", "trials": 6, "set": {"train.num_epochs": 1_000}}
    path = study(search={**search, "space": {"small": {"train.batch_size": [4]}}})
    Path("out").mkdir()
    earlier = optuna.create_study(
        storage="sqlite:///out/search.db", study_name="small", directions=["maximize"]
    )
    sizes = optuna.distributions.CategoricalDistribution([4])
    trial = optuna.trial.create_trial(
        value=2.0,
        params={"train.batch_size": 4},
        distributions={"train.batch_size": sizes},
        intermediate_values={2: 2.0},
    )
    earlier.add_trials([trial] * 5)
    assert main(["study", path]) == 0
    assert "search/small-trial_5: pruned" in capsys.readouterr().err
    assert earlier.trials[5].state.name == "PRUNED"
    assert "interrupted" in Path("out/search/small-trial_5/log.txt").read_text()


@pytest.mark.thorough
def test_a_value_that_cannot_be_trained_leaves_the_others_to_be_tried(study, capsys):
    pytest.importorskip("optuna")
    share = {"train.data.top_share": [None]}  # which a config without options of data has not
    space = {"small": {"train.batch_size": [0, 4, 5], **share}}
    path = study(search={"dataset": "demos.hdf5", "trials": 8, "seed": 3, "space": space})
    assert main(["study", path, "--jobs", "1"]) == 0
    assert "trial_7" in capsys.readouterr().err
    assert rows()[0]["search"].startswith("train.batch_size ")


@pytest.mark.parametrize("corrected", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_a_failed_search_fails_the_cells_of_its_config_alone(study, capsys, corrected):
    pytest.importorskip("optuna")
    search = {"dataset": "nowhere.hdf5", "trials": 3, "space": {"bad": {"train.batch_size": [4]}}}
    configs = ["small.json", {"config": "small.json", "name": "bad"}]
    misspelt = study(search=search, configs=configs, grid={"train.num_epoch": [3]}, output="no")
    assert main(["study", misspelt]) == 1
    first = capsys.readouterr().err.splitlines()[0]  # before the trials
    assert first.startswith("some cells cannot be trained: train.num_epoch: unknown key")
    assert main(["study", study(search=search, configs=configs)]) == 1
    assert {row["config"]: row["status"] for row in rows()} == {
        "small": "finished",
        "bad": "failed",
    }
    assert capsys.readouterr().err.count("nowhere.hdf5: no such file") == 2  # not of each trial
    assert "no training of its search came to its end: nowhere.hdf5: no such" in rows()[1]["why"]
    if corrected:  # where it is
        search = {**search, "dataset": "demos.hdf5", "trials": 1}
        assert main(["study", study(search=search, configs=configs)]) == 0
        assert rows()[1]["search"] == "train.batch_size 4 (trials: 1, on demos)"


def test_a_damaged_record_of_a_search_is_said(study, capsys):
    pytest.importorskip("optuna")
    path = study(search={"trials": 1, "space": {"small": {"train.batch_size": [4]}}})
    Path("out").mkdir()
    Path("out/search.db").write_bytes(b"x" * 4000)
    assert main(["study", path]) == 1
    said = capsys.readouterr().err
    assert said.startswith("offrl: error: out/search.db is damaged") and said.count("\n") == 1


def test_a_finished_cell_whose_log_is_lost_says_so(study):
    path = study(seeds=[1], set={"experiment.rollout.enabled": False})
    assert main(["study", path]) == 0
    (log,) = Path("out").glob("*/2*/metrics.jsonl")
    log.unlink()
    assert main(["study", path]) == 1
    why = f"{log} lacks its end; move {log.parents[1]} away to train it anew"
    assert rows()[0]["why"] == why


@pytest.mark.thorough
def test_a_study_on_ray_gives_the_same(study):
    pytest.importorskip("ray")
    assert main(["study", study(seeds=[1, 2])]) == 0
    assert main(["study", study(seeds=[1, 2], output="ray"), "--address", "local"]) == 0
    here, there = weights("out"), weights("ray")
    assert here.keys() == there.keys()
    for cell, nets in here.items():
        for name, value in nets.items():
            assert torch.equal(value, there[cell][name]), (cell, name)


@pytest.mark.thorough
def test_missing_data_is_collected(study, tmp_path):
    lift = {"path": "lift.hdf5", "collect": "--env reach-v3 --n 2 --horizon 30 --keep-failures"}
    modalities = {"observation.modalities.obs.low_dim": ["state"]}
    path = study(datasets=[lift], set=modalities, configs=["small.json"])
    assert main(["study", path]) == 0
    with h5py.File(tmp_path / "lift.hdf5") as file:
        assert len(file["data"]) == 2


@pytest.mark.thorough
def test_a_disk_that_fills_leaves_what_has_room_to_finish(study, tmp_path):
    """The cell that finds no room says so, and is taken up when there is some."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        large = {"config": "small.json", "name": "large", "set": {"algo.actor_layer_dims": [900]}}
        wide = {"config": "small.json", "name": "wide", "set": {"algo.actor_layer_dims": [700] * 3}}
        path = study(output=str(disk / "out"), configs=[large, wide, "small.json"])
        assert main(["study", path, "--jobs", "1"]) == 1
        found = {row["config"]: (row["status"], row["why"]) for row in rows(disk / "out")}
        assert found["large"][0] == found["small"][0] == "finished"
        assert found["wide"][0] == "failed" and "disk full" in found["wide"][1]
        subprocess.run(["mount", "-o", "remount,size=100m", disk], check=True)
        assert main(["study", path]) == 0
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
