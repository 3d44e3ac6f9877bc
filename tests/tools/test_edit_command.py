"""``offrl edit``: each command as a person gives it, what it says of bad input, and that nothing is
left of an edit that did not end well."""

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

import h5py
import numpy as np
import programs
import pytest
from conftest import ROOT, heeding, write_demos

from offrl.__main__ import main
from offrl.data.provenance import provenance_of
from offrl.data.validation import Validation
from offrl.data.writer import DemoWriter
from offrl.edits.edit import of_files, open_file
from offrl.tools.edit import COMMANDS

LIFT = ROOT / "datasets/lift/low_dim.hdf5"
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root mounts file systems")


def edit(*words):
    return main(["edit", *map(str, words)])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Eight demonstrations with filter keys; the third and the sixth fail."""
    path = tmp_path_factory.mktemp("recorded") / "in.hdf5"
    rng = np.random.default_rng(0)
    with DemoWriter(path, {"env_name": "toy", "type": "mine", "env_kwargs": {}}) as writer:
        for i in range(8):
            done = np.eye(6)[5] * (i % 3 < 2)
            arrays = {"actions": rng.uniform(-0.3, 0.3, (6, 7)), "rewards": done, "dones": done}
            arrays["obs/camera"] = rng.integers(0, 9, (6, 8, 8, 3), dtype=np.uint8)
            writer.write(arrays | {"obs/a": rng.normal(size=(6, 2))}, seed=i)
        writer.write_split()
    return path


@pytest.fixture
def demos(recorded, tmp_path):
    return shutil.copy(recorded, tmp_path / "in.hdf5")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.hdf5"


def one_error(capsys):
    err = capsys.readouterr().err
    errors = [line for line in err.splitlines() if line.startswith("offrl: error: ")]
    assert len(errors) == 1 and "Traceback" not in err, err
    return errors[0]


# -- what each command does -----------------------------------------------------------------------

COMMAND_LINES = {
    "split": "--valid 0.25 --seed 3",
    "filter": "--success --max-length 9 --where 'seed != 0'",
    "merge": "--masks",
    "subset": "--n 3 --seed 1 --filter-key train",
    "rename": "--keys obs/a=obs/b mask/train=mask/mine --drop obs/camera",
    "rewards": "--success-only --scale 2 --shift -1",
    "actions": "--action-dict --kind delta",
    "repack": "--compression png --chunk-bytes 4096",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", COMMAND_LINES)
def test_a_command_writes_a_file_that_is_fit_to_train_on_and_says_how_it_came(
    what, demos, out, capsys
):
    before = hashlib.sha256(demos.read_bytes()).digest()
    assert edit(what, demos, *shlex.split(COMMAND_LINES[what]), "--output", out) == 0
    assert Validation(out).wrong == []
    said = capsys.readouterr().out
    with open_file(out) as file:
        assert said == f"{out}: {len(file.demos())} demonstrations, {6 * len(file.demos())} steps\n"
        assert file.attributes("demo_0")["source"].startswith("in.hdf5/demo_")
    found = provenance_of(out)
    assert found["command"].startswith(f"offrl edit {what} ") and str(out) in found["command"]
    (source,) = found["inputs"]
    assert source["file"] == demos.name and "history" not in found
    assert hashlib.sha256(demos.read_bytes()).digest() == before
    assert sorted(path.name for path in out.parent.iterdir()) == ["in.hdf5", "out.hdf5"]


def test_every_command_has_help_with_an_example_that_its_parser_takes(capsys):
    for name, command in COMMANDS.items():
        with pytest.raises(SystemExit) as ended:
            main(["edit", name, "--help"])
        assert ended.value.code == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert f"example: offrl edit {name} {command.example}" in shown
        assert edit(name, *shlex.split(command.example)) == 1  # there is no in.hdf5
        assert "no such file" in one_error(capsys)


def test_a_chain_of_edits_tells_the_whole_story(demos, tmp_path):
    a, b, c = (tmp_path / f"{name}.hdf5" for name in "abc")
    assert edit("subset", demos, "--n", 4, "--output", a) == 0
    assert edit("subset", demos, "--demos", "demo_6", "demo_7", "--output", b) == 0
    assert edit("merge", a, b, "--output", c) == 0
    found = provenance_of(c)
    assert "edit merge" in found["command"]
    assert [source["file"] for source in found["inputs"]] == [a.name, b.name]
    before = [found["history"][source["fingerprint"]] for source in found["inputs"]]
    assert ["edit subset" in record["command"] for record in before] == [True, True]
    assert before[1]["inputs"][0]["file"] == demos.name
    assert len({x["fingerprint"] for x in found["inputs"]}) == 2
    with open_file(c) as file:
        assert file.attributes("demo_5")["source"] == "b.hdf5/demo_1 < in.hdf5/demo_7"


def test_a_story_grows_by_a_record_for_each_file(demos, tmp_path):
    """Not by all that was told before, for each of its inputs."""
    both = demos
    for number in range(6):
        part, last = tmp_path / f"part{number}.hdf5", both
        both = tmp_path / f"both{number}.hdf5"
        assert edit("subset", last, "--n", 1, "--output", part) == 0
        assert edit("merge", last, part, "--output", both) == 0
    found = provenance_of(both)
    assert len(found["history"]) == 11 and len(json.dumps(found)) < 11 * 700


def test_attributes_and_the_rate_are_carried_along(tmp_path):
    demos = write_demos(tmp_path / "in.hdf5")
    with h5py.File(demos, "r+") as file:
        file["data"].attrs["operator"] = "Ada"
        file["data/demo_0"].attrs["home"] = np.arange(3.0)
        for demo in file["data"].values():
            demo.attrs["fps"] = 20
            demo.attrs["trajectory"] = "a name that calls of Python have, too"
    slow, copy = tmp_path / "slow.hdf5", tmp_path / "copy.hdf5"
    assert edit("downsample", demos, "--kind", "absolute", "--factor", 2, "--output", slow) == 0
    assert main(["convert", str(slow), str(copy), "--to", "robomimic"]) == 0
    with h5py.File(copy) as file:
        assert file["data"].attrs["operator"] == "Ada" and file["data/demo_0"].attrs["fps"] == 10


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["split", "--names", "a/b", "c"], "'a/b' is no name of a filter key"),
        (["split", "--names", "", "c"], "'' is no name of a filter key"),
        (["split", "--names", "a", "a"], "give two names"),
        (["rename", "--keys", "mask=other"], "cannot become other: filter keys are mask/KEY"),
        (["rename", "--keys", "mask/train=mask/"], "'' is no name of a filter key"),
    ],
)
def test_a_filter_key_has_a_name(words, said, demos, out, capsys):
    what, *options = words
    assert edit(what, demos, *options, "--output", out) == 1
    assert said in one_error(capsys) and not out.exists()


@pytest.mark.thorough
def test_the_simulator_is_asked_in_processes_and_actions_become_absolute(tmp_path, out, capsys):
    few, dense, far, slow = (tmp_path / f"{name}.hdf5" for name in ("few", "dense", "far", "slow"))
    assert edit("subset", LIFT, "--n", 3, "--output", few) == 0
    assert edit("rewards", few, "--dense", "--workers", 2, "--output", dense) == 0
    assert edit("actions", few, "--absolute", "--workers", 1, "--output", far) == 0
    assert edit("downsample", far, "--factor", 2, "--output", slow) == 0
    with open_file(few) as a, open_file(dense) as b, open_file(far) as c, open_file(slow) as d:
        assert b.env_args["env_kwargs"]["reward_shaping"]
        assert len(np.unique(b.steps("demo_0", "rewards"))) > 10
        assert b.steps("demo_0", "rewards")[-1] == 1
        arm = c.env_args["env_kwargs"]["controller_configs"]["body_parts"]["right"]
        assert arm["input_type"] == "absolute"
        # The first goal is within the 5 cm, per axis, that an action can ask for.
        base = np.array([-0.56, 0, 0.912])
        tip = a.steps("demo_0", "obs/robot0_eef_pos")[0] - base
        assert np.abs(c.steps("demo_0", "actions")[0, :3] - tip).max() < 0.051
        assert d.env_args["env_kwargs"]["control_freq"] == 10
        np.testing.assert_array_equal(
            d.steps("demo_0", "actions")[0], c.steps("demo_0", "actions")[1]
        )
        np.testing.assert_array_equal(
            d.trajectory("demo_0")["states"], c.trajectory("demo_0")["states"][::2]
        )
    capsys.readouterr()
    assert edit("downsample", few, "--factor", 2, "--workers", 1, "--output", out) == 1
    assert "data/demo_0: the motion of the 2 steps from step 0 on" in one_error(capsys)
    assert not out.exists() and not list(tmp_path.glob("*partial*"))


# -- bad input ------------------------------------------------------------------------------------


def truncated(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def no_hdf5(path):
    path.write_text("id,length\n0,12\n")


def d4rl(path):
    with h5py.File(path, "w") as file:
        for key, shape in {"observations": (9, 2), "actions": (9, 1), "rewards": 9}.items():
            file[key] = np.zeros(shape)
        file["terminals"], file["timeouts"] = np.zeros(9), np.eye(9)[8]


def absent(path):
    with h5py.File(path, "r+") as file:
        file["mask/mine"] = np.array(["demo_1", "demo_77"], dtype="S")


def env_args_no_json(path):
    with h5py.File(path, "r+") as file:
        file["data"].attrs["env_args"] = "{'env_name'"


def actions_missing(path):
    with h5py.File(path, "r+") as file:
        del file["data/demo_6/actions"]


def length_wrong(path):
    with h5py.File(path, "r+") as file:
        del file["data/demo_6/rewards"]
        file["data/demo_6/rewards"] = np.zeros(5)


def link_broken(path):
    with h5py.File(path, "r+") as file:
        file["data/demo_2/obs/gone"] = h5py.ExternalLink("nowhere.hdf5", "x")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncated, "not a readable HDF5 file"),
        (no_hdf5, "not a readable HDF5 file"),
        (d4rl, "is in D4RL's layout, .*: offrl convert"),
        (absent, "mask/mine names demo_77, which is not there; .*--drop mask/mine"),
        (env_args_no_json, "the attribute env_args of data is not JSON"),
        (actions_missing, "demo_6"),
        (length_wrong, "demo_6/rewards has "),
        (link_broken, "data/demo_2.* cannot be read"),
    ],
)
@pytest.mark.parametrize("what", ["split", "repack", "rewards"])
def test_a_damaged_input_is_one_line_and_stays_what_it_is(what, damage, words, demos, out, capsys):
    damage(demos)
    before = demos.read_bytes()
    options = ["--success-only"] if what == "rewards" else []
    assert edit(what, demos, *options, "--output", out) == 1
    assert re.search(words, one_error(capsys))
    assert demos.read_bytes() == before
    assert [path.name for path in out.parent.iterdir()] == ["in.hdf5"]


def test_a_mask_of_absent_demonstrations_can_be_dropped(demos, out):
    absent(demos)
    assert edit("rename", demos, "--drop", "mask/mine", "--output", out) == 0
    with open_file(out) as file:
        assert file.filter_keys() == ["train", "valid"]


@pytest.mark.parametrize("name", ["in.hdf5", "link.hdf5", "hard.hdf5", "dangling.hdf5", "other"])
def test_nothing_is_overwritten_least_of_all_the_input(name, demos, tmp_path, capsys):
    (tmp_path / "link.hdf5").symlink_to(demos)
    (tmp_path / "hard.hdf5").hardlink_to(demos)
    (tmp_path / "dangling.hdf5").symlink_to(tmp_path / "nowhere")
    (tmp_path / "other").write_text("work of years")
    before = demos.read_bytes()
    assert edit("split", demos, "--output", tmp_path / name) == 1
    assert "exists; choose another name" in one_error(capsys)
    assert demos.read_bytes() == before
    assert (tmp_path / "other").read_text() == "work of years"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("filter IN", "no condition is given"),
        ("filter IN --where length.real", "uses Attribute; allowed are"),
        ("filter IN --where nothing>3", "data/demo_0: the condition 'nothing>3' asks for nothing"),
        ("filter IN --min-length 99", "no demonstration fulfils length >= 99"),
        ("subset IN", "give --n, --filter-key, or --demos"),
        ("subset IN --n 9", "9 demonstrations are asked for, but there are 8"),
        ("subset IN --demos demo_9", "data has no demo_9"),
        ("subset IN --filter-key good", "no filter key 'good'"),
        ("rename IN", "give --keys OLD=NEW, or --drop KEY"),
        ("rename IN --drop actions", "demo_0 has no actions"),
        ("rewards IN", "give --dense, --success-only, --scale or --shift"),
        ("rewards IN --dense", "environment .env_args. is toy, and no task of robosuite's"),
        ("rewards IN --scale 1e300", "demo_0/rewards holds"),
        ("actions IN", "give --absolute, --action-dict or both"),
        ("actions IN --absolute --range -1 1", "give --absolute, --action-dict or both"),
        ("actions IN --absolute", "no task of robosuite's"),
        ("actions IN --action-dict", "say so: --kind delta, or --kind absolute"),
        ("actions IN --undo-range", "its actions are as they were recorded"),
        ("downsample IN --factor 2", "say so: --kind delta"),
        ("downsample IN --factor 2 --kind absolute", "toy has no control_freq"),
        ("merge IN IN", "would be merged with itself"),
        ("split nowhere.hdf5", "no such file"),
        ("split .", "a folder, but .*; name a file in it"),
    ],
)
def test_what_cannot_be_done_is_one_line(words, expected, demos, out, capsys):
    given = [str(demos) if word == "IN" else word for word in words.split()]
    assert edit(*given, "--output", out) == 1
    assert re.search(expected, one_error(capsys))
    assert [path.name for path in out.parent.iterdir()] == ["in.hdf5"]


@pytest.mark.parametrize(
    "words",
    [
        "split IN --valid 0",
        "split IN --valid 1.5",
        "split IN --valid many",
        "rename IN --keys a",
        "rename IN --keys a=b=c",
        "downsample IN --factor 1",
        "downsample IN",
        "repack IN --compression zip",
        "repack IN --chunk-bytes 0",
        "rewards IN --dense --success-only",
        "merge",
        "shuffle IN",
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(words, demos, out, capsys):
    given = [str(demos) if word == "IN" else word for word in words.split()]
    with pytest.raises(SystemExit) as ended:
        edit(*given, "--output", out)
    assert ended.value.code == 2 and not out.exists()


# -- edits that do not end well -------------------------------------------------------------------


@needs_root
@pytest.mark.parametrize("size", ["40k", "220k", "400k"])
def test_a_disk_that_is_full_before_or_half_way_is_one_line_and_nothing_is_left(
    size, tmp_path, capsys
):
    source = write_demos(tmp_path / "in.hdf5", lengths=[40] * 30, obs={"a": (30,)})
    before, disk = source.read_bytes(), tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=True)
    try:
        assert edit("subset", source, "--n", 30, "--output", disk / "out.hdf5") == 1
        assert f"{disk}/out.hdf5: disk full: " in one_error(capsys)
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
    assert source.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_edit_that_is_stopped_leaves_nothing(number, tmp_path):
    sources = [tmp_path / "a.hdf5", tmp_path / "b.hdf5"]
    for seed, source in enumerate(sources):
        write_demos(source, lengths=[3] * 400, seed=seed)
    before = [source.read_bytes() for source in sources]
    command = [sys.executable, "-m", "offrl", "edit", "merge", *sources, "--output"]
    process = programs.Popen(
        [*command, tmp_path / "out.hdf5"], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "out.partial.hdf5").exists() and process.poll() is None:
        time.sleep(0.005)
    time.sleep(0.1)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number, err
    assert f"offrl: interrupted ({number.name})" in err or number == signal.SIGINT
    assert "Traceback" not in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.hdf5", "b.hdf5"]
    assert [source.read_bytes() for source in sources] == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_meets_python_tidying_up_is_not_lost(number, demos, out, monkeypatch, capsys):
    start = threading.Thread.start

    def start_slowly(thread):
        start(thread)
        time.sleep(0.1)

    class Stopping:
        def __del__(self):
            os.kill(os.getpid(), number)

    def copy_after_a_signal(file, demo):
        Stopping()
        for _ in range(100):  # it comes again meanwhile
            time.sleep(0.1)
        raise AssertionError("the signal was lost")

    def stopping(files):
        return of_files(files, change=copy_after_a_signal)

    monkeypatch.setattr("offrl.edits.rearrange.of_files", stopping)
    monkeypatch.setattr(threading.Thread, "start", start_slowly)
    with heeding():
        assert edit("split", demos, "--output", out) == 128 + number
    assert "offrl: interrupted" in capsys.readouterr().err
    assert [path.name for path in out.parent.iterdir()] == ["in.hdf5"]


def test_a_recording_that_is_interrupted_while_it_is_opened_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("offrl.data.writer.text_sum", interrupted)
    with pytest.raises(KeyboardInterrupt):
        DemoWriter(tmp_path / "x.hdf5", {"env_name": "toy"}, durable=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_killed_simulator_is_one_line_and_nothing_is_left(tmp_path):
    out = tmp_path / "out.hdf5"
    command = [sys.executable, "-m", "offrl", "edit", "rewards", str(LIFT), "--dense", "--workers"]
    process = programs.Popen(
        [*command, "1", "--output", str(out)], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    children = []
    while not children and process.poll() is None:
        tasks = f"/proc/{process.pid}/task/{process.pid}/children"
        found = open(tasks).read().split()
        children = [
            int(child)
            for child in found
            if b"spawn_main" in open(f"/proc/{child}/cmdline", "rb").read()
        ]
        time.sleep(0.05)
    time.sleep(1)
    for child in children:
        os.kill(child, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert [line for line in err.splitlines() if "offrl: error: " in line] == [
        "offrl: error: a process that shares the work ended (killed by signal 9); if memory is "
        "short, use fewer --workers"
    ]
    assert list(tmp_path.iterdir()) == []


def test_the_attribute_is_json_that_other_programs_read(demos, out):
    assert edit("split", demos, "--output", out) == 0
    with h5py.File(out) as file:
        found = json.loads(file["data"].attrs["provenance"])
    assert found.keys() == {"command", "offrl", "inputs"}


@pytest.mark.parametrize("value", ["nan", "inf", "x"])
def test_numbers_are_finite(value, demos, out, capsys):
    with pytest.raises(SystemExit) as ended:
        edit("rewards", demos, "--scale", value, "--output", out)
    assert ended.value.code == 2 and "--scale" in capsys.readouterr().err and not out.exists()
