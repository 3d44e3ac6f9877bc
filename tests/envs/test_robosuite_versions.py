"""What robosuite 1.2 to 1.4 recorded, under the installed one: arguments and data of theirs."""

import copy
import gzip
import json
import logging
import xml.etree.ElementTree as ET

import h5py
import numpy as np
import pytest
from conftest import GOLDEN
from scipy.spatial.transform import Rotation

from offrl.checkpoint import env_from_checkpoint
from offrl.envs import make_env, say_once
from offrl.envs.robosuite import RobosuiteEnv
from offrl.envs.robosuite.versions import earlier_order

pytestmark = pytest.mark.slow

LIMITS = {"kp_limits": [0, 300], "impedance_mode": "fixed"}
OSC = {
    "input_max": 1,
    "input_min": -1,
    "output_max": [0.05, 0.05, 0.05, 0.5, 0.5, 0.5],
    "output_min": [-0.05, -0.05, -0.05, -0.5, -0.5, -0.5],
    "kp": 150,
    **LIMITS,
    "position_limits": None,
    "orientation_limits": None,
    "uncouple_pos_ori": True,
    "control_delta": True,
    "interpolation": None,
    "ramp_ratio": 0.2,
}
JOINTS = {"input_max": 1, "input_min": -1, "interpolation": None, "ramp_ratio": 0.2}
# As 1.4's files of controllers have them; PUBLISHED as robomimic's first data sets do.
OSC_POSE = {"type": "OSC_POSE", **OSC, "damping_ratio": 1, "damping_ratio_limits": [0, 10]}
PUBLISHED = {"type": "OSC_POSE", **OSC, "damping": 1, "damping_limits": [0, 10]}
OSC_POSITION = {
    **{key: value for key, value in OSC_POSE.items() if key != "orientation_limits"},
    "type": "OSC_POSITION",
    "output_max": [0.05, 0.05, 0.05],
    "output_min": [-0.05, -0.05, -0.05],
}
JOINT_VELOCITY = {
    "type": "JOINT_VELOCITY",
    **JOINTS,
    "output_max": 0.5,
    "output_min": -0.5,
    "kp": 3.0,
    "velocity_limits": [-1, 1],
}
JOINT_POSITION = {
    "type": "JOINT_POSITION",
    **JOINTS,
    "output_max": 0.05,
    "output_min": -0.05,
    "kp": 50,
    "damping_ratio": 1,
    **LIMITS,
    "damping_ratio_limits": [0, 10],
    "qpos_limits": None,
}
IK_POSE = {
    "type": "IK_POSE",
    "ik_pos_limit": 0.02,
    "ik_ori_limit": 0.05,
    "interpolation": None,
    "ramp_ratio": 0.2,
}
KWARGS = {
    "has_renderer": False,
    "has_offscreen_renderer": False,
    "ignore_done": True,
    "use_object_obs": True,
    "use_camera_obs": False,
    "camera_depths": False,
    "control_freq": 20,
    "reward_shaping": False,
}


def env_args(config, task="Lift", robots=("Panda",), version="1.4.1", **more):
    kwargs = {**KWARGS, "robots": list(robots), "controller_configs": config, **more}
    return {"env_name": task, "env_version": version, "type": 1, "env_kwargs": kwargs}


def parts(env, robot=0):
    return env._env.robots[robot].part_controllers


@pytest.fixture
def recorded(tmp_path):
    """A function: name -> ``env_args``, the model's text and arrays of the one demonstration."""

    def read(name):
        path = tmp_path / f"{name}.hdf5"
        path.write_bytes(gzip.decompress((GOLDEN / f"robosuite14/{name}.hdf5.gz").read_bytes()))
        with h5py.File(path) as file:
            demo = file["data/demo_0"]
            arrays = {}
            demo.visititems(
                lambda key, x: arrays.update({key: x[()]} if hasattr(x, "shape") else {})
            )
            return json.loads(file["data"].attrs["env_args"]), demo.attrs["model_file"], arrays

    return read


