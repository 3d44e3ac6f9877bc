"""Several processes of one training, as ``torchrun`` starts them or by what it gives them."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import programs
import pytest
import torch
from conftest import ROOT, SMALL, write_demos
from seldom_used import three_steps
from toy_env import toy_args

from offrl.__main__ import main
from offrl.checkpoint import read_checkpoint
from offrl.reports.records import read_records
from offrl.tree import merge

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
TRAIN = [*TORCHRUN, str(ROOT / "train.py")]
# What several processes cannot do, steps of a toy, and a training.
REFUSED_AND_TRAINED = """
import json
import sys
from seldom_used import three_steps
from offrl.__main__ import main
beside = "experiment.rollout.in_background=true"
for change in ("train.batch_size=7", "train.num_steps=100", beside):
    assert main([*sys.argv[1:], "--set", change, "--name", "refused"]) == 1
for accumulate in (1, 2):
    print(f"steps in {accumulate}:", json.dumps(three_steps(accumulate)))
sys.exit(main([*sys.argv[1:], "--name", "two"]))
"""
PATHS = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
ENVIRON = os.environ | {"PYTHONPATH": os.pathsep.join(PATHS)}  # for the toy environment
TWENTY_STEPS = {
    "algo_name": "bc",
    "algo": {"actor_layer_dims": [64, 64]},
    "experiment": {
        "validate": True,
        "render_video": False,
        "rollout": {
            **{"enabled": True, "n": 5, "horizon": 4, "rate": 4, "num_workers": 1},
            "test_last": True,
        },
    },
    "train": {
        "num_epochs": 4,
        "batch_size": 16,
        "hdf5_filter_key": "train",
        "hdf5_validation_filter_key": "valid",
    },
}
# With noise of its own in each process.
NOISY = {
    "algo": {"vae": {"enabled": True}},
    "experiment": {"epoch_every_n_steps": 500, "rollout": {"enabled": False}},  # seconds each
}


def write_config(folder, overrides=None):
    """A config file, with its data and its runs beside it."""
    env_args = json.dumps(toy_args())
    data = write_demos(folder / "demos.hdf5", lengths=(25, 21, 30, 24), env_args=env_args)
    paths = {"train": {"data": str(data), "output_dir": str(folder / "runs")}}
    content = merge(merge(merge(SMALL, TWENTY_STEPS), paths), overrides or {})
    (folder / "config.json").write_text(json.dumps(content))
    return str(folder / "config.json")


def the_run(folder, name):
    (run,) = (folder / "runs" / name).iterdir()
    return run


def weights(run):
    return read_checkpoint(run / "last.pth")["model"]["nets"]


def assert_close(first, second):
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], rtol=0, atol=1e-6)


def logged(run):
    """The records without times; episodes end in an order of their own."""
    found = [record for record in read_records(run / "metrics.jsonl")[0] if record.pop("time")]
    found = [record for record in found if record["type"] != "epoch"]
    return sorted(found, key=lambda r: (r["epoch"], r["type"], r["logs"].get("Seed", 0)))


def start(*command):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    popen = subprocess.Popen if "torch.distributed.run" in command else programs.Popen
    return popen(command, env=ENVIRON, **pipes)


def start_ranks(number, *command):
    """Processes of one training with what ``torchrun`` gives them, without its own start."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # free in a moment
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "tests"}
    world |= {"WORLD_SIZE": str(number), "LOCAL_WORLD_SIZE": str(number)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return [
        programs.Popen(
            command, env=ENVIRON | world | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, **pipes
        )
        for rank in range(number)
    ]


def output_of(process, fails=False):
    """What a process has said when it has come to its end."""
    output, _ = process.communicate(timeout=300)
    assert (process.returncode != 0) == fails, output
    return output


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a training by one process, ``one``, and by two, whose output it comes with."""
    folder = tmp_path_factory.mktemp("trained")
    config = write_config(folder)
    assert main(["train", "--config", config, "--name", "one"]) == 0
    script = folder / "twice.py"
    script.write_text(REFUSED_AND_TRAINED)
    processes = start_ranks(2, sys.executable, str(script), "train", "--config", config)
    return folder, "".join(map(output_of, processes))


@pytest.mark.slow
def test_two_processes_reach_the_weights_of_one(trained):
    one, two = (the_run(trained[0], name) for name in ("one", "two"))
    assert read_checkpoint(two / "last.pth")["variable_state"]["step"] == 20
    assert_close(weights(one), weights(two))


@pytest.mark.slow
def test_two_processes_log_and_evaluate_what_one_does(trained):
    one, two = (the_run(trained[0], name) for name in ("one", "two"))
    kinds = [record["type"] for record in logged(one)]
    assert kinds.count("valid") == 4 and kinds.count("test_episode") == 5
    for first, second in zip(logged(one), logged(two), strict=True):
        assert first | {"logs": 0} == second | {"logs": 0}
        assert first["logs"] == pytest.approx(second["logs"], rel=1e-5, abs=1e-6)


@pytest.mark.slow
def test_the_first_process_alone_writes(trained):
    folder, output = trained
    assert [path.name for path in (folder / "runs/two").iterdir()] == [the_run(folder, "two").name]
    assert output.count("result:") == output.count("learning curve:") == 1


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 2])
def test_sums_begin_while_gradients_come_and_equal_those_of_one_process(trained, accumulate):
    lines = [x for x in trained[1].splitlines() if x.startswith(f"steps in {accumulate}:")]
    assert len(lines) == 2 and lines[0] == lines[1]
    events, weights, counts = json.loads(lines[0].partition(":")[2])
    step = ["last", "seldom", "first"] * (accumulate - 1)
    step += ["last", "sum", "seldom", "sum", "first", "sum", "end"]
    # A layer without a gradient lets its sum, and those behind it, wait for all others.
    without = ["last", "first"] * (accumulate - 1) + ["last", "sum", "first", "sum", "sum", "end"]
    assert events == [*step, *without, *step]
    _, own_weights, own_counts = three_steps(1)
    assert counts == own_counts == [3, 2, 3]
    torch.testing.assert_close(torch.tensor(weights), torch.tensor(own_weights), rtol=0, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "command"),
    [
        pytest.param("one", TRAIN, marks=pytest.mark.thorough),
        ("two", [sys.executable, TRAIN[-1]]),
    ],
)
def test_a_run_is_resumed_by_another_number_of_processes(trained, tmp_path, before, command):
    whole = the_run(trained[0], before)
    run = shutil.copytree(whole, tmp_path / "run")
    for path in [run / "last.pth", run / "previous.pth", *run.glob("models/model_epoch_[34]-*")]:
        path.unlink()
    output = output_of(start(*command, "--resume", str(run)))
    assert output.count("step 10: steps 11 to 20 are repeated") == 1
    assert [record["epoch"] for record in logged(run)] == [r["epoch"] for r in logged(whole)]
    assert_close(weights(run), weights(whole))


@pytest.mark.slow
def test_what_several_processes_cannot_do_is_refused(trained):
    folder, output = trained
    assert "train.batch_size: 7 windows are no equal parts for 2 processes" in output
    assert "train.num_steps: acting needs one process" in output
    assert "experiment.rollout.in_background: not with torchrun; set it to false" in output
    assert not (folder / "runs/refused").exists()


def wait_for(words, folder, name, process):
    """Wait until they stand in the file ``name`` of the only run in a folder."""
    deadline = time.monotonic() + 300
    while not any(words in path.read_text() for path in folder.glob(f"2*/{name}")):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def process_of_rank(rank, launcher):
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    wanted = f"RANK={rank}".encode()
    (pid,) = (p for p in children if wanted in Path(f"/proc/{p}/environ").read_bytes().split(b"\0"))
    return int(pid)


@pytest.mark.thorough
def test_a_killed_and_a_stopped_training_go_on_with_the_same_bits(tmp_path):
    config = write_config(tmp_path, NOISY)
    output_of(start(*TRAIN, "--config", config, "--name", "whole"))
    killed = start(*TRAIN, "--config", config, "--name", "killed")
    wait_for("train  Opt", tmp_path / "runs/killed", "logs/log.txt", killed)
    os.kill(process_of_rank(1, killed), signal.SIGUSR1)
    wait_for("saved at step", tmp_path / "runs/killed", "logs/log.txt", killed)
    os.kill(process_of_rank(1, killed), signal.SIGKILL)
    output = output_of(killed, fails=True)
    assert "another process of this training has ended" in output and "go on with:" in output

    run = the_run(tmp_path, "killed")
    stopped = start(*TRAIN, "--resume", str(run))
    wait_for('"epoch", "epoch": 2,', run.parent, "metrics.jsonl", stopped)
    stopped.send_signal(signal.SIGTERM)
    output = output_of(stopped, fails=True)
    assert output.count("offrl: interrupted (SIGTERM)") == 2, output
    assert 1000 <= read_checkpoint(run / "last.pth")["variable_state"]["step"] < 2000

    output_of(start(*TRAIN, "--resume", str(run)))
    first, second = weights(the_run(tmp_path, "whole")), weights(run)
    assert all(torch.equal(first[name], second[name]) for name in first)
