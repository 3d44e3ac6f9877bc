"""``offrl playback``: films by states, by actions and of stored images, and pictures."""

import re

import h5py
import imageio.v3
import numpy as np
import pytest
from conftest import ROOT, write_demos
from toy_env import toy_args

from offrl import DemoWriter
from offrl.__main__ import main
from offrl.data.formats.hdf5 import DemoFile
from offrl.envs import make_env
from offrl.envs.playback import ActionReplay, film_states, play_states
from offrl.envs.rendering import working_backend
from offrl.processes import in_order

pytestmark = pytest.mark.slow  # a real simulator
LIFT = ROOT / "datasets/lift/low_dim.hdf5"
needs_camera = pytest.mark.skipif(working_backend() is None, reason="no rendering back end")


def frames_of(path):
    return imageio.v3.imread(path, plugin="FFMPEG")


@pytest.fixture(scope="module")
def lift():
    with DemoFile(LIFT) as file:
        return file.env_args, file.trajectory("demo_2")


@pytest.fixture
def images(tmp_path):
    """Two demonstrations that two cameras of other sizes saw, of one colour a step."""
    path = tmp_path / "images.hdf5"
    with DemoWriter(path) as writer:
        for steps in (7, 5):
            brightness = (20 * np.arange(steps, dtype=np.uint8))[:, None, None, None]
            writer.write(
                {
                    "actions": np.zeros((steps, 2)),
                    "obs/front_image": np.broadcast_to(brightness, (steps, 32, 16, 3)).copy(),
                    "obs/wrist_image": np.full((steps, 16, 16, 3), 250, np.uint8),
                }
            )
    return path


def test_stored_images_of_all_cameras_are_filmed_side_by_side(images, tmp_path):
    film = tmp_path / "film.mp4"
    assert main(["playback", str(images), "--output", str(film)]) == 0
    frames = frames_of(film).astype(int)
    assert frames.shape == (12, 32, 48, 3)
    means = frames[:, 4:12, 4:12].mean(axis=(1, 2, 3))
    np.testing.assert_allclose(means, [*range(0, 140, 20), *range(0, 100, 20)], atol=6)
    assert frames[:, 4:28, 36:60].min() > 230  # enlarged to the height of the other


def test_images_of_another_form_are_filmed(images, tmp_path):
    with h5py.File(images, "r+") as file:
        for demo in file["data"].values():
            front = np.moveaxis(demo["obs/front_image"][:] / 255.0, -1, 1)
            del demo["obs/front_image"]
            demo["obs/front_image"] = front
    picture = tmp_path / "first.png"
    assert main(["playback", str(images), "--first", "--n", "1", "--output", str(picture)]) == 0
    pixels = imageio.v3.imread(picture)
    assert pixels[:, :16].max() == 0 and (pixels[:, 16:48] == 250).all()


def test_cameras_are_chosen(images, tmp_path, capsys):
    film = tmp_path / "film.mp4"
    options = ["--n", "1", "--cameras", "wrist"]
    assert main(["playback", str(images), *options, "--output", str(film)]) == 0
    assert frames_of(film).shape == (7, 16, 16, 3)
    options = ["--cameras", "ceiling", "--output", str(tmp_path / "other.mp4")]
    assert main(["playback", str(images), *options]) == 1
    said = capsys.readouterr().err
    assert "has no images obs/ceiling_image; its cameras are: front, wrist" in said


def test_what_makes_no_film_or_picture_is_said(tmp_path, capsys):
    path = tmp_path / "sizes.hdf5"
    with h5py.File(path, "w") as file:
        for i, side in enumerate((16, 32, 0)):
            file[f"data/demo_{i}/actions"] = np.zeros((3 * (side > 0), 2))
            images = np.zeros((3 * (side > 0), side or 16, side or 16, 3), np.uint8)
            file[f"data/demo_{i}/obs/front_image"] = images
    for options, words in (
        (["--n", "2", "--output", "x.mp4"], "make no film"),
        (["--n", "3", "--output", "x.mp4"], "demo_2 has no steps"),
        (["--n", "3", "--first", "--output", "x.png"], "demo_2 has no steps"),
        (["--first", "--output", "x.mp4"], "call it NAME.png"),
        (["--output", "x.avi"], "call it NAME.mp4"),
        (["--size", "16", "--output", "x.mp4"], "--size is of what is rendered"),
    ):
        options[-1] = str(tmp_path / options[-1])
        assert main(["playback", str(path), *options]) == 1
        said = capsys.readouterr().err
        assert words in said and "Traceback" not in said
        assert [x.name for x in tmp_path.iterdir()] == ["sizes.hdf5"]


def test_first_frames_are_one_picture(images, tmp_path):
    picture = tmp_path / "first.png"
    assert main(["playback", str(images), "--first", "--output", str(picture)]) == 0
    pixels = imageio.v3.imread(picture)
    assert pixels.shape == (32, 96, 3)
    assert pixels[:, :16].max() == 0 and (pixels[:, 16:48] == 250).all()


@pytest.mark.thorough
@needs_camera
def test_a_film_by_states_shows_the_recorded_states(tmp_path):
    film = tmp_path / "film.mp4"
    options = ["--n", "2", "--size", "48", "--cameras", "frontview", "agentview"]
    assert main(["playback", str(LIFT), *options, "--output", str(film)]) == 0
    frames = frames_of(film)
    with DemoFile(LIFT) as file:
        lengths = file.lengths(["demo_0", "demo_1"])
    assert frames.shape == (lengths.sum(), 48, 96, 3)
    # In a process of its own: what renders, and torch's compiler, do not get on in one.
    environ = {"MUJOCO_GL": working_backend()}
    (shown,) = in_order(make_frames, ("frontview", "agentview", 48), ["demo_1"], 1, environ)
    error = np.abs(shown.astype(int) - frames[lengths[0] :]).mean()
    still = np.abs(shown.astype(int) - frames[lengths[0]]).mean()
    assert error < 3 and still > 2 * error  # another step's frame is told from this one


