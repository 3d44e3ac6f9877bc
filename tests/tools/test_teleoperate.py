"""``offrl teleoperate``: a real window under Xvfb, and keys that are pressed there."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from conftest import ROOT
from gymnasium.spaces import Box

from offrl.__main__ import main
from offrl.envs import ROBOSUITE_KWARGS, make_env
from offrl.envs.rendering import WINDOW, Operator
from offrl.evaluation import COLLECTION_SEEDS

LIFT = {"env_name": "Lift", "type": 1, "env_kwargs": ROBOSUITE_KWARGS}
# Lift is done as soon as the hand is lower than here: the rest is as it is.
EASY = """
import sys
from robosuite.environments.manipulation.lift import Lift
hand = lambda env: env.sim.data.site_xpos[env.robots[0].eef_site_id["right"]]
Lift._check_success = lambda env: hand(env)[2] < 0.96
from offrl.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


class Screen:
    """An X server, a window in it and its keyboard."""

    def __init__(self):
        read, write = os.pipe()
        self.server = subprocess.Popen(
            ["Xvfb", "-displayfd", str(write), "-screen", "0", "800x640x24", "-nolisten", "tcp"],
            pass_fds=[write],
            stderr=subprocess.DEVNULL,
        )
        os.close(write)
        with open(read) as pipe:
            self.name = f":{pipe.readline().strip()}"
        from Xlib.display import Display

        self.display = Display(self.name)

    def window(self, program, name=WINDOW):
        """Wait until the window shows the scene, and have it take the keys, as a window manager
        would; what the screen then shows."""
        from Xlib import X

        end = time.monotonic() + 60
        while not (found := self._find(self.display.screen().root, name)) or (
            found.get_attributes().map_state != X.IsViewable or len(np.unique(self.pixels())) < 100
        ):
            if program.poll() is not None or time.monotonic() > end:
                program.kill()
                seen = found and found.get_attributes().map_state, len(np.unique(self.pixels()))
                raise AssertionError(f"no window {name!r}, {seen}; {program.communicate()[0]}")
            time.sleep(0.1)
        found.set_input_focus(X.RevertToParent, X.CurrentTime)
        self.display.sync()
        return self.pixels()

    def _find(self, parent, name):
        from Xlib.error import BadWindow

        with suppress(BadWindow):  # one that is closed meanwhile
            for child in parent.query_tree().children:
                found = child if child.get_wm_name() == name else self._find(child, name)
                if found:
                    return found
        return None

    @contextmanager
    def held(self, name):
        from Xlib import XK, X
        from Xlib.ext import xtest

        code = self.display.keysym_to_keycode(XK.string_to_keysym(name))
        xtest.fake_input(self.display, X.KeyPress, code)
        self.display.sync()
        yield
        xtest.fake_input(self.display, X.KeyRelease, code)
        self.display.sync()

    def press(self, name, seconds=0.0):
        with self.held(name):
            time.sleep(seconds)
        time.sleep(1)  # of keys that wait together, a window takes the last one

    def pixels(self):
        from Xlib import X

        image = self.display.screen().root.get_image(0, 0, 800, 640, X.ZPixmap, 0xFFFFFFFF)
        return np.frombuffer(image.data, np.uint8)

    def close(self):
        self.display.close()
        self.server.kill()
        self.server.wait()


@pytest.fixture
def screen():
    if shutil.which("Xvfb") is None:
        pytest.skip("there is no Xvfb")
    pytest.importorskip("Xlib")
    screen = Screen()
    yield screen
    screen.close()


@pytest.fixture
def start(screen):
    started = []

    def run(*arguments):
        program = subprocess.Popen(
            [sys.executable, "-c", EASY, "teleoperate", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=os.environ | {"DISPLAY": screen.name, "PYTHONPATH": str(ROOT)},
        )
        started.append(program)
        return program

    yield run
    for program in started:
        program.kill()
        program.wait()


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.thorough
def test_episodes_driven_by_keys_are_recorded_discarded_and_go_on_after_a_kill(
    screen, start, tmp_path
):
    path, partial = tmp_path / "hand.hdf5", tmp_path / "hand.partial.hdf5"
    program = start("--output", str(path), "--n", "2")
    before = screen.window(program)

    def changed():
        return (screen.pixels() != before).mean()

    screen.press("d", 1)
    until(lambda: changed() > 0.01)  # the arm moves
    assert program.poll() is None
    moved = changed()
    screen.press("BackSpace")  # that one is not kept, and begins once more
    until(lambda: changed() < moved / 2)
    screen.press("space")

    def num_recorded():
        try:
            with h5py.File(partial, locking=False) as file:
                return len(file["data"])
        except (OSError, KeyError):
            return 0

    with screen.held("f"):
        until(lambda: num_recorded() == 1)
    os.kill(program.pid, signal.SIGKILL)
    program.wait()
    assert not path.exists()

    program = start("--output", str(path), "--n", "2")
    screen.window(program)
    with screen.held("f"):
        said = program.communicate(timeout=60)[0]
    assert program.returncode == 0, said
    assert "goes on after 1 demonstrations" in said and "2 demonstrations of Lift" in said
    assert main(["validate", str(path)]) == 0
    assert [file.name for file in tmp_path.iterdir()] == ["hand.hdf5"]

    env = make_env(LIFT)
    with h5py.File(path) as file:
        for i in range(2):
            demo = file[f"data/demo_{i}"]
            obs, _ = env.reset(seed=COLLECTION_SEEDS + i)
            np.testing.assert_allclose(demo["obs/object"][0], obs["object"], atol=1e-6)
            np.testing.assert_array_equal(demo["states"][0], env.get_state()["states"])
            assert demo.attrs["seed"] == COLLECTION_SEEDS + i
            actions = demo["actions"][()]
            assert set(actions[:, 2]) <= {0, -0.5} and actions[:, 2].any()
            assert not actions[:, [0, 1, 3, 4, 5]].any()
            assert actions[-1, 6] == (1, -1)[i]  # a new episode begins with an open gripper
            assert demo["rewards"].shape == demo["dones"].shape == (len(actions),)
            assert demo["dones"][-1] == 1 and not demo["dones"][:-1].any()
            # What was recorded is what the simulator does with these actions.
            env.reset_to({"model": demo.attrs["model_file"], "states": demo["states"][0]})
            for action in actions[:-1]:
                env.step(action)
            apart = np.abs(env.get_state()["states"] - demo["states"][-1])
            assert apart.max() < 1e-3
    env.close()


@pytest.mark.thorough
def test_escape_ends_with_what_there_is(screen, start, tmp_path):
    program = start("--output", str(tmp_path / "hand.hdf5"))
    screen.window(program)
    screen.press("Escape")
    said = program.communicate(timeout=30)[0]
    assert program.returncode == 1
    assert said.strip().endswith("hand.hdf5: no episode was written, so there is no file")
    assert not list(tmp_path.iterdir())


def test_without_a_display_one_line_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.delenv("QT_QPA_PLATFORM", raising=False)
    assert main(["teleoperate", "--output", str(tmp_path / "hand.hdf5")]) == 1
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert said.startswith("offrl: error: no window can be opened here (")
    assert "run it where there is a display" in said and not list(tmp_path.iterdir())


def test_an_arm_that_is_not_driven_by_its_pose_is_refused():
    env = SimpleNamespace(action_space=Box(-1, 1, (14,)))
    with pytest.raises(ValueError, match="7 .*14 .*--env-kwargs"):
        Operator(env, control_freq=20)
