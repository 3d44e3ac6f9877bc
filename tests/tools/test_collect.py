"""``offrl collect``: demonstrations by scripted experts."""

import json

import h5py
import numpy as np
import pytest

from offrl.__main__ import main
from offrl.data.sequence import SequenceDataset

HORIZONS = {"Stack": 200, "Door": 200, "PickPlaceCan": 250, "NutAssemblySquare": 250}


@pytest.mark.thorough
def test_demonstrations_are_collected_the_same_by_any_number_of_workers(tmp_path):
    command = "collect --n 4 --noise 0.2".split()
    for workers in ("1", "2"):
        output = str(tmp_path / f"{workers}.hdf5")
        assert main([*command, "--workers", workers, "--output", output]) == 0
    with h5py.File(tmp_path / "1.hdf5") as one, h5py.File(tmp_path / "2.hdf5") as two:
        assert json.loads(one["data"].attrs["env_args"])["env_name"] == "Lift"
        assert [len(one[f"mask/{key}"]) for key in ("train", "valid")] == [3, 1]
        for name in ("demo_0", "demo_3"):
            for key in ("actions", "states", "obs/object", "rewards", "dones"):
                np.testing.assert_array_equal(one[f"data/{name}/{key}"], two[f"data/{name}/{key}"])
            demo = one[f"data/{name}"]
            assert demo["actions"].dtype == np.float32 and "next_obs" not in demo
            assert demo["rewards"][-1] == demo["dones"][-1] == 1.0
            assert "<mujoco" in demo.attrs["model_file"]


@pytest.mark.slow
def test_failures_are_dropped_unless_asked_for(tmp_path, capsys):
    # With five steps nobody pushes anything to its place.
    hopeless = "collect --env push-v3 --n 2 --horizon 5 --workers 1 --output".split()
    assert main([*hopeless, str(tmp_path / "none.hdf5")]) == 1
    assert "none of 50 episodes succeeded" in capsys.readouterr().err
    assert not (tmp_path / "none.hdf5").exists()
    assert main([*hopeless, str(tmp_path / "failures.hdf5"), "--keep-failures"]) == 0
    dataset = SequenceDataset(tmp_path / "failures.hdf5", ["flat"])
    assert dataset.lengths.tolist() == [5, 5]


@pytest.mark.thorough
def test_the_last_episodes_may_fail_one_by_one(tmp_path, capsys):
    """Two of three episodes have too much noise: some on end fail, and nothing is given up."""
    command = "collect --env push-v3 --n 2 --noise 0 9 9 --horizon 150 --workers 1 --output"
    assert main([*command.split(), str(tmp_path / "two.hdf5")]) == 0
    assert "2 demonstrations of push-v3, 5 episodes tried" in capsys.readouterr().out


@pytest.mark.slow
def test_dense_rewards_are_recorded_and_success_is_still_the_end(tmp_path):
    path = tmp_path / "dense.hdf5"
    command = "collect --n 2 --noise 0.1 3 --keep-failures --horizon 60 --workers 1".split()
    shaped = ["--env-kwargs", '{"reward_shaping": true}']
    assert main([*command, *shaped, "--output", str(path)]) == 0
    with h5py.File(path) as file:
        success, failure = file["data/demo_0"], file["data/demo_1"]
        for demo in (success, failure):
            assert (demo["rewards"][:-1] > 0).all() and len(set(demo["rewards"])) > 10
        assert success["rewards"][-1] == success["dones"][-1] == success["dones"][()].sum() == 1
        assert len(failure["dones"]) == 60 and not failure["dones"][()].any()


def test_an_unknown_expert_names_those_there_are(tmp_path, capsys):
    assert main(["collect", "--env", "Lyft", "--output", str(tmp_path / "x.hdf5")]) == 1
    assert "Did you mean 'Lift'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--n", "0"],
        ["--seed", "-1"],
        ["--horizon", "0"],
        ["--workers", "many"],
        ["--noise", "0.1", "-1"],
        ["--noise", "nan"],
        ["--env-kwargs", "{"],
    ],
)
def test_numbers_out_of_range_are_refused(tmp_path, capsys, arguments):
    with pytest.raises(SystemExit) as stop:
        main(["collect", "--output", str(tmp_path / "x.hdf5"), *arguments])
    assert stop.value.code == 2
    assert arguments[0] in capsys.readouterr().err and not (tmp_path / "x.hdf5").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("task", ["Stack", "push-v3", "Door", "PickPlaceCan", "NutAssemblySquare"])
def test_a_name_a_number_and_a_seed_suffice(task, tmp_path):
    """The simulator and the horizon follow from the task, and ``dones`` tells who succeeded."""
    command = ["collect", "--env", task, "--n", "2", "--keep-failures", "--seed", "7"]
    assert main([*command, "--noise", "0", "3", "--output", str(tmp_path / "x.hdf5")]) == 0
    with h5py.File(tmp_path / "x.hdf5") as file:
        demos = {demo.attrs["seed"]: demo for demo in file["data"].values()}
        success, failure = (demos[seed] for seed in (2_000_008, 2_000_007))
        assert success["dones"][-1] == success["dones"][()].sum() == 1
        assert success["rewards"][-1] == 1
        assert not failure["dones"][()].any()
        assert len(failure["actions"]) == (500 if task == "push-v3" else HORIZONS[task])


@pytest.mark.thorough
def test_the_door_keeps_its_latch(tmp_path):
    output = str(tmp_path / "door.hdf5")
    assert main([*"collect --env Door --n 1 --workers 1 --output".split(), output]) == 0
    with h5py.File(output) as file:
        demo = file["data/demo_0"]
        assert 'name="Door_latch_joint"' in demo.attrs["model_file"]
        hinge, handle = demo["obs/object"][:, 6], demo["obs/object"][:, 13]
        assert hinge.max() > 0.2 and handle[hinge < 0.01].max() > 0.5  # pressed first


@pytest.mark.thorough
def test_styles_take_turns_and_differ(tmp_path):
    """The hand opens on one side of the can or on the other, and goes up once it has let go."""
    output = str(tmp_path / "two.hdf5")
    styles = ["--styles", "left", "right"]
    command = ["collect", "--env", "PickPlaceCan", "--n", "4", "--noise", "0.05", "0.1", *styles]
    assert main([*command, "--output", output]) == 0
    with h5py.File(output) as file:
        demos = [file[f"data/demo_{i}"] for i in range(4)]
        assert [demo.attrs["style"] for demo in demos] == ["left", "left", "right", "right"]
        opens = [int(np.argmax(demo["actions"][:, -1] < 0)) for demo in demos]
        hands = [d["obs/robot0_eef_pos"][i, 1] for d, i in zip(demos, opens, strict=True)]
        cans = [d["obs/object"][i, 8] for d, i in zip(demos, opens, strict=True)]
        aside = np.subtract(hands, cans)  # towards the left of the robot
        assert min(aside[:2]) > 0.05 and max(aside[2:]) < -0.05
        assert np.median([demo["actions"][-1, 2] for demo in demos]) > 0.5


@pytest.mark.parametrize(
    ("task", "has"), [("Lift", "solves it in one way"), ("PickPlaceCan", "has left, right")]
)
def test_a_style_that_there_is_not_is_said(task, has, tmp_path, capsys):
    command = ["collect", "--env", task, "--styles", "left", "upside-down"]
    assert main([*command, "--output", str(tmp_path / "x.hdf5")]) == 1
    assert has in (said := capsys.readouterr().err) and "upside-down" in said