@pytest.mark.parametrize(
    ("config", "dims"),
    [
        pytest.param(OSC_POSE, 7, marks=pytest.mark.thorough),
        pytest.param(PUBLISHED, 7, marks=pytest.mark.thorough),
        ({**PUBLISHED, "damping": 0.5, "damping_limits": [0.5, 2]}, 7),
        ({**OSC_POSE, "control_delta": False}, 7),
        ({**OSC_POSE, "impedance_mode": "variable"}, 19),
        (OSC_POSITION, 4),
        pytest.param(JOINT_VELOCITY, 8, marks=pytest.mark.thorough),
        pytest.param({**JOINT_VELOCITY, "kp": 0.03}, 8, marks=pytest.mark.thorough),
        (JOINT_POSITION, 8),
        (IK_POSE, 7),
        (None, 8),  # nobody chose: joint velocities, where 1.5 takes poses
    ],
)
def test_controllers_of_one_arm_do_what_they_were_asked_for(config, dims):
    args = env_args(config)
    before = copy.deepcopy(args)
    env = make_env(args)
    env.reset(seed=0)
    arm, asked = parts(env)["right"], config or {"type": "JOINT_VELOCITY", "kp": 0.03}
    assert args == before and env.action_space.shape == (dims,)
    assert arm.name == asked["type"]
    if asked["type"].startswith("OSC"):
        assert arm.input_ref_frame == "world"
        assert arm.input_type == ("delta" if asked["control_delta"] else "absolute")
        damping = asked.get("damping", 1)
        np.testing.assert_allclose(arm.kd, 2 * np.sqrt(150) * damping)
        limits = asked.get("damping_limits", [0, 10])
        assert [arm.damping_ratio_min[0], arm.damping_ratio_max[0]] == limits
    obs, *_ = env.step(np.zeros(dims))
    assert np.isfinite(obs["object"]).all()
    env.close()


def test_an_absolute_goal_is_in_the_world():
    env = make_env(env_args({**OSC_POSE, "control_delta": False}))
    obs, _ = env.reset(seed=0)
    here = obs["robot0_eef_pos"]
    goal = here + [0.05, 0.03, 0.02]
    turn = Rotation.from_matrix(parts(env)["right"].ref_ori_mat).as_rotvec()
    for _ in range(40):
        obs, *_ = env.step([*goal, *turn, -1])
    assert np.linalg.norm(obs["robot0_eef_pos"] - goal) < 0.01 < np.linalg.norm(here - goal)
    env.close()


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(OSC_POSE, marks=pytest.mark.thorough),
        [OSC_POSE, {**OSC_POSE, "kp": 100}],
    ],
)
def test_two_robots_have_a_controller_each(config):
    args = env_args(config, "TwoArmLift", ["Panda"] * 2, env_configuration="single-arm-opposed")
    env = make_env(args)
    gains = [parts(env, robot)["right"].kp[0] for robot in (0, 1)]
    assert gains == [150, 100 if isinstance(config, list) else 150]
    assert env.action_space.shape == (14,)
    env.close()


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(OSC_POSE, marks=pytest.mark.thorough),
        [[OSC_POSE, {**OSC_POSE, "kp": 100}]],
    ],
)
def test_a_robot_of_two_arms_takes_arm_and_gripper_in_turn(config):
    env = make_env(env_args(config, "TwoArmLift", ["Baxter"], env_configuration="bimanual"))
    assert list(parts(env)) == ["right", "right_gripper", "left", "left_gripper"]
    assert parts(env)["left"].kp[0] == (150 if isinstance(config, dict) else 100)
    env.close()
    env = make_env(env_args(config, "TwoArmPegInHole", ["Baxter"], env_configuration="bimanual"))
    assert list(parts(env)) == ["right", "left"] and env.action_space.shape == (12,)
    env.close()


