"""Signals to real trainings, in processes of their own."""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time

import h5py
import programs
import pytest
from comparison import assert_same_run, records
from conftest import ROOT, SMALL
from toy_env import toy_args

from offrl.checkpoint import read_checkpoint
from offrl.tree import merge

pytestmark = pytest.mark.slow

TRAIN = [sys.executable, str(ROOT / "train.py")]
LONG = {
    "algo_name": "bc",
    "algo": {"actor_layer_dims": [32, 32], "vae": {"enabled": True}},  # which draws latents
    "experiment": {
        "epoch_every_n_steps": 150,
        "validate": True,
        "logging": {"log_tb": False},
    },
    "train": {"num_epochs": 6, "hdf5_validation_filter_key": "valid", "seq_length": 3},
}
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def heed():
    """As shells make the processes in their background ignore interrupts."""
    for number in STOPS:
        signal.signal(number, signal.SIG_DFL)


def ignore_hangups():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


@pytest.fixture
def config(tmp_path, demos):
    """A function: overrides -> a config file."""

    def write(overrides=None, name="long.json"):
        paths = {"train": {"data": str(demos), "output_dir": str(tmp_path / "runs")}}
        content = merge(merge(merge(SMALL, LONG), paths), overrides or {})
        (tmp_path / name).write_text(json.dumps(content))
        return str(tmp_path / name)

    return write


def start(*arguments, popen=programs.Popen, **options):
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return popen([*TRAIN, *arguments], **pipes, **options)


def really_start(*arguments, preexec_fn=heed):
    """A process that is started anew, and named train.py."""
    return start(*arguments, popen=subprocess.Popen, preexec_fn=preexec_fn)


def run_of(tmp_path, name):
    found = list((tmp_path / "runs" / name).glob("2*"))
    return found[0] if found else None


def wait_until(condition, process):
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def has_logged(tmp_path, name, *words):
    def condition():
        run = run_of(tmp_path, name)
        log = run / "metrics.jsonl" if run else None
        return log and log.exists() and all(word in log.read_text() for word in words)

    return condition


def progress(run):
    return read_checkpoint(run / "last.pth")["variable_state"]


def test_three_signals_stop_a_training_that_goes_on_to_the_same_bits(config, tmp_path):
    """Each comes twice, as ``timeout`` sends it to the process and then to its group."""
    logged = config({"experiment": {"logging": {"log_tb": True}}})
    whole = start("--config", logged, "--name", "whole")
    process = start("--config", logged, "--name", "stopped")
    steps = []
    for number, epoch in ((signal.SIGTERM, 1), (signal.SIGHUP, 2), (signal.SIGINT, 3)):
        wait_until(has_logged(tmp_path, "stopped", f'"epoch", "epoch": {epoch},'), process)
        time.sleep(0.05)
        process.send_signal(number)
        time.sleep(0.02)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        run = run_of(tmp_path, "stopped")
        assert process.returncode == 128 + number
        assert f"offrl train --resume {run}" in errors and "Traceback" not in errors
        steps.append(progress(run)["step"])
        process = start("--resume", str(run))
    assert process.wait() == 0 and whole.wait() == 0
    assert any(step % 150 for step in steps), "no epoch was stopped in its midst"
    assert_same_run(run, run_of(tmp_path, "whole"))


def test_sigusr1_saves_and_the_training_goes_on(config, tmp_path):
    process = start("--config", config(), "--name", "saved")
    wait_until(has_logged(tmp_path, "saved", '"epoch", "epoch": 1,'), process)
    run = run_of(tmp_path, "saved")

    def is_saved_within_an_epoch():
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.05)
        return progress(run)["step"] % 150

    wait_until(is_saved_within_an_epoch, process)
    assert (run / "previous.pth").exists()
    assert process.wait() == 0
    assert progress(run)["step"] == 900


