"""The folder that ``offrl view`` writes: what is in it, and what becomes of bad input."""

import base64
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import programs
import pytest
from conftest import ROOT, write_demos
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from offrl.__main__ import main
from offrl.data.writer import DemoWriter
from offrl.reports.view.datasets import EpisodePage, EpisodeWriter, FilmOptions
from offrl.reports.view.page import packed, thinned, write_script
from offrl.video import encoder

pytestmark = pytest.mark.slow

LIFT = ROOT / "datasets/lift/low_dim.hdf5"
EVIL = '<img src=x onerror="window.evil=1">\'&</script><script>window.evil=1</script>\u2028é'


def view(*arguments):
    return main(["view", "--workers", "1", *map(str, arguments)])


def refused(capsys, *arguments):
    """The one line that a command says which fails."""
    assert view(*arguments) == 1
    said = capsys.readouterr().err.strip()
    assert said.startswith("offrl: error: ") and "\n" not in said, said
    return said


def content(path):
    """The arguments of the call in a script."""
    text = path.read_text(encoding="ascii")
    arguments = re.fullmatch(r"show[A-Z][a-z]+[(](.*)[)];", text.strip())[1]
    return json.loads(f"[{arguments}]", parse_constant=pytest.fail)  # NaN is not JSON


def overview(folder):
    return content(folder / "data/overview.js")[0]


def series(episode, key):
    found = episode["series"][key]
    return np.frombuffer(base64.b64decode(found["data"]), "<f4").reshape(-1, found["dims"])


