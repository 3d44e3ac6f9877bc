"""A finished training says so: by its last line, and by a mark in its run folder."""

import json
import os
import shutil

import pytest
from toy_env import ToyEnv

from offrl.__main__ import main
from offrl.config.files import nested
from offrl.reports.run import Run, run_facts
from offrl.studies.results import results_of
from offrl.tree import merge, without


@pytest.fixture
def run(trained_run, tmp_path):
    return shutil.copytree(trained_run, tmp_path / "run")


def train(content, tmp_path):
    """``offrl train`` in a process of its own: its status, the run folder, what it printed."""
    (tmp_path / "config.json").write_text(json.dumps(content))
    child = os.fork()
    if child == 0:
        os.dup2(os.open(tmp_path / "said", os.O_CREAT | os.O_WRONLY), 1)
        os._exit(main(["train", "--config", str(tmp_path / "config.json")]))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, next((tmp_path / "runs/test").glob("2*")), (tmp_path / "said").read_text()


ONLINE = {
    "algo_name": "ppo",
    "experiment": {"env": "toy_env:Toy-v0", "rollout": {"enabled": False}},
    "train": {"cuda": False, "num_steps": 60, "online": {"collect_steps": 20, "horizon": 10}},
}


@pytest.mark.slow
def test_a_status_of_0_is_no_finished_training(tmp_path, monkeypatch, capsys):
    """An environment ends the process, as if all were well."""
    content = merge(ONLINE, {"train": {"output_dir": str(tmp_path / "runs")}})
    content = merge(content, {"experiment": {"epoch_every_n_steps": 20}})
    with monkeypatch.context() as patch:
        patch.setattr(ToyEnv, "_have_trouble", lambda env: os._exit(0))
        status, run, said = train(content, tmp_path)
    assert status == 0 and "finished" not in said
    assert not Run(run).is_finished and run_facts(run)["status"] == "not finished"
    assert main(["train", "--resume", str(run)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("finished:")
    assert Run(run).is_finished and run_facts(run)["resume"] is None
    assert main(["train", "--resume", str(run)]) == 0
    assert capsys.readouterr().out.startswith("finished:")


def test_without_its_mark_the_records_of_a_run_are_not_enough(run):
    (config,) = run.glob("config-*.json")
    content = json.loads(config.read_text())
    assert Run(run).is_finished and content["meta"]["provenance"].pop("finished")
    config.write_text(json.dumps(content))  # as of earlier versions
    assert Run(run).is_finished
    for mark in (0, 1):  # it has not come to its end, or to that of a shorter training
        marked = merge(content, {"meta": {"provenance": {"finished": mark}}})
        config.write_text(json.dumps(marked))
        assert not Run(run).is_finished


@pytest.mark.parametrize("key", ["train", "experiment", "train.num_epochs"])
def test_a_config_that_lacks_what_is_read_is_said(run, key, capsys):
    (config,) = run.glob("config-*.json")
    config.write_text(json.dumps(without(json.loads(config.read_text()), key.split("."))))
    for command in (["info", str(run)], ["report", str(run), "--output", str(run / "report")]):
        assert main(command) == 1
        assert f"{config}: lacks" in (said := capsys.readouterr().err) and key in said


KINDS = {
    "train.seed": [],
    "train.num_epochs": "many",
    "train.data": [5],
    "experiment.name": None,
    "experiment.rollout.enabled": "no",
}


@pytest.mark.parametrize("key", KINDS)
def test_a_config_of_other_kinds_is_said(run, key, capsys):
    (config,) = run.glob("config-*.json")
    content = merge(json.loads(config.read_text()), nested(key, KINDS[key]))
    config.write_text(json.dumps(content))
    for command in (["info", str(run)], ["report", str(run), "--output", str(run / "report")]):
        assert main(command) == 1
        assert f"{config}: damaged: {key}; put it back" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["metrics.jsonl", "config-*.json"])
def test_a_pipe_is_not_waited_for(run, name, capsys):
    (path,) = run.glob(name)
    path.unlink()
    os.mkfifo(path)
    for command in (["info", str(run)], ["report", str(run), "--output", str(run / "report")]):
        assert main(command) == 1
        assert f"{path} is no regular file" in capsys.readouterr().err


def test_a_finished_run_whose_log_is_lost_is_said(run, capsys):
    (run / "metrics.jsonl").unlink()
    assert main(["info", str(run)]) == 1
    assert f"wrong: {run}/metrics.jsonl: lacks records" in capsys.readouterr().out


def test_a_folder_that_may_not_be_read_is_said(run, capsys):
    import offrl.data.info  # noqa: F401, as nobody may not be allowed to

    assert main(["info", str(run)]) == 0
    capsys.readouterr()
    user = os.geteuid()
    run.chmod(0)
    os.seteuid(user or 65534)  # root may read all
    try:
        status = main(["info", str(run)])
    finally:
        os.seteuid(user)
        run.chmod(0o700)
    said = capsys.readouterr().err
    assert status == 1 and "Permission denied" in said and str(run) in said
    assert said.startswith("offrl: error: ") and said.count("\n") == 1


GARBAGE = {
    "bytes": lambda records: bytes(range(256)) * 20,
    "no numbers": lambda records: [r | {"logs": {}} for r in records],
    "numbers that are none": lambda records: [
        r | {"logs": dict.fromkeys(r["logs"], float("nan"))} for r in records
    ],
    "a test without its interval": lambda records: [
        *(r for r in records if r["type"] != "test"),
        records[-1] | {"type": "test", "logs": {"Success_Rate": True}},
    ],
    "brackets": lambda records: b"[" * 100_000,
    "numbers beyond all": lambda records: [
        r | {"logs": dict.fromkeys(r["logs"], 10**400)} for r in records
    ],
    "places that are no text": lambda records: [r | {"env": [1]} for r in records],
    "a step beyond all": lambda records: [r | {"step": 1e300} for r in records],
}


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_finished_log_that_is_garbage_is_not_finished(run, garbage):
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    made = GARBAGE[garbage](records)
    if not isinstance(made, bytes):
        made = "".join(f"{json.dumps(record)}\n" for record in made).encode()
    (run / "metrics.jsonl").write_bytes(made)
    facts = run_facts(run)
    assert facts["resume"] and facts["status"] == "not finished"
    (result,) = results_of([run])
    assert result.final is None and "--resume" in result.repeat


@pytest.mark.parametrize(
    "damage",
    ["x", [1], {"packages": 3}, {"packages": []}, {"git_commit": 5}, {"dataset_fingerprint": [1]}],
)
def test_damaged_provenance_is_left_out_which_is_said(run, caplog, damage):
    (config,) = run.glob("config-*.json")
    content = json.loads(config.read_text())
    content["meta"]["provenance"] = damage
    config.write_text(json.dumps(content))
    (result,) = results_of([run])
    assert result.final and f"{config}: meta.provenance is damaged" in caplog.text
    config.write_text(json.dumps(content | {"meta": damage}))
    assert results_of([run])[0].commit == ""