@pytest.mark.parametrize(
    "args",
    [
        env_args({"type": "BASIC", "body_parts": {"right": OSC_POSE}}, version="1.4.1"),
        env_args(OSC_POSE, version="1.5.2"),
        env_args(OSC_POSE, version="2.0.0"),
        env_args({**OSC_POSE, "type": "EE_POS_ORI"}),
        env_args(None, version=None),
    ],
)
def test_all_else_stays_as_it_is(args):
    before = copy.deepcopy(args)
    assert RobosuiteEnv.kwargs_of(args) == before["env_kwargs"] and args == before


def test_arguments_that_1_5_does_not_take_are_left_out():
    args = env_args(OSC_POSE, renderer="nvisii", renderer_config={"x": 1}, mount_types="default")
    kwargs = RobosuiteEnv.kwargs_of(args)
    assert not {"renderer", "renderer_config", "mount_types"} & kwargs.keys()
    assert kwargs["base_types"] == "default"


def test_what_moves_otherwise_is_said_once(caplog):
    say_once.cache_clear()
    limited = {**PUBLISHED, "position_limits": [[-1, -1, -1], [1, 1, 1]]}
    for _ in range(2):
        make_env(env_args(limited, version=None)).close()
    (said,) = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert said.startswith("Lift: recorded with robosuite 1.4 or earlier, simulated with 1.5.2")
    assert "limits" in said and "Play back by states" in said and "\n" not in said


@pytest.mark.parametrize(
    "name",
    [
        "can",
        "transport",
        pytest.param("lift", marks=pytest.mark.thorough),
        pytest.param("pot", marks=pytest.mark.thorough),
    ],
)
def test_recorded_states_show_what_was_seen_then(name, recorded):
    args, model, arrays = recorded(name)
    env = make_env(args)
    env.reset(seed=3)  # in another scene
    seen = {key.removeprefix("obs/"): x for key, x in arrays.items() if key.startswith("obs/")}
    for i in (0, 2, 1, 4):
        state = {"states": arrays["states"][i]} | ({"model": model} if i == 0 else {})
        obs = env.reset_to(state)
        for key, values in seen.items():
            np.testing.assert_allclose(obs[key], values[i], atol=1e-6, err_msg=key)
    assert {"object"} < seen.keys() <= obs.keys()
    assert len(env.get_state()["states"]) == arrays["states"].shape[1]
    env.close()


def test_replayed_actions_still_lift_the_cube_and_diverge_by_millimetres(recorded):
    args, model, arrays = recorded("lift")
    env = make_env(args)
    env.reset_to({"model": model, "states": arrays["states"][0]})
    apart = []
    for action, there in zip(arrays["actions"], arrays["obs/robot0_eef_pos"][1:], strict=False):
        obs, _, _, _, info = env.step(action)
        apart.append(np.linalg.norm(obs["robot0_eef_pos"] - there))
    assert info["success"] and 1e-6 < max(apart) < 0.03
    env.close()


def test_a_model_of_1_3_whose_meshes_are_gone_gets_present_robots(recorded):
    args, model, arrays = recorded("handover_1_3")
    env = make_env(args)
    obs = env.reset_to({"model": model, "states": arrays["states"][4]})
    assert np.isfinite(np.concatenate(list(obs.values()))).all()
    assert model.count("link0_vis.stl") and not env.get_state()["model"].count("link0_vis.stl")
    (handle,) = (g for g in ET.fromstring(model).iter("geom") if g.get("name") == "hammer_handle")
    scene = env._env.sim.model  # each episode's hammer is another
    size = scene.geom_size[scene.geom_name2id("hammer_handle")][:2]
    np.testing.assert_allclose(size, [float(x) for x in handle.get("size").split()][:2])
    np.testing.assert_array_equal(env.get_state()["states"], arrays["states"][4])
    # The model that it now has is one of this version.
    again = make_env(args)
    again.reset_to(env.get_state())
    np.testing.assert_allclose(again.reset_to(env.get_state())["object"], obs["object"])
    again.close()
    env.close()


