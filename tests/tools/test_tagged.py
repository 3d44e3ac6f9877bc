"""``train.model_dest``: checkpoints and the config file, named by the user's own commit."""

import json
import os
import signal
import subprocess
import sys
import time

import programs
import pytest
import torch
from conftest import ROOT

from offrl import policy_from_checkpoint
from offrl.checkpoint import read_checkpoint
from offrl.training import RunFolder, checkpointer, launch

CONFIG = """\
# as given, with a comment\r
algo_name: ddpg
experiment:
  {name: control, env: Pendulum-v1, epoch_every_n_steps: 200, save: {every_n_epochs: 1},
   rollout: {enabled: false}, logging: {log_tb: false}}
train: {num_steps: 600, seed: 3, model_dest: models, online: {random_steps: 50}}
algo: {actor: {layer_dims: [8]}, critic: {layer_dims: [8]}}
"""
NAMES = ["agent-000000200", "agent-000000400", "agent-000000600", "agent-final", "control-ddpg"]


def git(folder, *arguments):
    own = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    done = subprocess.run(
        ["git", *own, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A repository of the user's, with one commit."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "control-ddpg.yaml").write_bytes(CONFIG.encode())
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "begin")
    return tmp_path


def start(folder, *arguments):
    return programs.Popen(
        [sys.executable, "-m", "offrl", "train", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def train(folder, *arguments):
    program = start(folder, *arguments or ("--config", "control-ddpg.yaml"))
    said = program.communicate(timeout=300)[0]
    return program.returncode, said


def stems(folder):
    return sorted(path.stem.rsplit("-", 1)[0] for path in folder.iterdir())


@pytest.mark.slow
def test_files_are_named_by_the_commit_of_the_users_repository(folder):
    sha = git(folder, "rev-parse", "HEAD")[:8]
    status, said = train(folder)
    assert status == 0, said
    models = folder / "models"
    assert stems(models) == NAMES
    assert {path.stem.rsplit("-", 1)[1] for path in models.iterdir()} == {sha}
    assert (models / f"control-ddpg-{sha}.yaml").read_bytes() == CONFIG.encode()
    final = models / f"agent-final-{sha}.pth"
    policy, content = policy_from_checkpoint(final)
    assert content["variable_state"]["step"] == 600 and content["config"]
    (run,) = folder.glob("runs/control/*")
    last = read_checkpoint(run / "last.pth")["model"]["nets"]
    assert all(torch.equal(x, content["model"]["nets"][key]) for key, x in last.items())
    assert not list(run.glob(f"models/*{sha}*")), "run folders keep the package's provenance"
    # Nothing is overwritten: the same once more is refused, before anything is written.
    before = {path: path.stat().st_mtime_ns for path in models.iterdir()}
    status, said = train(folder)
    assert status == 1 and "exists; move it, or set another train.model_dest" in said
    assert {path: path.stat().st_mtime_ns for path in models.iterdir()} == before
    assert len(list(folder.glob("runs/control/*"))) == 1


@pytest.mark.thorough
def test_a_killed_training_goes_on_from_elsewhere_with_the_same_files(folder, tmp_path_factory):
    program = start(folder, "--config", "control-ddpg.yaml", "--set", "train.num_steps=20000")
    models = folder / "models"
    end = time.monotonic() + 120
    while not list(models.glob("agent-*400-*.pth")):
        assert program.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    os.kill(program.pid, signal.SIGKILL)
    program.communicate()
    (run,) = folder.glob("runs/control/*")
    (config,) = run.glob("config-*.json")
    content = json.loads(config.read_text())
    content["train"]["num_steps"] = 1400
    config.write_text(json.dumps(content))
    reached = read_checkpoint(run / "last.pth")["variable_state"]["step"]
    # A file that is gone comes back: the run folder remembers it.
    (given,) = models.glob("control-ddpg-*")
    given.unlink()
    git(folder, "commit", "-q", "--allow-empty", "-m", "later")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    status, said = train(elsewhere, "--resume", str(run))
    assert status == 0, said
    assert given.read_bytes() == CONFIG.encode()
    assert not list(elsewhere.iterdir())
    last = max(reached, 1400)
    assert stems(models) == sorted(
        [*(f"agent-{step:09d}" for step in range(200, last + 1, 200)), "agent-final", NAMES[-1]]
    )


def test_a_kill_before_the_first_step_keeps_the_given_file_alone(
    small_config, tmp_path, monkeypatch
):
    def kill(trainer):
        assert trainer.run  # which appears
        raise KeyboardInterrupt

    (tmp_path / "mine.json").write_text("{}")
    config = small_config({"train": {"model_dest": str(tmp_path / "models")}})
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(launch, "Logger", kill)
        launch.train(config, config_file=tmp_path / "mine.json")
    (run,) = tmp_path.glob("runs/test/2*")
    names = checkpointer.TaggedNames(tmp_path / "models")
    half = names.folder / f".agent-000000005-{names.sha}.7.partial.pth"
    half.write_text("half")
    opened, config = RunFolder.open(run)
    launch.train(config, opened)
    assert names.config(tmp_path / "mine.json").read_text() == "{}" and not half.exists()


@pytest.mark.slow
def test_without_a_repository_names_say_so(folder, tmp_path_factory):
    plain = tmp_path_factory.mktemp("plain")
    (plain / "control-ddpg.yaml").write_bytes(CONFIG.encode())
    status, said = train(plain, "--config", "control-ddpg.yaml", "--set", "train.num_steps=200")
    assert status == 0, said
    names = {path.name for path in (plain / "models").iterdir()}
    assert names == {
        "agent-000000200-nogit.pth",
        "agent-final-nogit.pth",
        "control-ddpg-nogit.yaml",
    }


@pytest.mark.thorough
def test_a_solved_training_ends_early_and_completely(folder):
    status, said = train(
        folder,
        *("--config", "control-ddpg.yaml", "--set", "train.num_steps=4000"),
        *("--set", "train.online.solved_return=-1e9", "--set", "train.online.solved_episodes=3"),
    )
    assert status == 0, said
    assert "solved at step 600" in said
    assert "agent-000000600" in stems(folder / "models")
    (run,) = folder.glob("runs/control/*")
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["type"] == "epoch" and records[-1]["step"] == 600
    status, said = train(folder, "--resume", str(run))
    assert status == 0, said
    assert read_checkpoint(run / "last.pth")["variable_state"]["step"] == 600
