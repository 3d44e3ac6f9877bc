"""Damage of many kinds in HDF5 files: the same data as without it, or one clear line; never other
data in silence, and no traceback."""

import json

import h5py
import numpy as np
import pytest
import torch
from conftest import write_demos

from offrl.__main__ import main
from offrl.data.sequence import SequenceDataset

ENV_ARGS = {"env_name": "Lift", "type": 1, "env_kwargs": {"robots": "Panda"}}


def load(path, **options):
    """All that a training takes from a file, as bytes and lists."""
    data = SequenceDataset(
        path,
        ["position", "speed"],
        filter_by_attribute="train",
        hdf5_normalize_obs=True,
        action_config={"actions": {"normalization": "min_max"}},
        seq_length=2,
        **options,
    )
    batch = data.get_batch(torch.arange(len(data)))
    arrays = [batch["actions"], batch["rewards"], batch["dones"], *batch["obs"].values()]
    arrays += list(batch["next_obs"].values())
    stats = [*data.get_action_normalization_stats().values(), *data._obs_stats.values()]
    numbers = [array.numpy().tobytes() for array in arrays]
    numbers += [values.tobytes() for stat in stats for values in stat.values()]
    return data.demos, data.env_args, numbers


def replace(file, key, value, **options):
    if key in file:
        del file[key]
    return file.create_dataset(key, data=value, **options)


def attribute(key, value):
    return lambda f: f["data"].attrs.__setitem__(key, value)


def link(key, target):
    def change(file):
        del file[key]
        file[key] = target

    return change


def cut(key):
    def change(file):
        replace(file, key, file[key][()][:-1])

    return change


def cut_all(file):
    demo = file["data/demo_1"]
    for key in ("actions", "rewards", "dones", "obs/position", "obs/speed"):
        replace(demo, key, demo[key][()][:-2])


def unwritten(key, chunks):
    def change(file):
        shape = file[key].shape
        del file[key]
        dataset = file.create_dataset(key, shape, "f8", chunks=chunks)
        if chunks:
            dataset[:2] = 1.0

    return change


