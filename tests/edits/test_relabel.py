"""Other rewards and other terms of actions: arithmetic, names, and the way back."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from offrl.data.writer import DemoWriter
from offrl.edits import simulated
from offrl.edits.edit import open_file
from offrl.edits.rearrange import merge
from offrl.edits.relabel import actions, downsample, from_range, parts_of, rewards, to_range
from offrl.normalize import axis_angle_to_rot_6d, matrix_to_axis_angle, rot_6d_to_matrix


def recorded(path, actions, dense=False):
    with DemoWriter(path, durable=False) as writer:
        for rows in np.array_split(actions, 2):
            done = np.eye(len(rows))[-1]
            rewards = np.full(len(rows), 0.25) if dense else done
            writer.write({"actions": rows, "rewards": rewards, "dones": done})
    return path


def written(edit, path):
    path.unlink(missing_ok=True)
    edit.write(path, {"command": "a test"})
    return open_file(path)


@pytest.mark.parametrize("dense", [False, True])
def test_rewards_of_success_are_scaled_and_then_shifted(dense, tmp_path):
    path = recorded(tmp_path / "a.hdf5", np.zeros((9, 2)), dense)
    with open_file(path) as file:
        edit = rewards(file, success_only=True, scale=2, shift=-1)
        with written(edit, tmp_path / "b.hdf5") as out:
            assert out.steps("demo_1", "rewards").tolist() == [-1, -1, -1, 1]
        edit = rewards(file, scale=4, shift=0.5)
        with written(edit, tmp_path / "b.hdf5") as out:
            expected = 4 * file.steps("demo_0", "rewards") + 0.5
            np.testing.assert_array_equal(out.steps("demo_0", "rewards"), expected)
            np.testing.assert_array_equal(
                out.steps("demo_0", "dones"), file.steps("demo_0", "dones")
            )


TURNS = arrays(np.float64, (5, 3), elements=st.floats(-1.7, 1.7))


@given(turns=TURNS)
def test_six_numbers_are_the_same_rotation(turns):
    given_actions = np.concatenate([np.ones((5, 3)), turns, -np.ones((5, 1))], axis=1)
    parts = parts_of(given_actions, "absolute", "a place")
    six = torch.from_numpy(parts["action_dict/abs_rot_6d"])
    back = matrix_to_axis_angle(rot_6d_to_matrix(six))
    np.testing.assert_allclose(back, turns, atol=1e-6)
    np.testing.assert_array_equal(parts["action_dict/abs_pos"], np.ones((5, 3)))
    np.testing.assert_array_equal(parts["action_dict/gripper"], -np.ones((5, 1)))
    np.testing.assert_array_equal(parts["action_dict/abs_rot_axis_angle"], turns)


def test_a_quarter_turn_is_what_it_is():
    six = axis_angle_to_rot_6d(np.array([[0, 0, np.pi / 2]]))
    np.testing.assert_allclose(six, [[0, -1, 0, 1, 0, 0]], atol=1e-6)


def test_parts_of_actions_have_the_names_that_robomimic_gives_them(tmp_path, monkeypatch):
    rows = np.random.default_rng(0).uniform(-1, 1, (8, 7))
    path = recorded(tmp_path / "a.hdf5", rows)
    with open_file(path) as file:
        for kind, prefix in (("delta", "rel"), ("absolute", "abs")):
            edit = actions(file, action_dict=True, kind=kind)
            with written(edit, tmp_path / "b.hdf5") as out:
                names = {key for key in out.trajectory("demo_0") if key.startswith("action_dict/")}
                parts = {f"{prefix}_{x}" for x in ("pos", "rot_axis_angle", "rot_6d")}
                assert names == {f"action_dict/{x}" for x in parts | {"gripper"}}
                assert out.shape("demo_0", "action_dict/gripper") == (1,)
        goals = (goal for goal in (rows[:4] + 5, rows[4:] + 5))
        monkeypatch.setattr(simulated, "simulate", lambda *_, **__: goals)
        monkeypatch.setattr(simulated, "absolute", lambda _: {"env_name": "x"})
        both = actions(file, absolute=True, action_dict=True)
        with written(both, tmp_path / "b.hdf5") as out:
            found = out.trajectory("demo_1")
            np.testing.assert_allclose(found["actions"], rows[4:] + 5, rtol=1e-6)
            np.testing.assert_allclose(found["action_dict/rel_pos"], rows[4:, :3], rtol=1e-6)
            np.testing.assert_allclose(found["action_dict/abs_pos"], rows[4:, :3] + 5, rtol=1e-6)
            assert len([key for key in found if key.startswith("action_dict/")]) == 7


def test_actions_of_other_robots_have_no_such_parts(tmp_path):
    with open_file(recorded(tmp_path / "a.hdf5", np.zeros((6, 4)))) as file:
        with pytest.raises(ValueError, match=r"demo_0/actions .*\[4\]"):
            actions(file, action_dict=True, kind="delta").write(
                tmp_path / "b.hdf5", {"command": "x"}
            )
        with pytest.raises(ValueError, match="--kind"):
            actions(file, action_dict=True)


ACTIONS = arrays(np.float32, (6, 3), elements=st.floats(-50, 50, width=32))
BOUNDS = st.tuples(st.floats(-2, 0), st.floats(0.5, 2))


@settings(max_examples=30)
@given(rows=ACTIONS, bounds=BOUNDS)
def test_actions_fill_a_range_and_come_back(rows, bounds, tmp_path_factory):
    folder = tmp_path_factory.mktemp("range")
    low, high = bounds
    rows[:, 2] = rows[0, 2]  # never moves
    with open_file(recorded(folder / "a.hdf5", rows)) as file:
        with written(to_range(file, low, high), folder / "b.hdf5") as out:
            scaled = np.concatenate([out.steps(demo, "actions") for demo in out.demos()])
            moves = np.ptp(rows, axis=0) > 0
            np.testing.assert_allclose(scaled[:, moves].min(0), low, atol=1e-4)
            np.testing.assert_allclose(scaled[:, moves].max(0), high, atol=1e-4)
            np.testing.assert_allclose(scaled[:, ~moves], (low + high) / 2, atol=1e-4)
            assert json.loads(out.attributes()["action_map"]).keys() == {"scale", "offset"}
            with written(from_range(out), folder / "c.hdf5") as back:
                again = np.concatenate([back.steps(demo, "actions") for demo in back.demos()])
                np.testing.assert_allclose(again, rows, atol=1e-4)
                assert "action_map" not in back.attributes()


def test_actions_in_another_range_are_taken_for_no_environment_s(tmp_path):
    with open_file(recorded(tmp_path / "a.hdf5", np.eye(7)[:6])) as file:
        with written(to_range(file, -1, 1), tmp_path / "b.hdf5") as out:
            for edit in (
                lambda: to_range(out, 0, 1),
                lambda: actions(out, action_dict=True, kind="delta"),
                lambda: downsample(out, 2, "delta"),
                lambda: merge(file, out),
            ):
                with pytest.raises(ValueError, match="--undo-range"):
                    edit()
        with pytest.raises(ValueError, match="action_map"):
            from_range(file)
        with pytest.raises(ValueError, match="--range 1 1"):
            to_range(file, 1, 1)
