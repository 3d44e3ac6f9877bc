"""Files of evaluations and run folders where there is no room, no right to write, or something in
the way: said before the work or in one sentence after it, nothing lost, nothing left over."""

import json
import os
import resource
import subprocess
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch
from toy_env import toy_args

from offrl import Trainer
from offrl.__main__ import main
from offrl.checkpoint import write_checkpoint
from offrl.envs.rendering import working_backend
from offrl.online import Algorithm
from offrl.reports.plot import write_learning_curve
from offrl.training import Evaluator, RunFolder
from offrl.video import write_video

pytestmark = pytest.mark.slow

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root mounts file systems")
needs_camera = pytest.mark.skipif(working_backend() is None, reason="no rendering back end")


@contextmanager
def mounted(folder, *options):
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def disk(tmp_path):
    """A disk of 200 kB: ``fill(left)`` leaves so many bytes of it."""
    with mounted(tmp_path / "disk", "-o", "size=200k") as folder:
        yield folder


def fill(folder, left=0):
    free = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
    (folder / "others").write_bytes(bytes(max(0, free - left)))


@pytest.fixture
def full(disk):
    (disk / "others").write_text("work of others")
    with open(disk / "others", "ab") as file, pytest.raises(OSError):
        while True:
            os.write(file.fileno(), bytes(4096))
    return disk


@pytest.fixture
def read_only(tmp_path):
    with mounted(tmp_path / "locked", "-o", "ro,size=1m") as folder:
        yield folder


@pytest.fixture
def checkpoint(small_config, tmp_path):
    path = tmp_path / "model.pth"
    write_checkpoint(path, Trainer(small_config()).state() | {"env_metadata": toy_args()})
    return path


def evaluate(checkpoint, *arguments, n=3):
    command = f"rollout --checkpoint {checkpoint} --n {n} --horizon 4 --workers 1".split()
    return main([*command, *map(str, arguments)])


def with_env(checkpoint, env_args):
    import torch

    content = torch.load(checkpoint, weights_only=True)
    write_checkpoint(checkpoint, content | {"env_metadata": env_args})
    return checkpoint


def one_error(capsys):
    """The one line that the program said at its end, and all that it printed."""
    out, err = capsys.readouterr()
    errors = [line for line in err.splitlines() if line.startswith("offrl: error: ")]
    assert len(errors) == 1 and "Traceback" not in err, err
    return errors[0], out


# Before the work.


@needs_root
@pytest.mark.parametrize("option", ["--json", "--record", "--video"])
@pytest.mark.parametrize("where", ["full", "read_only", "below a file"])
def test_a_place_where_nothing_can_be_written_is_refused_before_the_work(
    option, where, request, tmp_path, capsys
):
    (tmp_path / "file").write_text("mine")
    folder = tmp_path / "file" if where == "below a file" else request.getfixturevalue(where)
    before = sorted(folder.parent.rglob("*"))
    # There is no checkpoint, so that this would be the error if it were looked at first.
    assert evaluate(tmp_path / "none.pth", option, folder / "result.mp4") == 1
    error, _ = one_error(capsys)
    assert str(folder) in error and ("disk full" in error or "cannot be written" in error)
    assert sorted(folder.parent.rglob("*")) == before


@needs_root
@pytest.mark.parametrize("command", ["proxies --checkpoint none.pth --json", "export-robomimic x"])
def test_other_commands_look_at_the_place_first_too(command, read_only, tmp_path, capsys):
    for path in (read_only / "out", tmp_path / "precious"):
        (tmp_path / "precious").write_text("work of years")
        assert main([*command.split(), str(path)]) == 1
        error, _ = one_error(capsys)
        assert str(path) in error or str(path.parent) in error
        assert "cannot be written" in error or "exists; choose another name" in error
    assert (tmp_path / "precious").read_text() == "work of years"


def test_two_outputs_of_one_name_are_refused(checkpoint, tmp_path, capsys):
    path = tmp_path / "out"
    assert evaluate(checkpoint, "--json", path, "--record", path) == 1
    assert "name one file" in one_error(capsys)[0]
    assert not path.exists()


