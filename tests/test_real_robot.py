"""``examples/record_real_robot.py``, driven through a terminal as a person does."""

import os
import pty
import re
import runpy
import select
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import programs
import pytest
from conftest import ROOT

from offrl import Trainer, config_factory
from offrl.__main__ import main
from offrl.data.formats.hdf5 import DemoFile

EXAMPLE = ROOT / "examples/record_real_robot.py"


class Terminal:
    """The example in a pseudo-terminal."""

    def __init__(self, path):
        self.end, child = pty.openpty()
        self.process = programs.Popen(
            [sys.executable, str(EXAMPLE), "--output", str(path)],
            stdin=child,
            stdout=child,
            stderr=child,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        os.close(child)
        self.text = ""

    def until(self, words, seconds=60):
        """Read until these words come; what came before them."""
        end = time.monotonic() + seconds
        while words not in self.text:
            assert time.monotonic() < end, f"{words!r} did not come: {self.text!r}"
            if select.select([self.end], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self.end, 4096).decode()
                except OSError:  # the other end is closed
                    raise AssertionError(f"{words!r} did not come: {self.text!r}") from None
        before, _, self.text = self.text.partition(words)
        return before

    def press(self, key):
        os.write(self.end, key.encode())

    def episode(self, seconds, key):
        self.until("space: start")
        self.press(" ")
        self.until("recording")
        time.sleep(seconds)
        self.press(key)

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.end)


@pytest.fixture
def start(tmp_path):
    terminals = []

    def make(path):
        terminals.append(Terminal(path))
        return terminals[-1]

    yield make
    for terminal in terminals:
        terminal.close()


@pytest.mark.slow
def test_episodes_are_labelled_discarded_resumed_and_trained_on(start, tmp_path):
    path = tmp_path / "robot.hdf5"
    terminal = start(path)
    terminal.until("0 episodes are recorded")
    terminal.episode(1.5, "s")
    terminal.until("demo_0: ")
    terminal.episode(0.4, "xd")  # a key of no meaning changes nothing
    assert re.search(r"discarded \d+ steps", terminal.until("episode 1"))
    terminal.text = "episode 1" + terminal.text
    terminal.episode(1.5, "f")
    assert "failure" in terminal.until("episode 2")
    terminal.text = "episode 2" + terminal.text
    terminal.until("space: start")
    terminal.press(" ")
    terminal.until("recording")
    time.sleep(0.3)
    os.kill(terminal.process.pid, signal.SIGKILL)
    assert terminal.process.wait() == -signal.SIGKILL and not path.exists()

    terminal = start(path)
    terminal.until("2 episodes are recorded")
    terminal.episode(1.5, "s")
    terminal.until("demo_2: ")
    terminal.until("q: finish")
    terminal.press("q")
    assert terminal.process.wait(timeout=30) == 0
    assert [file.name for file in tmp_path.iterdir()] == ["robot.hdf5"]

    with h5py.File(path) as file:
        labels = [bool(file[f"data/demo_{i}"].attrs["success"]) for i in range(3)]
        ends = [file[f"data/demo_{i}/rewards"][-1] for i in range(3)]
        seconds = file["data/demo_0/seconds"][()]
        assert file["data"].attrs["total"] == sum(
            len(file[f"data/demo_{i}/actions"]) for i in range(3)
        )
    assert labels == [True, False, True] and ends == [1, 0, 1]
    assert 5 <= len(seconds) <= 17 and abs(np.median(np.diff(seconds)) - 0.1) < 0.02
    images = DemoFile(path).trajectory("demo_0")["obs/camera_image"]
    assert images.shape[1:] == (96, 96, 3) and len(np.unique(images)) > 10
    assert main(["validate", str(path)]) == 0
    config = config_factory(
        "bc",
        {
            "experiment": {"epoch_every_n_steps": 3, "rollout": {"enabled": False}},
            "train": {
                "data": str(path),
                "output_dir": str(tmp_path / "runs"),
                "num_epochs": 1,
                "batch_size": 4,
                "cuda": False,
            },
            "observation": {"modalities": {"obs": {"low_dim": ["joints", "target"]}}},
        },
    )
    losses = [r["logs"]["Loss"] for r in Trainer(config)() if r["type"] == "train"]
    assert np.isfinite(losses).all() and losses

    refused = programs.run(
        [sys.executable, str(EXAMPLE), "--output", str(path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert refused.returncode == 1
    assert refused.stderr == "error: keys are read from a terminal; run this in one\n"


class Slow:
    """A robot whose camera takes two and a half periods; it counts what was sent."""

    sent = 0

    def observe(self):
        time.sleep(0.25)
        return {"sent": np.array([self.sent])}

    def command(self):
        return np.array([0.5])

    def send(self, action):
        self.sent += 1


class After:
    """A key that comes after so many seconds."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def pressed(self, seconds):
        time.sleep(seconds)
        return "s" if time.monotonic() > self.end else ""


def test_a_robot_that_does_not_keep_up_is_told_and_not_hurried(capsys):
    record_episode = runpy.run_path(str(EXAMPLE))["record_episode"]
    trajectory, key, latest = record_episode(Slow(), After(1.1))
    assert key == "s" and 0.14 < latest < 0.3
    assert np.diff(trajectory["seconds"]).min() > 0.24
    # Each observation is that before its action.
    np.testing.assert_array_equal(trajectory["obs/sent"][:, 0], range(len(trajectory["actions"])))
    said = capsys.readouterr().out
    assert re.search(r"\d of \d steps began late, by [1-9]\d\d ms at most", said)