@pytest.mark.parametrize("fast", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_a_model_of_no_use_leaves_the_present_scene(recorded, fast, caplog):
    say_once.cache_clear()
    args, model, arrays = recorded("lift")
    args["env_kwargs"]["offrl_fast"] = fast
    env = make_env(args)
    cut = model[:-100]
    for damaged in (model.replace("cube_main", "x"), model.replace("ceramic.png", "y.png"), cut):
        state = {"model": damaged, "states": arrays["states"][3]}
        obs = env.reset_to(state)
        np.testing.assert_allclose(obs["object"], arrays["obs/object"][3], atol=1e-6)
    said = [r.message for r in caplog.records if "an earlier robosuite fails" in r.message]
    for message, why in zip(said, ("no body 'cube_main'", "y.png", "it is no XML"), strict=True):
        assert why in message and "\n" not in message
    env.close()


def test_steps_of_an_earlier_environment_are_the_fast_ones_with_robosuites_bits(recorded):
    args, model, arrays = recorded("can")
    ends = []
    for fast in (True, False):
        args["env_kwargs"]["offrl_fast"] = fast
        env = make_env(args)
        if fast:
            env.step(arrays["actions"][0])
            assert env._step.why_plain is None and not env._scenes.is_plain
        env.reset_to({"model": model, "states": arrays["states"][0]})
        for action in arrays["actions"]:
            obs, *_ = env.step(action)
        env.reset(seed=4)
        ends.append([obs, env.step(arrays["actions"][1])[0], env.get_state()["states"]])
        env.close()
    for fast_obs, obs in zip(*(end[:2] for end in ends), strict=True):
        for key in obs:
            np.testing.assert_array_equal(fast_obs[key], obs[key], err_msg=key)
    np.testing.assert_array_equal(ends[0][2], ends[1][2])


@pytest.mark.thorough
def test_few_observations_are_those_among_all(recorded):
    args, *_ = recorded("can")
    seen = []
    for keys in (["object"], None):
        env = make_env(args, keys)
        env.reset(seed=1)
        seen.append(env.step(np.full(7, 0.3))[0]["object"])
        env.close()
    np.testing.assert_array_equal(*seen)


@pytest.mark.thorough
def test_a_checkpoint_opens_its_environment(recorded):
    args, *_ = recorded("lift")
    env, _ = env_from_checkpoint(ckpt_dict={"provenance": {}, "env_metadata": args})
    again = make_env(env.serialize())
    obs, _ = env.reset(seed=5)
    np.testing.assert_array_equal(again.reset(seed=5)[0]["object"], obs["object"])
    assert obs["object"][2] - obs["robot0_eef_pos"][2] == pytest.approx(-obs["object"][-1])
    assert env.serialize()["env_version"] != args["env_version"]
    again.close()
    env.close()


def test_a_state_of_another_scene_is_refused():
    env = make_env(env_args(OSC_POSE))
    with pytest.raises(ValueError, match=r"Lift: .*\[31\].*\[32\]"):
        env.reset_to({"states": np.zeros(31)})
    env.close()


@pytest.mark.thorough
def test_wipe_opens_and_its_state_has_its_markers_where_they_were():
    env = make_env(env_args(OSC_POSE, "Wipe"))
    env.reset(seed=0)
    assert env.observation_space.contains(env.step(np.zeros(6))[0])
    env.close()


def test_sensors_stand_as_they_did():
    now = ["grip", "Can_to_robot0_eef_pos", "Can_to_robot0_eef_quat", "Can_pos", "Can_quat", "id"]
    then = ["grip", "Can_pos", "Can_quat", "Can_to_robot0_eef_pos", "Can_to_robot0_eef_quat", "id"]
    assert earlier_order(now) == then
    door = ["door_pos", "handle_pos", "hinge_qpos", "door_to_eef_pos", "handle_to_eef_pos"]
    assert earlier_order([*door, "handle_qpos"]) == [
        *door[:2],
        *door[3:],
        "hinge_qpos",
        "handle_qpos",
    ]


def test_a_task_of_liberos_is_named_as_such():
    args = {"env_name": "Libero_Floor_Manipulation", "type": 1, "bddl_file": "soup.bddl"}
    for env_args in (args, {**args, "env_name": "Floor"}):
        with pytest.raises(ValueError, match="LIBERO"):
            make_env(env_args)