# After the work.

OTHERS = ["--json", "--video"]


@needs_root
@needs_camera
@pytest.mark.parametrize(
    "option", ["--record", *(pytest.param(x, marks=pytest.mark.thorough) for x in OTHERS)]
)
def test_a_disk_that_runs_full_meanwhile_costs_that_output_alone(
    option, checkpoint, disk, tmp_path, capsys, monkeypatch
):
    places = {"--json": "x.json", "--record": "x.hdf5", "--video": "x.mp4"}
    paths = {o: (disk if o == option else tmp_path) / name for o, name in places.items()}
    import offrl.training.progress as progress

    said = progress.success_line

    def meanwhile(logs):
        fill(disk)
        return said(logs)

    monkeypatch.setattr(progress, "success_line", meanwhile)
    options = [word for pair in paths.items() for word in pair]
    assert evaluate(checkpoint, *options) == 1
    error, out = one_error(capsys)
    place = disk if option == "--record" else paths[option]
    assert error.startswith(f"offrl: error: {place}: disk full: 0 MB are free there, and ")
    assert "success rate" in out
    assert [o for o, path in paths.items() if path.exists()] == [o for o in paths if o != option]
    assert [path.name for path in disk.iterdir()] == ["others"]
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
def test_lost_episodes_are_named_and_what_there_is_is_written(checkpoint, tmp_path, capsys):
    args = toy_args(trouble={"1": "raise"})
    paths = tmp_path / "x.json", tmp_path / "x.hdf5"
    outputs = ["--json", paths[0], "--record", paths[1]]
    assert evaluate(with_env(checkpoint, args), *outputs, n=4) == 1
    error, out = one_error(capsys)
    assert "1 of 4 episodes could not be run" in error and "fewer --workers" in error
    assert "success rate" in out and "n = 3, 1 not run" in out
    assert "not run: seed 1: FloatingPointError: physics exploded" in out
    assert json.loads(paths[0].read_text())["Crashed"] == 1
    with h5py.File(paths[1]) as file:
        assert [demo.attrs["seed"] for demo in file["data"].values()] == [0, 2, 3]


@pytest.mark.slow
def test_where_no_episode_could_be_run_the_figures_say_so(checkpoint, tmp_path, capsys):
    args = toy_args(trouble={str(seed): "raise" for seed in range(1, 9)})
    paths = tmp_path / "x.json", tmp_path / "x.hdf5"
    command = ["--seed", 1, "--json", paths[0], "--record", paths[1]]
    assert evaluate(with_env(checkpoint, args), *command, n=8) == 1
    error, out = one_error(capsys)
    assert "8 of 8 episodes could not be run" in error and "--record: no episode was run" in error
    assert out.count("physics exploded") == 2  # five times itself, then given up
    assert json.loads(paths[0].read_text()) == {"n": 0, "Crashed": 8}
    assert not paths[1].exists()


# Videos.

FRAMES = list(np.random.default_rng(0).integers(0, 255, (200, 64, 64, 3), dtype=np.uint8))


@needs_root
@pytest.mark.parametrize("left", [0, 4096, 100_000])
def test_a_video_for_which_there_is_no_room_leaves_the_old_one(left, disk):
    (disk / "x.mp4").write_text("the last one")
    fill(disk, left)
    with pytest.raises(OSError, match=r"x\.mp4: "):
        write_video(disk / "x.mp4", FRAMES)
    assert (disk / "x.mp4").read_text() == "the last one"
    assert sorted(path.name for path in disk.iterdir()) == ["others", "x.mp4"]