def make_frames(*look):
    *cameras, size = look
    file = DemoFile(LIFT)
    env = make_env(file.env_args)
    return lambda demo: np.stack(list(film_states(env, file.trajectory(demo), cameras, size)))


@pytest.mark.thorough
@needs_camera
def test_a_film_by_actions_says_how_far_it_went_astray(tmp_path, capsys):
    film = tmp_path / "film.mp4"
    options = ["--use", "actions", "--n", "2", "--size", "32"]
    assert main(["playback", str(LIFT), *options, "--output", str(film)]) == 0
    said = capsys.readouterr().out
    found = re.findall(r"demo_(\d): largest difference (\S+) at step \d+ of \d+, succeeds", said)
    assert [number for number, _ in found] == ["0", "1"]
    assert all(0 < float(largest) < 1e-3 for _, largest in found)
    plot = tmp_path / "film-divergence.png"
    assert imageio.v3.imread(plot).std() > 10 and len(frames_of(film)) > 40


@pytest.mark.thorough
def test_a_replay_that_goes_astray_is_measured(lift):
    """By the largest difference between positions or velocities."""
    env, demo = make_env(lift[0]), dict(lift[1])
    faithful = ActionReplay(env, demo)
    assert list(faithful) == list(range(len(demo["actions"])))
    demo["actions"] = demo["actions"].copy()
    demo["actions"][10:, 2] *= -1
    astray = ActionReplay(env, demo)
    list(astray)
    env.close()
    assert faithful.success and not astray.success
    assert astray.divergence[:11] == faithful.divergence[:11]
    assert max(faithful.divergence) < 1e-3 and max(astray.divergence) > 0.1


@pytest.mark.slow
def test_states_give_rewards_and_success_of_the_actions_before(lift):
    env, demo = make_env(lift[0]), lift[1]
    moments = list(play_states(env, demo))
    env.close()
    assert len(moments) == len(demo["actions"]) + 1
    assert [moment.reward for moment in moments[1:]] == demo["rewards"].tolist()
    assert [moment.success for moment in moments[-2:]] == [False, True]


def test_without_states_an_episode_of_the_same_seed_is_replayed(tmp_path, capsys):
    """An environment without states: the observations are compared."""
    path, env = tmp_path / "toy.hdf5", make_env(toy_args())
    with DemoWriter(path, toy_args()) as writer:
        for seed in (3, 4):
            obs, actions, positions = env.reset(seed=seed)[0], np.full((6, 2), 0.5), []
            for action in actions:
                positions.append(obs["position"])
                obs, *_ = env.step(action)
            writer.write({"actions": actions, "obs/position": np.stack(positions)}, seed=seed)
        writer.write({"actions": actions, "obs/position": np.stack(positions)}, seed=99)
    assert main(["playback", str(path), "--use", "actions"]) == 0
    said = capsys.readouterr().out
    largest = re.findall(r"largest difference (\S+)", said)
    assert [float(x) < 1e-6 for x in largest] == [True, True, False]
    verdicts = re.findall(r"(follows|leaves) the recording", said)
    assert verdicts == ["follows", "follows", "leaves"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--use", "states"], "names no environment"),
        (["--output", "x.mp4", "--use", "images"], "has no images; its cameras are: none"),
        (["--output", "x.mp4", "--use", "actions"], "names no environment"),
        (["--output", "x.mp4", "--filter-key", "no", "--use", "states"], "names no environment"),
    ],
)
def test_what_cannot_be_filmed_is_said(options, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    demos = write_demos(tmp_path / "demos.hdf5")
    assert main(["playback", str(demos), *options]) == 1
    assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["demos.hdf5"]


@needs_camera
@pytest.mark.parametrize("first", [pytest.param(True, marks=pytest.mark.thorough), False])
def test_a_camera_that_is_not_there_leaves_nothing(first, tmp_path, capsys):
    output = ["--output", str(tmp_path / ("x.png" if first else "x.mp4"))]
    options = ["--n", "1", "--cameras", "ceiling", *(["--first"] * first), *output]
    assert main(["playback", str(LIFT), *options]) == 1
    assert "Lift has no camera 'ceiling'; it has frontview" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten_and_no_back_end_is_said(images, tmp_path, capsys, monkeypatch):
    film = tmp_path / "film.mp4"
    film.write_text("work of years")
    assert main(["playback", str(images)]) == 1
    assert "--output: name the file to write" in capsys.readouterr().err
    assert main(["playback", str(images), "--output", str(film)]) == 1
    assert "exists; choose another name" in capsys.readouterr().err
    assert film.read_text() == "work of years"
    monkeypatch.setenv("MUJOCO_GL", "disabled")
    assert main(["playback", str(LIFT), "--output", str(tmp_path / "new.mp4")]) == 1
    assert "no rendering back end works here; apt-get" in capsys.readouterr().err


def test_a_file_that_is_cut_off_is_said(tmp_path, capsys):
    path = tmp_path / "cut.hdf5"
    path.write_bytes(LIFT.read_bytes()[:100_000])
    for command in (
        ["playback", str(path), "--output", str(tmp_path / "x.mp4")],
        ["info", str(path)],
    ):
        assert main(command) == 1
        said = capsys.readouterr().err
        assert str(path) in said and "Traceback" not in said
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["x"] = 1
    assert main(["info", str(tmp_path / "other.hdf5")]) == 1
    assert "no demonstrations" in capsys.readouterr().err
