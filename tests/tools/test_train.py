"""``offrl train`` as users run it, some of them in real processes that get killed."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import h5py
import programs
import pytest
import torch
from conftest import ROOT, SMALL
from toy_env import toy_args

from offrl.__main__ import main
from offrl.checkpoint import read_checkpoint
from offrl.tree import merge

TRAIN = [sys.executable, str(ROOT / "train.py")]


@pytest.fixture
def config_file(tmp_path, demos):
    """A function: overrides -> a config file for ``demos``, runs below ``tmp_path``."""

    def write(overrides=None, name="small.json"):
        content = merge(
            SMALL,
            {
                "algo_name": "bc",
                "algo": {"actor_layer_dims": [16, 16]},
                "train": {"data": str(demos), "output_dir": str(tmp_path / "runs")},
            },
        )
        path = tmp_path / name
        path.write_text(json.dumps(merge(content, overrides or {})))
        return str(path)

    return write


def the_run(tmp_path, name="test"):
    (run,) = (tmp_path / "runs" / name).glob("2*")
    return run


def test_an_algorithm_may_lie_beside_its_config(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "elsewhere").mkdir()
    for name in ("four_roles.py", "four_roles.json"):
        content = (ROOT / "examples" / name).read_text().replace("four_roles", "beside_it")
        (tmp_path / "elsewhere" / name.replace("four_roles", "beside_it")).write_text(content)
    assert main(["train", "--config", "elsewhere/beside_it.json", "--print-config"]) == 0
    assert json.loads(capsys.readouterr().out)["algo_name"] == "beside_it.dqn"


def test_a_training_ends_with_the_places_of_its_results(config_file, tmp_path, capsys):
    assert main(["train", "--config", config_file(), "--name", "mine", "--seed", "4"]) == 0
    run = the_run(tmp_path, "mine")
    shown = capsys.readouterr().out
    for place in (run, run / "last.pth", run / "logs"):
        assert str(place) in shown
    config = json.loads(next(run.glob("config-*.json")).read_text())
    assert config["train"]["seed"] == 4
    assert config["meta"]["provenance"]["seed"] == 4


def test_a_run_with_a_simulator_ends_with_a_test(config_file, demos, tmp_path, capsys):
    with h5py.File(demos, "r+") as file:
        file["data"].attrs["env_args"] = json.dumps(toy_args())
    rollout = {"enabled": True, "n": 3, "horizon": 5, "rate": 3, "num_workers": 1}
    path = config_file({"experiment": {"rollout": rollout, "video_skip": 2}})
    assert main(["train", "--config", path, "--set", "experiment.render_video=false"]) == 0
    lines = (the_run(tmp_path) / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    seeds = {
        kind: [r["logs"]["Seed"] for r in records if r["type"] == kind]
        for kind in ("episode", "test_episode")
    }
    assert sorted(seeds["test_episode"]) == [0, 1, 2]
    assert not set(seeds["test_episode"]) & set(seeds["episode"])
    assert records[-1]["type"] == "test" and records[-1]["logs"]["n"] == 3
    assert "video:" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("saves", [True, False])  # only what is saved is known to be the same
def test_a_policy_that_is_the_best_and_the_last_is_tested_once(config_file, demos, tmp_path, saves):
    with h5py.File(demos, "r+") as file:
        file["data"].attrs["env_args"] = json.dumps(toy_args())
    rollout = {"enabled": True, "n": 3, "horizon": 5, "rate": 3, "num_workers": 1}
    experiment = {"rollout": rollout | {"test_last": True}, "render_video": False}
    path = config_file({"experiment": experiment | {"save": {"enabled": saves}}})
    assert main(["train", "--config", path]) == 0
    records = map(json.loads, (the_run(tmp_path) / "metrics.jsonl").read_text().splitlines())
    tests = [(r["type"], r["logs"]) for r in records if r["type"].startswith("test")]
    logs = dict(tests)
    assert logs["test"] == logs["test_last"]
    kinds = [kind for kind, _ in tests]
    one_test = [*["test_episode"] * 3, "test", "test_last"]
    two_tests = [*["test_last_episode"] * 3, "test_last", *["test_episode"] * 3, "test"]
    assert kinds == (one_test if saves else two_tests)


@pytest.mark.slow
def test_a_run_whose_test_measured_nothing_has_failed(config_file, demos, capsys):
    with h5py.File(demos, "r+") as file:  # the seeds of the test
        file["data"].attrs["env_args"] = json.dumps(toy_args(trouble={0: "raise", 1: "raise"}))
    rollout = {"enabled": True, "n": 2, "horizon": 5, "rate": 3, "num_workers": 1}
    path = config_file({"experiment": {"rollout": rollout, "render_video": False}})
    assert main(["train", "--config", path]) == 1
    assert "run folder:" in capsys.readouterr().out


def test_overrides_and_bare_names(config_file, capsys):
    assert (
        main(
            [
                "train",
                "--config",
                "bc.json",
                "--print-config",
                "--dataset",
                "x.hdf5",
                "--set",
                "train.batch_size=7",
                "--set",
                "experiment.name=other",
                "--set",
                "algo.optim_params.policy.learning_rate.initial=1e-3",
            ]
        )
        == 0
    )
    config = json.loads(capsys.readouterr().out)
    assert config["train"]["batch_size"] == 7 and config["experiment"]["name"] == "other"
    assert config["train"]["data"][0]["path"] == "x.hdf5"
    assert config["algo"]["optim_params"]["policy"]["learning_rate"]["initial"] == 1e-3


def test_help_does_not_wait_for_torch():
    check = (
        "import runpy, sys\n"
        "for words in (['--help'], ['train', '--help']):\n"
        "    sys.argv[1:] = words\n"
        "    try:\n"
        "        runpy.run_module('offrl', run_name='__main__')\n"
        "    except SystemExit as ended:\n"
        "        assert not ended.code\n"
        "    print('--', flush=True)\n"
        "assert 'torch.nn' not in sys.modules and 'h5py' not in sys.modules\n"
    )
    command = [sys.executable, "-c", check]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    of_all, of_train, _ = result.stdout.split("--\n")
    assert len(of_all) > 200 and len(of_train) > 200 and "example:" in of_train


def test_keys_of_a_fork_are_left_out_if_the_user_says_so(config_file, capsys):
    fork = ["--config", config_file({"algo": {"dyn": {"x": 1}}}), "--print-config"]
    assert main(["train", *fork]) == 1
    assert "algo.dyn: " in capsys.readouterr().err
    assert main(["train", *fork, "--ignore-unknown"]) == 0
    printed = capsys.readouterr()
    assert "algo.dyn" in printed.err and "dyn" not in json.loads(printed.out)["algo"]


def cut(path):
    path.write_bytes(path.read_bytes()[:3000])


def drop_actions(path):
    with h5py.File(path, "r+") as file:
        del file["data/demo_1/actions"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--config: name a config file"),
        (["--config", "nowhere.json"], "nowhere.json: no such file"),
        (["--set", 'train.data=[{"path": "x", "image": {}}]'], "Did you mean train.data.0.images"),
        (["--set", "train.batchsize=3"], "train.batchsize.*Did you mean train.batch_size"),
        (["--set", "train.batch_size=many"], "train.batch_size.*integer.*'many'"),
        (["--set", "algo_name=nonsense"], "unknown algorithm 'nonsense'"),
        (["--set", "algo.gmm.enabled=true", "--set", "algo.gaussian.enabled=true"], "enable one"),
        (["--dataset", "nowhere.hdf5"], "nowhere.hdf5: no such"),
        (["--output", "/proc/nowhere"], "/proc/nowhere/test: cannot write"),
        (["--set", "train.batch_size=1000"], "1000 is more than the 18 windows"),
        (["--set", "train.hdf5_filter_key=none"], "no filter key 'none'"),
        (["--set", 'observation.modalities.obs.low_dim=["touch"]'], "obs/position, obs/speed"),
        (["--set", "algo.optim_params.policy.learning_rate.initial=1e30"], "NaN or infinite at st"),
        (["--resume", "runs"], "without --config"),
        (["--mode", "evaluate"], "--mode .*alg_para.*small.json"),
        (["--name", "../outside"], "experiment.name.*'../outside'"),
        (["--set", "algo_name=nobodys.algo"], "no module nobodys.algo or nobodys, neither here"),
        (["--set", "algo_name=broken_algo"], "unknown algorithm"),
        (["--set", "algo_name=algos.broken"], "importing algos.broken failed.*nosuchmodule"),
        (["--set", "algo_name=algos.silent"], "registers no algorithm 'silent'"),
        (["--set", "algo.loss.l2_weight=0"], "algo.loss: all weights are zero"),
        (["--set", "algo.optim_params.polcy={}"], "algo.optim_params.polcy: no such network"),
    ],
)
def test_a_mistake_is_one_line_and_a_failure(
    config_file, capsys, tmp_path, monkeypatch, arguments, words
):
    (tmp_path / "algos").mkdir()
    (tmp_path / "algos/broken.py").write_text("import nosuchmodule\n")
    (tmp_path / "algos/silent.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    given = ["--config", config_file()] if arguments and "nowhere.json" not in arguments else []
    assert main(["train", *given, *arguments]) == 1
    import re

    errors = [x for x in capsys.readouterr().err.splitlines() if x.startswith("offrl: error:")]
    assert len(errors) == 1 and re.search(words, errors[0]), errors


def scramble_env_args(path):
    with h5py.File(path, "r+") as file:
        file["data"].attrs["env_args"] = "{Lift}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "words", "run"),
    [
        (cut, "not a readable HDF5 file", subprocess.run),
        (drop_actions, "no 'actions'", programs.run),
        (scramble_env_args, "env_args of data is not JSON", programs.run),
    ],
)
def test_a_broken_dataset_stops_a_process(config_file, demos, tmp_path, spoil, words, run):
    spoil(demos)
    result = run([*TRAIN, "--config", config_file()], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("offrl: error:") and str(demos) in line and words in line
    assert not (tmp_path / "runs").exists()


def test_errors_that_are_not_the_users_keep_their_traceback(config_file, capsys, monkeypatch):
    from offrl.algos.bc import BC

    monkeypatch.setattr(BC, "train_on_batch", lambda *_, **__: int("a bug"))
    assert main(["train", "--config", config_file()]) == 1
    assert "Traceback" in capsys.readouterr().err


# -- kill and resume ------------------------------------------------------------------------------

LONG = {
    "algo": {"actor_layer_dims": [32, 32], "gmm": {"enabled": True}},
    "experiment": {"epoch_every_n_steps": 40, "validate": True, "logging": {"log_tb": False}},
    "train": {"num_epochs": 24, "hdf5_validation_filter_key": "valid", "seq_length": 3},
}


def start(*arguments, **options):
    return programs.Popen(
        [*TRAIN, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options
    )


def wait_for(condition, process):
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, "the training ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def num_epochs(run):
    metrics = run / "metrics.jsonl"
    return metrics.read_text().count('"epoch",') if metrics.exists() else 0


def final_weights(run):
    content = read_checkpoint(run / "last.pth")
    assert content["variable_state"]["epoch"] == 24
    return content["model"]["nets"], content["model"]["optimizers"]["policy"]["state"]


@pytest.mark.slow
def test_a_run_killed_at_any_time_resumes_to_the_same_weights(config_file, tmp_path):
    config = config_file(LONG)
    whole = start("--config", config, "--name", "whole")
    killed = start("--config", config, "--name", "killed")
    folder = tmp_path / "runs" / "killed"
    wait_for(lambda: folder.exists() and list(folder.glob("2*/config-*.json")), killed)
    killed.send_signal(signal.SIGKILL)  # before the first step
    killed.wait()
    run = the_run(tmp_path, "killed")
    for epoch in (3, 12):
        resumed = start("--resume", str(run))
        wait_for(lambda epoch=epoch: num_epochs(run) >= epoch, resumed)
        resumed.send_signal(signal.SIGKILL)
        resumed.wait()
    # A process of its own begins with another seed of hashes, as a user's second one does.
    assert subprocess.run([*TRAIN, "--resume", str(run)], capture_output=True).returncode == 0
    assert whole.wait() == 0

    first, second = final_weights(the_run(tmp_path, "whole")), final_weights(run)
    assert all(torch.equal(first[0][name], second[0][name]) for name in first[0])
    for index, moments in first[1].items():
        assert all(torch.equal(moments[k], second[1][index][k]) for k in moments)
    epochs = [json.loads(x)["epoch"] for x in (run / "metrics.jsonl").read_text().splitlines()]
    assert epochs == sorted(epochs) and epochs.count(12) == 3  # train, valid, epoch: once each
    assert not list(run.rglob("*.partial"))


def test_resuming_what_is_no_run_says_so(tmp_path, capsys):
    assert main(["train", "--resume", str(tmp_path)]) == 1
    assert "not a run folder" in capsys.readouterr().err
    for name in ("20250101000000", "20260101000000"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config-v0.json").touch()
    assert main(["train", "--resume", str(tmp_path)]) == 1
    assert f"the newest run in it is {tmp_path}/20260101000000" in capsys.readouterr().err


@pytest.mark.slow
def test_an_interrupt_says_how_to_go_on(config_file, tmp_path):
    endless = merge(LONG, {"train": {"num_epochs": 1_000_000}})
    process = programs.Popen(
        [*TRAIN, "--config", config_file(endless)], stderr=subprocess.PIPE, text=True
    )
    folder = tmp_path / "runs" / "test"
    wait_for(lambda: any(map(num_epochs, folder.glob("2*"))), process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"offrl train --resume {the_run(tmp_path)}" in errors and "Traceback" not in errors


# -- the main job ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_debug_run_does_everything_in_little(tmp_path):
    result = programs.run(
        [
            *(*TRAIN, "--config", "bc.json", "--debug", "--output", str(tmp_path / "runs")),
            *("--set", "experiment.rollout.num_workers=1"),
            *("--set", "experiment.render_video=false"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    run = the_run(tmp_path, "bc")
    kinds = [json.loads(x)["type"] for x in (run / "metrics.jsonl").read_text().splitlines()]
    assert kinds == [
        *["train", "valid", "episode", "episode", "rollout", "epoch"] * 2,
        "test_episode",
        "test_episode",
        "test",
    ]
    assert "robosuite WARNING" not in result.stderr


@pytest.mark.thorough
def test_bc_learns_to_lift_the_cube(tmp_path):
    """Half of the shipped config's training already lifts nearly always."""
    programs.run(
        [
            *TRAIN,
            "--config",
            "bc.json",
            "--output",
            str(tmp_path / "runs"),
            "--set",
            "train.num_epochs=20",
            "--set",
            "experiment.rollout.n=20",
            "--set",
            "experiment.render_video=false",
        ],
        env=os.environ,
        check=True,
        capture_output=True,
    )
    metrics = (the_run(tmp_path, "bc") / "metrics.jsonl").read_text().splitlines()
    test = json.loads(metrics[-1])
    assert test["type"] == "test" and test["logs"]["n"] == 20
    assert test["logs"]["Success_Rate"] >= 0.8