MASK = "mask/train"
LENGTHS = [(0, 5), (1, 7), (2, 6)]
DAMAGE = {
    "no data": (lambda f: f.pop("data"), ["no demonstrations"]),
    "data is an array": (lambda f: replace(f, "data", np.zeros(3)), ["no demonstrations"]),
    "no demonstrations": (lambda f: f["data"].clear(), ["no demonstrations"]),
    "a demonstration is missing": (lambda f: f.pop("data/demo_1"), [MASK, "missing", "demo_1"]),
    "a demonstration is an array": (
        lambda f: replace(f, "data/demo_0", np.zeros(3)),
        ["data/demo_0 is no group"],
    ),
    "a demonstration has no number": (
        lambda f: f.move("data/demo_2", "data/second"),
        "unharmed",  # it is not in the mask
    ),
    "mask of numbers": (lambda f: replace(f, MASK, np.arange(2)), [MASK, "no list of names"]),
    "mask is a group": (lambda f: (f.pop(MASK), f.create_group(MASK)), [MASK, "no list of names"]),
    "mask is one name": (lambda f: replace(f, MASK, "demo_0"), [MASK, "no list of names"]),
    "mask of masks": (
        lambda f: replace(f, MASK, np.array([["demo_0"], ["demo_1"]], "S")),
        [MASK, "no list of names"],
    ),
    "mask is no text": (
        lambda f: replace(f, MASK, np.array([b"demo_\xff"])),
        [MASK, "cannot be read"],
    ),
    "mask is empty": (lambda f: replace(f, MASK, np.array([], "S6")), [MASK, "is empty"]),
    "masks are an array": (lambda f: replace(f, "mask", np.zeros(2)), ["mask is no group"]),
    "mask names a demonstration twice": (
        lambda f: replace(f, MASK, np.array(["demo_0", "demo_1", "demo_0"], "S")),
        "unharmed",
    ),
    "actions are a number": (lambda f: replace(f, "data/demo_1/actions", 0.5), ["demo_1/actions"]),
    "actions are a group": (
        lambda f: (f.pop("data/demo_0/actions"), f.create_group("data/demo_0/actions")),
        ["data/demo_0/actions is a group"],
    ),
    "actions are empty": (
        lambda f: replace(f, "data/demo_0/actions", np.zeros((0, 2))),
        ["demo_0"],
    ),
    "actions are nothing": (
        lambda f: replace(f, "data/demo_0/actions", h5py.Empty("f4")),
        ["data/demo_0/actions"],
    ),
    "actions have no columns": (
        lambda f: replace(f, "data/demo_0/actions", np.zeros((5, 0))),
        ["data/demo_0/actions", "[5, 0]"],
    ),
    "obs have no columns": (
        lambda f: [replace(f, f"data/demo_{i}/obs/speed", np.zeros((n, 0))) for i, n in LENGTHS],
        ["data/demo_0/obs/speed", "[5, 0]"],
    ),
    "actions are words": (
        lambda f: replace(f, "data/demo_0/actions", [[b"left", b"up"]] * 5),
        ["data/demo_0/actions", "no numbers"],
    ),
    "actions are complex": (
        lambda f: replace(f, "data/demo_1/actions", np.ones((7, 2), complex)),
        ["data/demo_1/actions", "no numbers"],
    ),
    "actions are missing": (lambda f: f.pop("data/demo_1/actions"), ["demo_1", "no 'actions'"]),
    "actions are cut": (cut("data/demo_1/actions"), ["data/demo_1", "num_samples", "7", "6"]),
    "rewards are cut": (cut("data/demo_1/rewards"), ["data/demo_1/rewards", "[6]", "[7]"]),
    "obs are cut": (cut("data/demo_0/obs/speed"), ["data/demo_0/obs/speed", "[4, 2]", "[5, 2]"]),
    "all of a demonstration is cut": (cut_all, ["data/demo_1", "7 steps", "5"]),
    "rewards of the first are missing": (
        lambda f: f.pop("data/demo_0/rewards"),
        ["data/demo_0 has no rewards"],
    ),
    "dones of the first are missing": (
        lambda f: f.pop("data/demo_0/dones"),
        ["data/demo_0 has no dones"],
    ),
    "dones of another are missing": (lambda f: f.pop("data/demo_1/dones"), ["demo_1", "'dones'"]),
    "obs are missing": (lambda f: f.pop("data/demo_0/obs"), ["data/demo_0", "'obs/position'"]),
    "obs is an array": (
        lambda f: replace(f, "data/demo_0/obs", np.zeros((5, 3))),
        ["data/demo_0", "obs/position"],
    ),
    "obs of another width": (
        lambda f: replace(f, "data/demo_1/obs/speed", np.zeros((7, 3))),
        ["data/demo_1/obs/speed", "[7, 3]", "[7, 2]"],
    ),
    "obs are bytes in one": (
        lambda f: replace(f, "data/demo_1/obs/speed", np.ones((7, 2), np.uint8)),
        ["data/demo_1/obs/speed", "uint8", "float64"],
    ),
    "obs are bytes in the first": (
        lambda f: replace(f, "data/demo_0/obs/speed", np.ones((5, 2), np.uint8)),
        ["data/demo_1/obs/speed", "uint8", "float64"],
    ),
    "obs were never written": (
        unwritten("data/demo_0/obs/speed", None),
        ["data/demo_0/obs/speed", "ever written"],
    ),
    "half of the obs was never written": (
        unwritten("data/demo_1/obs/speed", (1, 2)),
        ["data/demo_1/obs/speed", "ever written"],
    ),
    "NaN": (
        lambda f: f["data/demo_1/obs/speed"].__setitem__((3, 1), np.nan),
        ["data/demo_1/obs/speed", "NaN", "step 3"],
    ),
    "infinity": (
        lambda f: f["data/demo_0/rewards"].__setitem__(2, np.inf),
        ["data/demo_0/rewards", "infinity", "step 2"],
    ),
    "beyond float32": (
        lambda f: f["data/demo_1/actions"].__setitem__((2, 0), 1e300),
        ["data/demo_1/actions", "beyond what float32 can hold", "step 2"],
    ),
    "dones of 2": (
        lambda f: f["data/demo_1/dones"].__setitem__(3, 2),
        ["data/demo_1/dones is neither 0 nor 1 at step 3 (2)"],
    ),
    "half dones": (
        lambda f: f["data/demo_0/dones"].__setitem__(4, 0.5),
        ["data/demo_0/dones is neither 0 nor 1 at step 4 (0.5)"],
    ),
    "dones of -1": (
        lambda f: replace(f, "data/demo_1/dones", -np.ones(7, int)),
        ["data/demo_1/dones is neither 0 nor 1 at step 0 (-1)"],
    ),
    "a soft link to nothing": (
        link("data/demo_0/rewards", h5py.SoftLink("/nowhere")),
        ["data/demo_0/rewards", "/nowhere", "leads nowhere"],
    ),
    "an external link to nothing": (
        link("data/demo_1/obs/speed", h5py.ExternalLink("gone.hdf5", "/speed")),
        ["data/demo_1/obs/speed", "gone.hdf5", "leads nowhere"],
    ),
    "a demonstration that is a link to nothing": (
        link("data/demo_1", h5py.ExternalLink("gone.hdf5", "/demo")),
        ["data/demo_1"],
    ),
    "a circle of links": (
        link("data/demo_1/actions", h5py.SoftLink("/data/demo_1/actions")),
        ["data/demo_1/actions"],
    ),
    "env_args are no JSON": (attribute("env_args", "{"), ["env_args", "not JSON"]),
    "env_args are a list": (attribute("env_args", "[1]"), ["env_args", "no JSON object"]),
    "env_args are a number": (attribute("env_args", 3), ["env_args"]),
    "env_args nest too deep": (attribute("env_args", "[" * 50000), ["env_args", "not JSON"]),
    "env_name is a list": (
        attribute("env_args", json.dumps(ENV_ARGS | {"env_name": ["Lift"]})),
        ["env_args", "env_name"],
    ),
    "env_kwargs are a list": (
        attribute("env_args", json.dumps(ENV_ARGS | {"env_kwargs": [1]})),
        ["env_args", "env_kwargs"],
    ),
    "env_kwargs name the environment": (
        attribute("env_args", json.dumps(ENV_ARGS | {"env_kwargs": {"env_name": "Lift"}})),
        ["env_args", "env_name in env_kwargs"],
    ),
    "num_samples is text": (
        lambda f: f["data/demo_0"].attrs.__setitem__("num_samples", "five"),
        ["num_samples of data/demo_0"],
    ),
    "too many steps for any memory": (
        lambda f: (
            f.pop("data/demo_1/obs/speed"),
            f.create_dataset("data/demo_1/obs/speed", (2**45, 2), "f8", chunks=(2**20, 2)),
        ),
        ["data/demo_1/obs/speed"],
    ),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    path = tmp_path_factory.mktemp("sound") / "demos.hdf5"
    return write_demos(path, env_args=json.dumps(ENV_ARGS))


@pytest.fixture
def damaged(sound, tmp_path):
    path = tmp_path / "demos.hdf5"
    path.write_bytes(sound.read_bytes())
    return path


def outcome(path, sound, **options):
    """``"unharmed"``, what is said in one line, or whatever else is a failure."""
    try:
        result = load(path, **options)
    except (ValueError, OSError) as error:
        message = str(error)
        is_clear = message.startswith(str(path)) and "\n" not in message
        return message if is_clear else f"unclear: {message}"
    except Exception as error:
        return f"traceback: {error!r}"
    return "unharmed" if result == load(sound, **options) else "silent: other data"


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("cache", ["all", None])
def test_damage_is_harmless_or_said_in_one_line(sound, damaged, kind, cache):
    change, expected = DAMAGE[kind]
    with h5py.File(damaged, "r+") as file:
        change(file)
    found = outcome(damaged, sound, hdf5_cache_mode=cache)
    for word in [expected] if isinstance(expected, str) else [str(damaged), *expected]:
        assert word in found
    assert not found.startswith(("unclear", "traceback", "silent"))


def test_the_program_ends_with_the_same_line(damaged, tmp_path, capsys):
    with h5py.File(damaged, "r+") as file:
        replace(file, MASK, np.arange(2))
    command = ["train", "--config", "bc.json", "--dataset", str(damaged), "--debug"]
    assert main([*command, "--output", str(tmp_path / "runs")]) == 1
    (line,) = [x for x in capsys.readouterr().err.splitlines() if "error" in x]
    assert line.startswith(f"offrl: error: {damaged}: mask/train is no list of names")


# -- what is said while training opens data -------------------------------------------------------


def test_a_name_that_a_mask_has_twice_is_said_and_used_once(damaged, caplog):
    with h5py.File(damaged, "r+") as file:
        replace(file, MASK, np.array(["demo_0", "demo_1", "demo_0"], "S"))
    demos, _, _ = load(damaged)
    assert demos == ["demo_0", "demo_1"]
    assert f"{damaged}: mask/train names demo_0 more than once" in caplog.text


def test_held_out_demonstrations_among_those_of_the_training_are_said(damaged, caplog):
    with h5py.File(damaged, "r+") as file:
        replace(file, "mask/valid", np.array(["demo_1", "demo_2"], "S"))
    load(damaged)
    assert f"{damaged}: mask/train and mask/valid share 1 demonstrations (demo_1" in caplog.text


@pytest.mark.parametrize("key", ["obs/speed", "actions"])
def test_a_stray_value_that_eats_a_dimension_is_said_with_its_place(tmp_path, key, caplog):
    path = write_demos(tmp_path / "demos.hdf5", lengths=(40, 40, 40))
    with h5py.File(path, "r+") as file:
        file[f"data/demo_1/{key}"][17, 1] = 1e6
    load(path)
    (said,) = [m for m in caplog.messages if "normalised" in m]
    assert f"{path}: demo_1/{key} at step 17: 1e+06 in dimension 1" in said


def test_seldom_movements_and_constants_are_no_stray_values(tmp_path, caplog):
    path = write_demos(tmp_path / "demos.hdf5", lengths=(200, 200, 5))
    with h5py.File(path, "r+") as file:
        for i in (0, 1):
            rows = np.zeros((200, 2))
            rows[:, 0] = np.arange(200) > 190  # a gripper that seldom closes
            rows[:, 1] = 1e-9 * np.sin(np.arange(200))  # noise of rounding ...
            rows[150:160, 1] = 1.0  # ... and a movement
            file[f"data/demo_{i}/obs/speed"][...] = rows
    load(path)
    assert not [m for m in caplog.messages if "normalised" in m]


@pytest.mark.parametrize("name", ["low_dim", "mixed"])
def test_nothing_is_said_of_the_data_that_ships(name, caplog):
    keys = ["object", "robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos"]
    SequenceDataset(
        f"datasets/lift/{name}.hdf5",
        keys + ["robot0_joint_vel", "robot0_joint_acc"],
        filter_by_attribute="train",
        hdf5_normalize_obs=True,
        action_config={"actions": {"normalization": "min_max"}},
    )
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("command", ["info", "validate"])
@pytest.mark.parametrize("is_circle", [True, False])
def test_groups_that_links_lead_to_again_are_said(tmp_path, capsys, command, is_circle):
    path = write_demos(tmp_path / "demos.hdf5")
    with h5py.File(path, "r+") as file:
        group = file["data/demo_1"]
        for i in range(18 * (not is_circle)):  # 2**18 ways to the last one
            below = file.create_group(f"data/demo_2/{i}")
            below["a"] = below["b"] = group
            group = below
        file["data/demo_1/obs/again"] = group
    assert main([command, str(path)]) == 1
    said = "".join(capsys.readouterr())
    assert f"{path}: data/demo_1" in said and "there twice" in said and len(said) < 20_000


@pytest.mark.parametrize("command", ["info", "validate"])
def test_actions_without_columns_are_said(tmp_path, capsys, command):
    path = write_demos(tmp_path / "demos.hdf5")
    with h5py.File(path, "r+") as file:
        for i, length in LENGTHS:
            replace(file, f"data/demo_{i}/actions", np.zeros((length, 0)))
    assert main([command, str(path)]) == 1
    assert f"{path}: data/demo_0/actions" in capsys.readouterr().out


ODD = {
    "provenance": ("data", "provenance", "[" * 100_000),
    "success": ("data/demo_1", "success", "no"),
    "frequency": ("data", "env_args", '{"env_name": "x", "env_kwargs": {"control_freq": 1e999}}'),
}


@pytest.mark.parametrize(("place", "name", "value"), ODD.values(), ids=ODD)
def test_odd_attributes_harm_nothing(tmp_path, capsys, place, name, value):
    path, new = write_demos(tmp_path / "demos.hdf5"), tmp_path / "new.hdf5"
    with h5py.File(path, "r+") as file:
        file[place].attrs[name] = value
    assert main(["info", str(path)]) == 0
    assert main(["convert", str(path), str(new), "--to", "robomimic"]) == 0
    assert load(new)[2] == load(path)[2]
