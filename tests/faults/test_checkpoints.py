"""Checkpoints that something damaged: it is found, or changes no value."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from comparison import assert_same_run, same, weights

from offrl import policy_from_checkpoint
from offrl.__main__ import main
from offrl.checkpoint import read_checkpoint, write_checkpoint
from offrl.training import train

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of three epochs, each with a checkpoint in ``models/``; and its config file."""
    from conftest import SMALL, write_demos

    folder = tmp_path_factory.mktemp("finished")
    algo = {"actor_layer_dims": [16, 16], "vae": {"enabled": True}}  # which draws latents
    content = SMALL | {"algo_name": "bc", "algo": algo}
    content["train"] = SMALL["train"] | {
        "data": str(write_demos(folder / "demos.hdf5")),
        "output_dir": str(folder / "runs"),
    }
    (folder / "config.json").write_text(json.dumps(content))
    assert main(["train", "--config", str(folder / "config.json")]) == 0
    (run,) = folder.glob("runs/test/2*")
    return run


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def flatten(content, prefix=""):
    if not isinstance(content, dict):
        return {prefix: content}
    parts = [flatten(value, f"{prefix}/{key}") for key, value in content.items()]
    return {key: value for part in parts for key, value in part.items()}


def is_equal(first, second):
    return same(flatten(first), flatten(second))[0]


@pytest.mark.slow
def test_a_flipped_bit_is_found_or_changes_nothing(run):
    path, rng = run / "last.pth", np.random.default_rng(0)
    whole, content = path.read_bytes(), read_checkpoint(path)
    outcomes = {"unharmed": 0, "clear": 0}
    for position in rng.integers(len(whole), size=400):
        damaged, bit = bytearray(whole), rng.integers(8)
        damaged[position] ^= 1 << int(bit)
        path.write_bytes(damaged)
        try:
            assert is_equal(read_checkpoint(path), content)
            outcomes["unharmed"] += 1
        except ValueError as error:
            assert str(path) in str(error) and len(str(error)) < 500
            outcomes["clear"] += 1
    assert outcomes["clear"] > 300, outcomes


@pytest.mark.parametrize("kind", ["cut", "zeros", "doubled", "swapped"])
def test_larger_damage_is_found(run, kind):
    path, rng = run / "last.pth", np.random.default_rng(1)
    whole = path.read_bytes()
    for _ in range(30):
        begin, end = sorted(rng.integers(len(whole), size=2))
        if kind == "cut":
            damaged = whole[:begin]
        elif kind == "zeros":
            damaged = whole[:begin] + bytes(end - begin) + whole[end:]
        elif kind == "doubled":
            damaged = whole[:end] + whole[begin:]
        else:
            damaged = whole[begin:end] + whole[:begin] + whole[end:]
        path.write_bytes(damaged)
        try:
            assert is_equal(read_checkpoint(path), torch.load(run / "previous.pth"))
        except ValueError as error:
            assert str(path) in str(error)
        else:
            pytest.fail("damage went unnoticed")


def test_earlier_files_and_robomimics_have_sums_that_hold():
    from conftest import GOLDEN, ROOT

    paths = [*(ROOT / "tests/checkpoints").glob("*.pth"), *GOLDEN.rglob("*.pth")]
    assert len(paths) > 30
    for path in paths:
        assert read_checkpoint(path)["algo_name"]


def damage(path):
    content = bytearray(path.read_bytes())
    for position in range(0, len(content), 500):
        content[position] ^= 16
    path.write_bytes(content)


def newest_model(run, epoch):
    (path,) = (run / "models").glob(f"model_epoch_{epoch}-*.pth")
    return path


def resumed(run, finished, capsys):
    """Resume the run, which must end as the whole one did; what it said."""
    # Epochs that were trained already are trained again, and all comes out the same.
    assert main(["train", "--resume", str(run)]) == 0
    assert same(weights(run), weights(finished))[0]
    return capsys.readouterr().err


def test_a_damaged_checkpoint_is_passed_over(run, finished, capsys):
    last, previous = run / "last.pth", run / "previous.pth"
    step = read_checkpoint(previous)["variable_state"]["step"]
    damage(last)
    said = resumed(run, finished, capsys)
    assert f"{last}: damaged" in said
    repeated = f"step {step}: steps {step + 1} to 15 are repeated"
    assert f"going on from previous.pth, {repeated}" in said
    assert (run / "last-damaged.pth").exists()

    previous.unlink()
    last.unlink()
    damage(newest_model(run, 3))
    said = resumed(run, finished, capsys)
    model = newest_model(run, 2).relative_to(run)
    assert f"going on from {model}, step 10" in said and f"{last}: no such checkpoint" in said
    assert last.exists()


def test_without_a_whole_checkpoint_there_is_no_going_on(run, capsys):
    before = {path: path.read_bytes() for path in run.rglob("*.pth")}
    for path in before:
        damage(path)
    assert main(["train", "--resume", str(run)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"offrl: error: {run}: no checkpoint to go on from")
    assert "last.pth: damaged" in line and "previous.pth: damaged" in line
    for path in before:
        path.unlink()
    assert main(["train", "--resume", str(run)]) == 1
    assert "no checkpoint to go on from" in capsys.readouterr().err


PARTS = [
    ("rng",),
    ("loader",),
    ("provenance",),
    ("variable_state", "epoch"),
    ("variable_state", "step"),
    ("model", "optimizers"),
]


@pytest.mark.parametrize("part", PARTS, ids=".".join)
def test_a_checkpoint_that_lacks_a_part_is_no_place_to_go_on_from(run, capsys, part):
    for path in [run / "previous.pth", *(run / "models").iterdir()]:
        path.unlink()
    content = read_checkpoint(run / "last.pth")
    where = content
    for name in part[:-1]:
        where = where[name]
    del where[part[-1]]
    if part == ("provenance",):  # else taken for robomimic's
        content["provenance"] = {}
        content["rng"] = {}
    write_checkpoint(run / "last.pth", content)
    assert main(["train", "--resume", str(run)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "last.pth: lacks " in line and "train it anew: offrl train --config" in line
    assert part == ("provenance",) or ".".join(part) in line
    policy, _ = policy_from_checkpoint(run / "last.pth", device="cpu")
    policy.start_episode()
    obs = {"position": np.zeros(3), "speed": np.zeros(2)}
    assert policy(obs).shape == (2,)


def test_a_run_folder_has_a_checkpoint_from_the_beginning(small_config):
    from offrl import Trainer

    trainer = Trainer(small_config())
    before = {k: v.clone() for k, v in trainer.algo.nets.state_dict().items()}
    content = read_checkpoint(trainer.run.last_checkpoint)
    assert content["variable_state"]["step"] == 0
    assert same(dict(content["model"]["nets"]), before)[0]


def test_the_last_two_checkpoints_stay(small_config):
    first = train(small_config()).run.path
    previous, last = (read_checkpoint(first / f"{n}.pth") for n in ("previous", "last"))
    assert previous["variable_state"]["step"] in (5, 10)  # it is not written after every epoch
    assert last["variable_state"]["step"] == 15


def test_where_there_are_no_links_the_last_two_stay_as_well(small_config, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("no links here")

    linked = train(small_config()).run.path
    monkeypatch.setattr(os, "link", refuse)
    assert_same_run(train(small_config()).run.path, linked)