def test_one_of_several_processes_shows_what_a_dry_run_found(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("offrl.training.dry_run.dry_run", lambda config: {"data": "there"})
    command = ["train", "--config", "bc.json", "--dry-run", "--output", str(tmp_path)]
    for rank in (0, 1):
        monkeypatch.setattr("offrl.parallel.rank", lambda rank=rank: rank)
        assert main(command) == 0 and ("there" in capsys.readouterr().out) == (rank == 0)


def test_a_dry_run_goes_to_the_first_step_and_writes_nothing(tmp_path, capsys):
    place = ["--output", str(tmp_path / "runs")]
    options = [*place, "--set", "train.cache_gb=0.0003", "--set", "train.num_data_workers=1"]
    assert main(["train", "--config", "bc.json", "--dry-run", *options]) == 0
    out = capsys.readouterr().out
    for words in ("180 demonstrations, 5430 steps", "54 batches of 100", "in memory:", "weights"):
        assert words in out
    assert re.search(r"from files: +obs/object, obs/robot0_eef_pos", out)
    assert re.search(r"first batch: +after [0-9.]+ s", out) and "Lift" in out
    assert main(["train", "--config", "pendulum_sac.json", "--dry-run", *place]) == 0
    assert "first batch" not in (out := capsys.readouterr().out) and "algorithm:" in out
    assert main(["train", "--config", "bc.json", "--dry-run", "--set", "algo.x=1", *place]) == 1
    options = [*place, "--set", f"train.cache_dir={tmp_path / 'cache'}"]
    assert main(["train", "--config", "bc.json", "--dry-run", *options]) == 0
    assert f"decoded into {tmp_path / 'cache'}" in capsys.readouterr().out
    assert not (tmp_path / "cache").exists()
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())
