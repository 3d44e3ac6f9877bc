"""What lies in a run folder may be damaged, missing, or not writable."""

import json
import os
import shutil
import subprocess
from contextlib import contextmanager

import pytest
from comparison import assert_same_run, records, rows, same, weights
from conftest import SMALL, write_demos

from offrl.__main__ import main
from offrl.tree import merge

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, and one like it that was trained for two of its four epochs."""
    folder = tmp_path_factory.mktemp("finished")
    write_demos(folder / "demos.hdf5")
    content = merge(
        SMALL,
        {
            "algo_name": "bc",
            "algo": {"actor_layer_dims": [16, 16]},
            "experiment": {"logging": {"log_tb": False}},
            "train": {
                "data": str(folder / "demos.hdf5"),
                "output_dir": str(folder / "runs"),
                "num_epochs": 4,
            },
        },
    )
    (folder / "config.json").write_text(json.dumps(content))
    config = str(folder / "config.json")
    assert main(["train", "--config", config, "--name", "whole"]) == 0
    half = [*("--name", "half"), "--set", "train.num_epochs=2"]
    assert main(["train", "--config", config, *half]) == 0
    (whole,), (half,) = folder.glob("runs/whole/2*"), folder.glob("runs/half/2*")
    for path in half.glob("config-*.json"):
        changed = merge(json.loads(path.read_text()), {"train": {"num_epochs": 4}})
        path.write_text(json.dumps(changed))
    return whole, half


@pytest.fixture
def half(finished, tmp_path):
    return shutil.copytree(finished[1], tmp_path / "half")


def resume(run, capsys):
    status = main(["train", "--resume", str(run)])
    return status, capsys.readouterr().err


def test_a_run_goes_on_where_it_was(finished, half, capsys):
    assert resume(half, capsys)[0] == 0
    assert_same_run(half, finished[0])


DAMAGES = {
    "half": lambda lines: [*lines[:-1], lines[-1][: len(lines[-1]) // 2]],
    "half in the middle": lambda lines: [lines[0], lines[1][:20] + b"\n", *lines[2:]],
    "zeros": lambda lines: [lines[0], bytes(len(lines[1])), *lines[2:]],
    "zeros at the end": lambda lines: [*lines, bytes(5000)],
    "no text": lambda lines: [lines[0], b"\xff\xfe\x00\n", *lines[2:]],
    "no record": lambda lines: [b'{"epoch": 1}\n', b"[1, 2]\n", b"null\n", *lines],
    "infinite numbers": lambda lines: [lines[0], b"1e999\n", *lines[1:]],
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_lines_of_a_log_are_left_out_which_is_said(finished, half, capsys, damage):
    path = half / "metrics.jsonl"
    path.write_bytes(b"".join(DAMAGES[damage](path.read_bytes().splitlines(keepends=True))))
    status, said = resume(half, capsys)
    assert status == 0 and f"{path}: " in said and "damaged lines are left out" in said
    whole = records(finished[0])
    kept = records(half)
    assert all(record in whole for record in kept) and len(kept) >= len(whole) - 2
    assert [r for r in kept if r["epoch"] > 2] == [r for r in whole if r["epoch"] > 2]
    assert {row[:2] for row in rows(half)} == {(r["type"], str(r["epoch"])) for r in kept}
    assert same(weights(half), weights(finished[0]))[0]


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["logs", "metrics.jsonl", "metrics.csv", "models", "videos"])
def test_what_is_missing_is_made_anew(finished, half, capsys, gone):
    (shutil.rmtree if (half / gone).is_dir() else os.unlink)(half / gone)
    status, said = resume(half, capsys)
    assert status == 0 and (half / gone).exists() and "Traceback" not in said
    assert (gone == "metrics.jsonl") == ("metrics.jsonl: lost" in said)
    assert same(weights(half), weights(finished[0]))[0]


@contextmanager
def mounted(folder, *options):
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def contents(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", ["metrics.jsonl", "metrics.csv", "logs/log.txt"])
def test_a_folder_in_the_place_of_a_file_is_one_sentence(half, capsys, name):
    (half / name).unlink()
    (half / name).mkdir()
    status, said = resume(half, capsys)
    assert status == 1 and f"offrl: error: {half / name}" in said and "Traceback" not in said


def test_a_folder_that_is_read_only_is_one_sentence(half, tmp_path, capsys):
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=10m", "tmpfs") as disk:
        run = shutil.copytree(half, disk / "run")
        before = contents(run)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        status, said = resume(run, capsys)
        (line,) = [x for x in said.splitlines() if x.startswith("offrl: error:")]
        assert status == 1 and str(run) in line and "Read-only file system" in line
        assert "Traceback" not in said and contents(run) == before


def train_on_full_disk(free, half, disk, capsys):
    """Resume on a disk with so many bytes free; what was said, and what is left."""
    run = shutil.copytree(half, disk / "run")
    room = os.statvfs(disk)
    with open(disk / "ballast", "wb") as file:
        file.write(bytes(max(room.f_bavail * room.f_frsize - free, 0)))
    status, said = resume(run, capsys)
    (disk / "ballast").unlink()
    return run, status, said


def test_a_full_disk_is_said_where_tensorboard_writes_as_well(finished, half, tmp_path, capsys):
    (path,) = half.glob("config-*.json")
    logging = {"experiment": {"logging": {"log_tb": True}}}
    path.write_text(json.dumps(merge(json.loads(path.read_text()), logging)))
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=3m", "tmpfs") as disk:
        for free in (30_000, 90_000):
            run, status, said = train_on_full_disk(free, half, disk, capsys)
            assert status == 0 or "disk full" in said, said
            assert "Traceback" not in said
            assert status == 0 or resume(run, capsys)[0] == 0
            assert same(weights(run), weights(finished[0]))[0]
            shutil.rmtree(run)


@pytest.mark.slow
@pytest.mark.parametrize(
    "free",
    [
        *(0, 20_000, 60_000),
        *(pytest.param(x, marks=pytest.mark.thorough) for x in (4096, 8192, 40_000, 100_000)),
    ],
)
def test_a_full_disk_loses_nothing(finished, half, tmp_path, capsys, free):
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=3m", "tmpfs") as disk:
        run, status, said = train_on_full_disk(free, half, disk, capsys)
        assert status == (1 if free < 40_000 else status)
        if status:
            (line,) = [x for x in said.splitlines() if x.startswith("offrl: error:")]
            assert "disk full" in line and str(run) in line and "Traceback" not in said, said
            assert not list(run.rglob(".*partial*"))
            assert resume(run, capsys)[0] == 0
        assert same(weights(run), weights(finished[0]))[0]
        assert records(run) == records(finished[0])


def test_a_disk_that_fills_up_from_the_beginning(finished, tmp_path, capsys):
    config = str(finished[0].parents[2] / "config.json")
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=16k", "tmpfs") as disk:
        assert main(["train", "--config", config, "--output", str(disk)]) == 1
        said = capsys.readouterr().err
        assert "disk full" in said and "Traceback" not in said
        assert not [p for p in disk.rglob("*") if p.is_file()]


def test_a_config_that_was_edited_is_pointed_out(half, capsys):
    (path,) = half.glob("config-*.json")
    edited = merge(json.loads(path.read_text()), {"train": {"batch_size": 3}})
    path.write_text(json.dumps(edited))
    status, said = resume(half, capsys)
    assert status == 0
    assert "trained with: train.batch_size (3, was 4), train.num_epochs (4, was 2)" in said


def test_a_log_that_lost_lines_is_pointed_out(half, capsys):
    text = half / "logs/log.txt"
    text.write_text(text.read_text()[:50])
    assert f"{text}: " in resume(half, capsys)[1]


def test_parts_of_another_kind_are_one_line(half, capsys):
    from offrl.checkpoint import read_checkpoint, write_checkpoint

    for part, value in (("rng", {"torch": 3}), ("loader", {"position": "seven"})):
        content = read_checkpoint(half / "last.pth") | {part: value}
        write_checkpoint(half / "last.pth", content)
        status, said = resume(half, capsys)
        (line,) = [x for x in said.splitlines() if x.startswith("offrl: error:")]
        assert status == 1 and "last.pth: no training goes on from it" in line
        assert "Traceback" not in said