@pytest.mark.thorough
def test_a_schedulers_signal_to_every_process_of_a_job(config, tmp_path):
    """Those that read data ahead leave it to the training."""
    streamed = {"train": {"hdf5_cache_mode": None, "num_data_workers": 1}}
    process = start("--config", config(streamed), "--name", "job", start_new_session=True)
    wait_until(has_logged(tmp_path, "job", '"epoch", "epoch": 1,'), process)
    os.killpg(process.pid, signal.SIGUSR1)
    time.sleep(0.2)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 143 and "Traceback" not in errors
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    assert start("--resume", str(run_of(tmp_path, "job"))).wait() == 0
    whole = start("--config", config(), "--name", "whole")
    assert whole.wait() == 0
    assert_same_run(run_of(tmp_path, "job"), run_of(tmp_path, "whole"))


def evaluated(demos, **trouble):
    with h5py.File(demos, "r+") as file:
        file["data"].attrs["env_args"] = json.dumps(toy_args(**trouble))
    rollout = {"enabled": True, "n": 4, "horizon": 50, "rate": 1, "num_workers": 2}
    return {"experiment": {"rollout": rollout, "render_video": False}}


def test_a_stop_does_not_wait_for_a_simulator_that_hangs(config, tmp_path, demos):
    environment = evaluated(demos, trouble={str(1_000_000 + i): "hang" for i in range(4)})
    process = start("--config", config(environment), "--name", "hung", env=with_tests())
    wait_until(has_logged(tmp_path, "hung", '"valid", "epoch": 1,'), process)
    time.sleep(2)  # the simulators hang
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143 and time.monotonic() - begun < 20
    state = progress(run_of(tmp_path, "hung"))
    assert state["pending"]["type"] == "epoch" and state["epoch"] == 1


