"""``offrl play``: a window under Xvfb, or a film."""

import os
import shutil
import subprocess
import sys

import cv2
import programs
import pytest
from conftest import ROOT
from test_teleoperate import Screen

from offrl.online import Agent

CONFIG = {
    "algo_name": "ddpg",
    "experiment": {"env": "Pendulum-v1"},
    "train": {"num_steps": 20},
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    Agent(CONFIG).train(gitsha="12345678", model_dest=folder)
    return folder / "agent-final-12345678.pth"


def play(checkpoint, folder, *arguments, display=None):
    pytest.importorskip("pygame")
    plain = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    return programs.Popen(
        [sys.executable, "-m", "offrl", "play", "--checkpoint", str(checkpoint), *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=plain
        | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
        | ({"DISPLAY": display} if display else {}),
    )


@pytest.mark.slow
def test_without_a_display_it_films_and_overwrites_nothing(checkpoint, tmp_path):
    for name in ("agent-final-12345678.mp4", "agent-final-12345678-2.mp4"):
        program = play(checkpoint, tmp_path, "--episodes", "2", "--horizon", "15")
        said, problems = program.communicate(timeout=120)
        assert program.returncode == 0, problems
        assert said.splitlines()[-1] == name and said.count("return") == 3
        assert "filming instead" in problems
        film = cv2.VideoCapture(str(tmp_path / name))
        assert film.get(cv2.CAP_PROP_FRAME_COUNT) == 2 * 16
    program = play(checkpoint, tmp_path, "--video", "agent-final-12345678.mp4")
    assert "exists; choose another name" in program.communicate(timeout=120)[1]
    assert program.returncode == 1


@pytest.mark.slow
def test_with_a_display_it_opens_a_window(checkpoint, tmp_path):
    if shutil.which("Xvfb") is None:
        pytest.skip("there is no Xvfb")
    pytest.importorskip("Xlib")
    screen = Screen()
    try:
        arguments = "--episodes", "3", "--horizon", "200"
        program = play(checkpoint, tmp_path, *arguments, display=screen.name)
        screen.window(program, "offrl play")
        screen.press("Escape")
        said, problems = program.communicate(timeout=60)
        assert program.returncode == 0, problems
        assert "success rate" not in said and not list(tmp_path.iterdir())
    finally:
        screen.close()