def played(film):
    """What ffmpeg says of a film, and its frames ``[T, H, W, 3]``."""
    command = [encoder(), "-i", str(film), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    ran = subprocess.run(command, capture_output=True, check=True)
    said = ran.stderr.decode()
    width, height = map(int, re.search(r"yuv420p.*?, (\d+)x(\d+)", said).groups())
    return said, np.frombuffer(ran.stdout, np.uint8).reshape(-1, height, width, 3)


@pytest.fixture
def images(tmp_path):
    """Two episodes of six steps seen by two cameras of different heights; what the second sees is
    dark above and light below."""
    path, rng = tmp_path / "images.hdf5", np.random.default_rng(0)
    wrist = np.zeros((6, 16, 16, 1), np.uint8)
    wrist[:, 8:] = 250
    with DemoWriter(path, compression="png") as writer:
        for _ in range(2):
            front = rng.random((6, 32, 48, 3), np.float32)
            seen = {"obs/front_image": front, "obs/wrist_image": wrist}
            writer.write({"actions": rng.random((6, 2)), **seen})
    return path


def make_run(folder, name="bc", seed=1, records=()):
    """The folder of a run, as ``RunFolder`` and ``Logger`` leave it."""
    folder.joinpath("videos").mkdir(parents=True)
    config = {"algo_name": "bc", "experiment": {"name": name}, "train": {"seed": seed}}
    folder.joinpath("config-12345678.json").write_text(json.dumps(config))
    folder.joinpath("metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return folder


def record(kind, epoch, **logs):
    return {"type": kind, "epoch": epoch, "step": 10 * epoch, "time": 1e9 + epoch, "logs": logs}


# What is in it.


def test_every_episode_has_its_numbers_and_the_overview_what_a_list_needs(tmp_path, capsys):
    data = write_demos(tmp_path / "demos.hdf5")
    assert view(data, "--output", tmp_path / "out") == 0
    assert capsys.readouterr().out.strip() == f"{tmp_path / 'out'}/index.html"
    found = overview(tmp_path / "out")
    (dataset,) = found["datasets"]
    assert dataset["names"] == ["demo_0", "demo_1", "demo_2"] and found["runs"] == []
    assert dataset["features"]["length"] == [5, 7, 6]
    assert dataset["masks"] == {"train": [0, 1], "valid": [2]}
    assert dataset["film"] == [False] * 3 and dataset["success"] == [True] * 3
    assert str(data) in found["command"]
    with h5py.File(data) as file:
        for i, demo in enumerate(file["data"].values()):
            _, number, episode = content(tmp_path / f"out/data/0/{i}.js")
            assert (number, episode["steps"]) == (i, len(demo["actions"]))
            np.testing.assert_array_equal(
                series(episode, "obs/position"), demo["obs/position"][()].astype("f4")
            )
            rewards = demo["rewards"][()].sum()
            assert dataset["features"]["return"][i] == pytest.approx(rewards, rel=1e-5)
        actions = np.concatenate([demo["actions"] for demo in file["data"].values()])
    expected = {"mean": actions.mean(0), "std": actions.std(0), "high": actions.max(0)}
    for name, values in expected.items():
        np.testing.assert_allclose(dataset["actions"][name], values, rtol=1e-4)


def test_the_page_names_no_network_and_fetches_nothing(tmp_path):
    view(write_demos(tmp_path / "demos.hdf5"), "--output", tmp_path / "out")
    page = (tmp_path / "out/index.html").read_text()
    assert not re.search(r"https?:|//|xmlns|type=.module|@import", page)
    for name in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert name == "data:," or (tmp_path / "out" / name).is_file()
    for script in [*tmp_path.glob("out/*.js"), *tmp_path.glob("out/*.css")]:
        text = script.read_text()
        assert not re.search(r"https?:|\bfetch\(|XMLHttp|import\(|innerHTML|@import|url\(", text)


@pytest.mark.slow
def test_the_same_folder_whatever_the_number_of_processes(images, tmp_path):
    data = write_demos(tmp_path / "demos.hdf5", lengths=range(3, 20))
    written = []
    for workers in (1, 2):
        folder = tmp_path / f"out{workers}"
        assert view(data, images, "--output", folder, "--workers", workers) == 0
        files = {p.relative_to(folder): p for p in folder.rglob("*") if p.is_file()}
        files.pop(Path("data/overview.js"))  # says the command
        written.append({name: path.read_bytes() for name, path in files.items()})
    assert written[0] == written[1] and len(written[0]) > 20


@pytest.mark.slow
def test_stored_images_are_filmed_side_by_side_in_what_browsers_play(images, tmp_path):
    assert view(images, "--output", tmp_path / "out") == 0
    assert overview(tmp_path / "out")["datasets"][0]["film"] == [True, True]
    said, frames = played(tmp_path / "out/data/0/1.mp4")
    assert "h264" in said and "yuv420p" in said
    assert frames.shape == (6, 32, 80, 3)  # 48 wide, and 16 enlarged to 32
    wrist = frames[:, :, 52:76]
    assert wrist[:, :13].max() < 60 and wrist[:, 19:].min() > 190


@pytest.mark.thorough
def test_cameras_are_chosen_by_name(images, tmp_path, capsys):
    assert view(images, "--cameras", "wrist", "--output", tmp_path / "out") == 0
    said = refused(capsys, images, "--cameras", "side", "--output", tmp_path / "other")
    assert "has no images obs/side_image; its cameras are: front, wrist" in said
    said = refused(capsys, LIFT, "--cameras", "front", "--output", tmp_path / "other")
    assert "--cameras: no data has images; film simulator states with --render N" in said


def test_where_some_are_rendered_cameras_are_those_of_the_simulator(images, tmp_path):
    (tmp_path / "data/0").mkdir(parents=True)
    writer = EpisodeWriter(str(tmp_path), FilmOptions(num_rendered=1, cameras=("sideview",)))
    assert writer(EpisodePage(0, images, 1, "demo_1", is_rendered=False, fps=20))["film"]


@pytest.mark.thorough
def test_simulator_states_are_rendered_for_episodes_all_over_the_dataset(tmp_path):
    arguments = ("--render", 2, "--size", 64, "--cameras", "agentview", "sideview")
    assert view(LIFT, *arguments, "--output", tmp_path / "out") == 0
    films = overview(tmp_path / "out")["datasets"][0]["film"]
    assert [i for i, film in enumerate(films) if film] == [0, 100]
    _, frames = played(tmp_path / "out/data/0/0.mp4")
    assert frames.shape == (29, 64, 128, 3) and frames[0].std() > 10
    assert np.abs(frames[0].astype(int) - frames[-1]).max() > 50  # the arm moves


def test_what_is_not_finite_wide_or_no_vector_does_not_break_a_page(tmp_path):
    with h5py.File(tmp_path / "odd.hdf5", "w") as file:
        for i in range(6):
            demo = file.create_group(f"data/demo_{i}")
            demo["actions"] = np.full((4, 2), np.nan if i == 3 else 0.5 + i / 100)
            demo["rewards"] = np.array([0, np.inf if i == 4 else 1, 0, 1e300])
            demo["obs/wide"] = np.arange(4 * 100).reshape(4, 100)
            demo["obs/points"] = np.zeros((4, 5, 3))
            demo["obs/name"] = np.array(["a"] * 4, dtype="S")
            demo["obs/flag"] = np.array([True, False, True, True])
            demo["obs/short"] = np.zeros(3)
    assert view(tmp_path / "odd.hdf5", "--output", tmp_path / "out") == 0
    (dataset,) = overview(tmp_path / "out")["datasets"]
    assert dataset["features"]["largest action"][3] is None
    assert [3, "its mean action is nan"] in dataset["unusual"]
    assert [4, "its return is inf"] in dataset["unusual"]
    assert dataset["actions"]["low"] == [0.5, 0.5] and dataset["actions"]["high"] == [0.55, 0.55]
    _, _, episode = content(tmp_path / "out/data/0/3.js")
    assert np.isnan(series(episode, "actions")).all()
    assert series(episode, "obs/wide").shape == (4, 64)
    assert series(episode, "obs/flag").tolist() == [[1], [0], [1], [1]]
    left_out = " ".join(episode["leftOut"])
    assert all(key in left_out for key in ("obs/wide", "obs/points", "obs/name", "obs/short"))


def write_hostile(path):
    """Names and texts that would be markup, or end a script, where they are not text."""
    write_demos(path, lengths=(5, 6), obs={EVIL.replace("/", "|"): (2,)})
    with h5py.File(path, "r+") as file:
        file["data/demo_0"].attrs[EVIL] = EVIL
        file["data"].attrs["env_args"] = json.dumps({"env_name": EVIL, "env_kwargs": {}})
        file[f"mask/{EVIL.replace('/', '|')}"] = np.array(["demo_1"], dtype="S")
    return path


def test_hostile_names_are_text_that_no_script_ends_at(tmp_path):
    path = write_hostile(tmp_path / (EVIL.replace("/", "|")[:60] + ".hdf5"))
    run = make_run(tmp_path / "run", EVIL, records=[record("train", 1, **{EVIL: 1.0})])
    assert view(path, run, "--output", tmp_path / "out") == 0
    scripts = list(tmp_path.glob("out/data/**/*.js"))
    assert len(scripts) == 4
    assert all("<" not in script.read_text(encoding="ascii") for script in scripts)
    found = overview(tmp_path / "out")
    assert found["datasets"][0]["env"] == EVIL and found["runs"][0]["name"] == EVIL
    assert content(tmp_path / "out/data/0/0.js")[2]["attributes"][EVIL] == EVIL


def test_a_run_brings_curves_episodes_config_and_videos(tmp_path):
    interval = {"Success_Rate_Low": 0.1, "Success_Rate_High": 0.9, "Crashed": 0}
    records = [
        *(record("train", e, Loss=1 / e, **({"Late": e} if e > 1 else {})) for e in (1, 2, 3)),
        record("episode", 3, Seed=1000000, Success=1.0, Return=1.0, Horizon=20, Crashed=0.0),
        record("rollout", 3, Success_Rate=0.5, **interval),
        record("env_rollout", 3, Success_Rate=0.5, **interval) | {"env": "Lift"},
        record("test_episode", 3, Seed=0, Success=0.0, Return=0.0, Horizon=9, Crashed=0.0),
        record("test", 3, Success_Rate=float("nan"), **interval),
    ]
    run = make_run(tmp_path / "bc/2026", records=records)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"type": "train", "ep')
    run.joinpath("videos/test-1.mp4").write_bytes(b"a film")
    run.joinpath("videos/.rollout.99.partial.mp4").write_bytes(b"half a fi")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert view(run, "--output", tmp_path / "out") == 0
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    assert overview(tmp_path / "out")["runs"] == [
        {"name": "bc", "stamp": "2026", "path": str(run)},
    ]
    number, found = content(tmp_path / "out/data/run/0.js")
    assert number == 0 and found["numDamaged"] == 1
    assert set(found["curves"]) == {"train", "rollout", "env_rollout Lift", "test"}
    assert found["curves"]["train"]["step"] == [10, 20, 30]
    assert found["curves"]["train"]["time"] == [0, 1, 2]
    assert found["curves"]["train"]["logs"] == {"Loss": [1, 0.5, 0.333333], "Late": [None, 2, 3]}
    assert found["curves"]["test"]["logs"]["Success_Rate"] == [None]
    assert [episode["epoch"] for episode in found["episodes"]] == [3, "test"]
    assert found["config"]["experiment.name"] == '"bc"' and found["config"]["train.seed"] == "1"
    assert found["videos"] == {"data/run/0-0.mp4": "test-1.mp4"}
    assert (tmp_path / "out/data/run/0-0.mp4").read_bytes() == b"a film"


def test_a_config_without_sections_is_shown(tmp_path):
    run = make_run(tmp_path / "bc/2026")
    run.joinpath("config-12345678.json").write_text('{"algo_name": "bc", "experiment": null}')
    assert view(run, "--output", tmp_path / "out") == 0
    assert overview(tmp_path / "out")["runs"][0]["name"] == "bc"


def test_data_of_other_formats_is_shown_as_well(tmp_path):
    rows = {"observations": (9, 3), "actions": (9, 2), "rewards": (9,), "terminals": (9,)}
    with h5py.File(tmp_path / "flat.hdf5", "w") as file:
        for key, shape in rows.items():
            file[key] = np.zeros(shape)
        file["timeouts"] = np.arange(9) % 4 == 3
    assert view(tmp_path / "flat.hdf5", "--output", tmp_path / "out") == 0
    (dataset,) = overview(tmp_path / "out")["datasets"]
    assert dataset["features"]["length"] == [4, 4, 1] and dataset["keys"]["obs/flat"] == 3


# Numbers on their way.

LARGE = st.floats(-1e6, 1e6, width=32)


@given(arrays.arrays(np.float32, st.tuples(st.integers(1, 300), st.integers(1, 3)), elements=LARGE))
def test_thinning_keeps_extremes_and_their_places(rows):
    most = 20
    thin, every = thinned(rows, most)
    assert len(thin) <= most + 1 and (len(thin) - 1) * every < len(rows) + every
    np.testing.assert_array_equal(thin.min(0), rows.min(0))
    np.testing.assert_array_equal(thin.max(0), rows.max(0))
    for row, values in enumerate(thin):  # each value is one of its stretch
        start = row // 2 * 2 * every if every > 1 else row
        stretch = rows[start : start + 2 * every if every > 1 else row + 1]
        assert all(x in column for x, column in zip(values, stretch.T, strict=True))


def test_gaps_survive_thinning_where_nothing_else_is():
    rows = np.full((5000, 1), np.nan)
    rows[2500:, 0] = 1
    thin, _ = thinned(rows)
    assert np.isnan(thin[: len(thin) // 2 - 2]).all() and (thin[len(thin) // 2 + 2 :] == 1).all()


@given(arrays.arrays(np.float64, st.tuples(st.integers(1, 50), st.integers(1, 4))))
def test_series_are_packed_in_single_precision(rows):
    found = packed(rows)
    values = np.frombuffer(base64.b64decode(found["data"]), "<f4").reshape(-1, found["dims"])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(values, rows.astype("f4"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(value=JSON)
def test_any_content_is_a_script_of_plain_characters(value, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "any.js"
    write_script(path, "showEpisode", value)
    assert "<" not in path.read_text(encoding="ascii") and len(content(path)) == 1


# What is refused.


def sums(*paths):
    return [hashlib.sha256(path.read_bytes()).digest() for path in paths]


def truncated(tmp_path):
    path = tmp_path / "cut.hdf5"
    path.write_bytes(LIFT.read_bytes()[:1_000_000])
    return [path], "not a readable HDF5 file"


def no_data(tmp_path):
    (tmp_path / "notes.txt").write_text("buy milk")
    return [tmp_path / "notes.txt"], "not a readable HDF5 file"


def nothing(tmp_path):
    return [tmp_path / "nowhere.hdf5"], "no such file"


def folder(tmp_path):
    (tmp_path / "folder").mkdir()
    return [tmp_path / "folder"], "neither of a run"


def absent_demos(tmp_path):
    path = write_demos(tmp_path / "demos.hdf5")
    with h5py.File(path, "r+") as file:
        file["mask/good"] = np.array(["demo_1", "demo_7"], dtype="S")
    return [path], "filter key mask/good names missing demos: demo_7"


def no_steps(tmp_path):
    path = write_demos(tmp_path / "demos.hdf5")
    with h5py.File(path, "r+") as file:
        del file["data/demo_1"]
        file["data/demo_1/actions"] = np.zeros((0, 2))
    return [path], "data/demo_1 has no steps"


def no_actions(tmp_path):
    path = write_demos(tmp_path / "demos.hdf5")
    with h5py.File(path, "r+") as file:
        del file["data/demo_2/actions"]
    return [path], "data/demo_2 has no steps (actions)"


def no_numbers(tmp_path):
    path = write_demos(tmp_path / "demos.hdf5")
    with h5py.File(path, "r+") as file:
        del file["data/demo_2/rewards"]
        file["data/demo_2/rewards"] = np.array(["much"] * 6, dtype="S")
    return [path], "data/demo_2/rewards holds no numbers"


def damaged(tmp_path):
    path = tmp_path / "demos.hdf5"
    content = bytearray(LIFT.read_bytes())
    with h5py.File(LIFT) as file:
        place = file["data/demo_7/obs/object"].id.get_chunk_info(0).byte_offset
    content[place + 40] ^= 255
    path.write_bytes(content)
    return [path], "data/demo_7/obs/object cannot be read"


def no_env(tmp_path):
    return [write_demos(tmp_path / "demos.hdf5"), "--render", 1], "names no environment"


def no_states(tmp_path):
    env_args = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": {"robots": "Panda"}})
    path = write_demos(tmp_path / "demos.hdf5", env_args=env_args)
    return [path, "--render", 1], "data/demo_0 cannot be played back: it lacks states"


def broken_config(tmp_path):
    run = make_run(tmp_path / "run")
    run.joinpath("config-12345678.json").write_text('{"algo_name": "bc", ')
    return [run], "not valid JSON"


def link_out(name):
    def case(tmp_path):
        """What a page must not show, which people pass on."""
        run = make_run(tmp_path / "run")
        (run / name).unlink(missing_ok=True)
        (tmp_path / "secret").write_text('{"password": "1234"}')
        (run / name).symlink_to(tmp_path / "secret")
        return [run], "follow-links"

    case.__name__ = f"link of {name}"
    return case


def pipe(tmp_path):
    os.mkfifo(make_run(tmp_path / "run") / "videos/film.mp4")
    return [tmp_path / "run"], "no regular file"


def link_to(name):
    def case(tmp_path):
        """A film that cannot be read, which is no fault of the output's."""
        run = make_run(tmp_path / "run")
        (run / "videos/film.mp4").symlink_to(name)
        return [run], "film.mp4: cannot be read" if name == "film.mp4" else f"{name}: cannot be"

    case.__name__ = f"link to {name}"
    return case


CASES = [link_out(name) for name in ("videos/film.mp4", "metrics.jsonl", "config-12345678.json")]
CASES += [
    *map(link_to, ("film.mp4", "nothing.mp4")),
    pipe,
    truncated,
    no_data,
    nothing,
    folder,
    absent_demos,
    no_steps,
    no_actions,
    no_numbers,
    damaged,
]
CASES += [no_env, no_states, broken_config]


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_in_a_line_and_leaves_nothing(case, tmp_path, capsys):
    arguments, words = case(tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    before = sums(*files)
    said = refused(capsys, *arguments, "--output", tmp_path / "out" / "page")
    assert words in said and str(arguments[0]) in said
    assert sums(*files) == before
    assert not list(tmp_path.glob("out/*")) and not list(tmp_path.glob("out/.*"))


def test_an_existing_output_stays_as_it_is(tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    said = refused(capsys, write_demos(tmp_path / "demos.hdf5"), "--output", tmp_path / "out")
    assert f"{tmp_path / 'out'} exists; choose another name" in said
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_without_a_rendering_back_end_rendering_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    said = refused(capsys, LIFT, "--render", 1, "--output", tmp_path / "out")
    assert "no rendering back end works here" in said and not list(tmp_path.iterdir())


@pytest.mark.thorough
def test_a_camera_that_the_environment_lacks_is_named(tmp_path, capsys):
    arguments = ("--render", 1, "--cameras", "ceiling", "--output", tmp_path / "out")
    assert "Lift has no camera 'ceiling'; it has " in refused(capsys, LIFT, *arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(os.getuid() != 0, reason="only root mounts file systems")
@pytest.mark.parametrize("kind", ["numbers", "films", "videos"])
def test_a_full_disk_leaves_nothing(kind, images, tmp_path, capsys):
    run = make_run(tmp_path / "run")
    run.joinpath("videos/test-1.mp4").write_bytes(bytes(300_000))
    source = {"numbers": LIFT, "films": images, "videos": run}[kind]
    disk = tmp_path / "disk"
    disk.mkdir()
    size = {"films": "size=4k"}.get(kind, "size=200k")
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", disk], check=True)
    try:
        said = refused(capsys, source, "--output", disk / "out")
        assert f"{disk / 'out'}: disk full" in said
        assert not list(disk.iterdir())
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.thorough), signal.SIGTERM]
)
def test_a_signal_leaves_nothing(number, tmp_path):
    data = write_demos(tmp_path / "demos.hdf5", lengths=[9] * 800)
    command = [sys.executable, "-m", "offrl", "view", str(data), "--output", str(tmp_path / "out")]
    with programs.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        while not list(tmp_path.glob(".out.*/data/0/*.js")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        said = process.communicate()[1]
    assert process.returncode == 128 + number and "interrupted" in said
    assert [path.name for path in tmp_path.iterdir()] == ["demos.hdf5"]