def test_a_training_that_hangs_in_a_step_ends_at_the_second_signal(tmp_path, demos, config):
    module = tmp_path / "hanging.py"
    module.write_text(
        "import time\n"
        "from offrl.algos.bc import BC, BCConfig\n"
        "from offrl import register_algo\n"
        "class HangingConfig(BCConfig):\n"
        "    ALGO_NAME = 'hanging'\n"
        "@register_algo(HangingConfig)\n"
        "class Hanging(BC):\n"
        "    def update(self, batch):\n"
        "        print('hanging', flush=True)\n"
        "        time.sleep(1000)\n"
    )
    process = programs.Popen(
        [*TRAIN, "--config", config(), "--set", "algo_name=hanging.hanging", "--name", "hangs"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert process.stdout.readline() == "hanging\n"
    process.send_signal(signal.SIGTERM)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 143


def test_the_handlers_are_the_programs(small_config, monkeypatch):
    from offrl.algos.bc import BC
    from offrl.training import train

    def handlers():
        return [signal.getsignal(number) for number in (*STOPS, signal.SIGUSR1)]

    before, seen, update = handlers(), [], BC.update
    monkeypatch.setattr(BC, "update", lambda *args: seen.append(handlers()) or update(*args))
    train(small_config())
    assert seen == [before] * 15


def with_tests():
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}


@pytest.mark.thorough
@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
def test_the_clusters_script_of_the_docs_submits_itself_again(config, tmp_path):
    page = (ROOT / "docs/reliability.md").read_text()
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", page, re.S)
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    submitted = tmp_path / "submitted"
    for name, body in {
        "offrl": f'exec {" ".join(TRAIN)} "${{@:2}}"',
        "sbatch": f'echo "$@" >> {submitted}',
        "srun": 'exec "$@"',
    }.items():
        (bin_folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (bin_folder / name).chmod(0o755)
    (tmp_path / "job.sh").write_text(script)
    environ = os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}"}
    environ |= {"CONFIG": config(), "NAME": "job", "OUTPUT": str(tmp_path / "runs")}

    def submit():
        return subprocess.Popen(
            ["bash", "job.sh"],
            cwd=tmp_path,
            env=environ,
            preexec_fn=heed,
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    job = submit()
    wait_until(has_logged(tmp_path, "job", '"epoch", "epoch": 2,'), job)
    job.send_signal(signal.SIGTERM)
    _, output = job.communicate(timeout=60)
    assert submitted.exists(), output
    assert progress(run_of(tmp_path, "job"))["epoch"] < 6
    _, output = submit().communicate(timeout=100)  # what the scheduler does with it
    assert progress(run_of(tmp_path, "job"))["step"] == 900, output
    assert len(submitted.read_text().splitlines()) == 1
    assert records(run_of(tmp_path, "job"))[-1]["epoch"] == 6


@pytest.mark.thorough
def test_the_lock_of_a_killed_run_ends_with_it(config, tmp_path):
    """Those that read data ahead hold none."""
    streamed = {"train": {"hdf5_cache_mode": None, "num_data_workers": 1, "num_epochs": 5}}
    streamed["experiment"] = {"epoch_every_n_steps": 30}
    process = start("--config", config(streamed), "--name", "locked")
    wait_until(has_logged(tmp_path, "locked", '"epoch", "epoch": 1,'), process)
    process.kill()
    process.wait()
    resumed = start("--resume", str(run_of(tmp_path, "locked")))
    _, errors = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, errors


def test_a_program_that_ends_while_it_reads_data_ends(tmp_path, demos):
    script = (
        "from offrl.data.loader import BatchLoader\n"
        "from offrl.data.sequence import SequenceDataset\n"
        f"data = SequenceDataset({str(demos)!r}, ['position'], hdf5_cache_mode=None)\n"
        "batches = iter(BatchLoader(data, 2, seed=0, num_workers=1))\n"
        "next(batches)\n"
    )
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = programs.run([sys.executable, "-c", script], env=environ, timeout=60, check=False)
    assert done.returncode == 0


@pytest.mark.thorough
def test_the_first_checkpoint_is_finished_when_a_signal_comes(config, tmp_path, monkeypatch):
    """However early it comes, there is a run that can be gone on with, or none."""
    for delay in (0.0, 0.02, 0.05, 0.1):
        process = start("--config", config(), "--name", f"early{delay}")
        parent = tmp_path / "runs" / f"early{delay}"
        wait_until(lambda parent=parent: parent.exists() and list(parent.iterdir()), process)
        time.sleep(delay)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 143 and "Traceback" not in errors, errors
        for run in parent.glob("2*"):
            assert progress(run)["step"] >= 0
        assert not list(parent.glob(".*"))


def test_a_terminal_that_goes_away_stops_the_training(config, tmp_path):
    endless = config({"train": {"num_epochs": 100_000}})
    pid, terminal = pty.fork()
    if pid == 0:
        heed()
        os.execv(sys.executable, [*TRAIN, "--config", endless, "--name", "terminal"])
    is_under_way = has_logged(tmp_path, "terminal", '"epoch", "epoch": 1,')
    deadline = time.monotonic() + 120
    while not is_under_way():
        assert time.monotonic() < deadline
        if select.select([terminal], [], [], 0.1)[0]:
            os.read(terminal, 4096)
    os.close(terminal)
    ended = 0
    while not ended:
        assert time.monotonic() < deadline, os.kill(pid, signal.SIGKILL)
        ended, status = os.waitpid(pid, os.WNOHANG)
        time.sleep(0.05)
    assert os.waitstatus_to_exitcode(status) == 129
    assert progress(run_of(tmp_path, "terminal"))["step"] > 150


def test_a_hangup_is_ignored_below_nohup_and_a_reader_of_data_that_is_killed_is_one_line(
    config, tmp_path
):
    streamed = {"train": {"hdf5_cache_mode": None, "num_data_workers": 1, "num_epochs": 1000}}
    streamed["experiment"] = {"epoch_every_n_steps": 30}
    arguments = ["--config", config(streamed), "--name", "reader"]
    process = really_start(*arguments, preexec_fn=ignore_hangups)
    wait_until(has_logged(tmp_path, "reader", '"epoch", "epoch": 1,'), process)
    process.send_signal(signal.SIGHUP)
    log = run_of(tmp_path, "reader") / "metrics.jsonl"
    later = log.read_text().count('"epoch", "epoch": ') + 5
    wait_until(has_logged(tmp_path, "reader", f'"epoch", "epoch": {later},'), process)
    children = subprocess.run(
        ["ps", "--no-headers", "-o", "pid,args", "--ppid", str(process.pid)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for line in children.splitlines():
        pid, arguments = line.split(maxsplit=1)
        if "train.py" in arguments:
            os.kill(int(pid), signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "Traceback" not in errors, errors
    assert "a process that reads data ended (killed by signal 9)" in errors
    assert "offrl train --resume" in errors