@pytest.mark.parametrize("shape", [(64, 64, 3), (50, 70, 3), (48, 48, 4)])
def test_a_video_holds_every_frame(shape, tmp_path):
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    write_video(tmp_path / "x", [np.full(shape, i, np.uint8) for i in range(20)], fps=20)
    reader = imageio_ffmpeg.read_frames(tmp_path / "x")
    assert next(reader)["size"] == (-(-shape[1] // 16) * 16, -(-shape[0] // 16) * 16)
    assert len(list(reader)) == 20


def test_what_is_no_video_is_refused(tmp_path):
    for frames in (FRAMES[:1] + [FRAMES[0][:32]], [FRAMES[0][..., :1]]):
        with pytest.raises(ValueError, match=r"\[H, W, 3\]"):
            write_video(tmp_path / "x.mp4", frames)
    assert list(tmp_path.iterdir()) == []


class Interrupted(list):
    """Frames; who reads them is interrupted in the middle."""

    def __iter__(self):
        yield from self[:100]
        raise KeyboardInterrupt


def test_an_interrupted_video_leaves_neither_a_process_nor_a_file(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write_video(tmp_path / "x.mp4", Interrupted(FRAMES))
    assert list(tmp_path.iterdir()) == []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            assert str(tmp_path).encode() not in command.read_bytes()


@needs_root
@needs_camera
def test_in_a_training_a_video_without_room_costs_a_warning(small_config, demos, disk, caplog):
    with h5py.File(demos, "r+") as file:
        file["data"].attrs["env_args"] = json.dumps(toy_args())
    rollout = {"enabled": True, "n": 2, "horizon": 12, "num_workers": 1}
    trainer = Trainer(small_config({"experiment": {"rollout": rollout, "render_video": True}}))
    trainer.run.videos = disk / "videos"
    trainer.run.videos.mkdir()
    fill(disk)
    with closing(Evaluator(trainer)) as evaluator:
        *_, record = evaluator.evaluate(trainer.algo)
    assert record["logs"]["n"] == 2
    assert "no video: " in caplog.text and "disk full" in caplog.text
    assert evaluator.video is None and list(trainer.run.videos.iterdir()) == []


@pytest.mark.slow
def test_a_failed_evaluation_says_what_to_do(small_config, demos, caplog):
    with h5py.File(demos, "r+") as file:
        file["data"].attrs["env_args"] = json.dumps(toy_args(trouble={"1000001": "raise"}))
    rollout = {"enabled": True, "n": 3, "horizon": 4, "num_workers": 1}
    trainer = Trainer(small_config({"experiment": {"rollout": rollout, "render_video": False}}))
    with closing(Evaluator(trainer)) as evaluator:
        *_, record = evaluator.evaluate(trainer.algo)
    assert record["logs"]["Crashed"] == 1
    warning = caplog.records[-1].getMessage()
    for words in ("failed: 1 of 3", "seed 1000001: FloatingPointError: physics", "no checkpoint"):
        assert words in warning


# Learning curves.


@pytest.fixture
def run(small_config):
    run = RunFolder.create(small_config())
    logs = {"n": 4, "Crashed": 0, "Success_Rate": 0.5, "Success_Rate_Low": 0.2}
    logs |= {"Success_Rate_High": 0.8, "Return": 1.0, "Horizon": 3.0}
    records = [
        {"type": "train", "epoch": 1, "step": 5, "time": 0.0, "logs": {"Loss": 0.5}},
        {"type": "rollout", "epoch": 1, "step": 5, "time": 0.0, "logs": logs},
        {"type": "rollout", "epoch": 2, "step": 9, "time": 0.0, "logs": logs | {"Crashed": 1}},
        {"type": "rollout", "epoch": 3, "step": 9, "time": 0.0, "logs": {"n": 0, "Crashed": 4}},
    ]
    lines = [json.dumps(record) + "\n" for record in records]
    (run.path / "metrics.jsonl").write_text("".join(lines))
    return run


@pytest.mark.slow
@pytest.mark.parametrize("damage", [b'{"type": "tr', b"\0" * 99, b"\xff\xfe\n", b"12\n", b"{}\n"])
def test_a_damaged_line_costs_no_learning_curve(damage, run):
    pytest.importorskip("matplotlib")
    path = run.path / "metrics.jsonl"
    first, *others = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + damage.rstrip(b"\n") + b"\n" + b"".join(others) + damage)
    curve = write_learning_curve(run)
    assert curve.read_bytes().startswith(b"\x89PNG")


@needs_root
def test_a_learning_curve_without_room_costs_a_warning(run, disk, caplog):
    pytest.importorskip("matplotlib")
    (disk / "metrics.jsonl").write_bytes((run.path / "metrics.jsonl").read_bytes())
    fill(disk)
    run.path = disk
    assert write_learning_curve(run) is None
    assert "no learning curve: " in caplog.text and "disk full" in caplog.text
    assert sorted(path.name for path in disk.iterdir()) == ["metrics.jsonl", "others"]


# Run folders.


@needs_root
@pytest.mark.parametrize("where", ["full", "read_only"])
def test_a_run_folder_that_cannot_be_made_leaves_nothing(where, request, small_config):
    folder = request.getfixturevalue(where)
    before = sorted(folder.rglob("*"))
    config = small_config({"train": {"output_dir": str(folder)}, "experiment": {"name": "a"}})
    with pytest.raises(OSError, match=f"^{folder}/a: .*--output"):
        RunFolder.create(config)
    left = [path for path in folder.rglob("*") if path not in before]
    assert left in ([], [folder / "a"]) and not any((folder / "a").glob("*"))


@needs_root
def test_weights_of_a_pipeline_for_which_there_is_no_room_are_one_sentence(full):
    weights = SimpleNamespace(get_weights=lambda: {"layer": np.zeros(5000)})
    with pytest.raises(OSError, match="actor_000001.pth: disk full"):
        Algorithm.save(weights, full, 1)
    assert [path.name for path in full.iterdir()] == ["others"]


@pytest.mark.parametrize("limit", [1000, 20_000])
def test_a_limit_on_the_size_of_files_is_one_sentence(limit, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(OSError, match="a.pth: cannot be written .File too large"):
            write_checkpoint(tmp_path / "a.pth", {"weights": torch.zeros(5000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [*tmp_path.iterdir()]


def opened(run):
    run.unlock()  # as if its process had ended
    return RunFolder.open(run.path)


def test_what_a_killed_process_was_writing_is_removed(run, small_config):
    leftovers = [run.path / ".last.1.partial.pth", run.models / ".model_epoch_1.pth.7.partial"]
    leftovers.append(run.videos / ".rollout.9.partial.mp4")
    for path in leftovers:
        path.write_text("half")
    before = {path for path in run.path.rglob("*") if path not in leftovers}
    reopened, config = opened(run)
    assert reopened.path == run.path and config == small_config()
    assert set(run.path.rglob("*")) == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda text: text[: len(text) // 2], "JSON"),
        (lambda text: "\0" * len(text), "JSON"),
        (lambda text: "", "JSON"),
        (lambda text: "[1, 2]", "algo_name"),
        (lambda text: text.replace("algo_name", "algo_mane", 1), "algo_name"),
        (lambda text: text.replace('"batch_size": 4', '"batch_size": "four"', 1), "batch_size"),
    ],
)
def test_a_run_folder_whose_config_is_damaged_says_which_and_what_to_do(content, words, run):
    damaged = content(run.config_file.read_text())
    run.config_file.write_text(damaged)
    with pytest.raises(ValueError, match=f"^{run.config_file}: .*{words}.*last.pth"):
        opened(run)
    assert run.config_file.read_text() == damaged


@needs_root
def test_what_is_no_run_folder_or_cannot_be_written_says_so(run, tmp_path, read_only):
    for path in (tmp_path / "removed", run.config_file, tmp_path):
        with pytest.raises(FileNotFoundError, match=f"{path}: "):
            RunFolder.open(path)
    subprocess.run(["mount", "-o", "remount,rw", read_only], check=True)
    (read_only / run.config_file.name).write_bytes(run.config_file.read_bytes())
    subprocess.run(["mount", "-o", "remount,ro", read_only], check=True)
    with pytest.raises(OSError, match="Read-only file system"):
        RunFolder.open(read_only)
