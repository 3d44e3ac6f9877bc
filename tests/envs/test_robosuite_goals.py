"""Absolute actions do what relative ones did; shaped rewards are those of the simulator."""

import json

import numpy as np
import pytest
from conftest import ROOT

from offrl.data.formats.hdf5 import DemoFile
from offrl.edits.simulated import (
    absolute,
    absolute_actions,
    dense_rewards,
    input_type,
    interval_actions,
    rewarding,
)
from offrl.envs import make_env

LIFT = {
    "env_name": "Lift",
    "type": 1,
    "env_kwargs": {"robots": "Panda", "control_freq": 20, "ignore_done": True},
}
LIFT["env_kwargs"] |= {"has_renderer": False, "has_offscreen_renderer": False}
LIFT["env_kwargs"] |= {"use_camera_obs": False, "use_object_obs": True}


def lift(**env_kwargs):
    return {**LIFT, "env_kwargs": {**LIFT["env_kwargs"], **env_kwargs}}


def with_arm(**changes):
    """``controller_configs`` like robosuite's own for a Panda, but for ``changes``."""
    part = {
        "type": "OSC_POSE",
        **{"input_max": 1, "input_min": -1, "kp": 150, "damping_ratio": 1},
        "output_max": [0.05, 0.05, 0.05, 0.5, 0.5, 0.5],
        "output_min": [-0.05, -0.05, -0.05, -0.5, -0.5, -0.5],
        **{"impedance_mode": "fixed", "kp_limits": [0, 300], "damping_ratio_limits": [0, 10]},
        **{"position_limits": None, "orientation_limits": None, "uncouple_pos_ori": True},
        **{"input_type": "delta", "input_ref_frame": "base", "interpolation": None},
        **{"ramp_ratio": 0.2, "gripper": {"type": "GRIP"}, **changes},
    }
    return {"type": "BASIC", "body_parts": {"right": part}}


def play(env, demo, actions):
    """Where the hand is after each action, from a demonstration's first state; and success."""
    env.reset_to({"states": demo["states"][0], "model": demo["model_file"]})
    tips, success = [], False
    for action in actions:
        obs, *_ = env.step(action)
        tips.append(obs["robot0_eef_pos"])
        success = success or env.is_success()["task"]
    return np.array(tips), success


def random_episode(env, length=12, seed=0):
    """Random relative actions, some beyond what the controller takes, and where they led."""
    rng = np.random.default_rng(seed)
    obs, _ = env.reset(seed=seed)
    demo = {"model_file": env.get_state()["model"]}
    states, actions, tips = [], [], []
    for _ in range(length):
        states.append(env.get_state()["states"])
        actions.append(rng.uniform(-1.5, 1.5, env.action_space.shape).astype(np.float32))
        obs, *_ = env.step(actions[-1])
        tips.append([obs[key] for key in sorted(obs) if key.endswith("eef_pos")])
    return {**demo, "states": np.array(states), "actions": np.array(actions)}, np.array(tips)


@pytest.mark.slow
def test_absolute_actions_lead_the_hand_where_the_recorded_ones_did():
    with DemoFile(ROOT / "datasets/lift/low_dim.hdf5") as file:
        relabel = absolute_actions(json.dumps(file.env_args))
        env = make_env(absolute(file.env_args))
        for demo in map(file.recording, file.demos()[:2]):
            actions = relabel(demo).astype(np.float32)
            np.testing.assert_array_equal(actions[:, 6:], demo["actions"][:, 6:])
            assert (np.abs(actions[:, :6] - demo["actions"][:, :6]) > 0.1).any()
            tips, success = play(env, demo, actions)
            distances = np.linalg.norm(tips[:-1] - demo["obs/robot0_eef_pos"][1:], axis=1)
            assert success and distances.max() < 1e-4  # metres


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("env_args", "tolerance"),
    [
        (lift(controller_configs=with_arm(input_ref_frame="world")), 1e-5),
        (lift(controller_configs=with_arm(output_max=0.02, output_min=-0.03)), 1e-5),
        (
            lift(
                controller_configs=with_arm(type="OSC_POSITION", output_max=0.05, output_min=-0.05)
            ),
            1e-5,
        ),
        ({**lift(robots=["Panda", "Panda"]), "env_name": "TwoArmLift"}, 1e-5),
    ],
    ids=["world", "other scaling", "position alone", "two arms, turned bases"],
)
def test_other_frames_scalings_and_robots_are_followed_as_well(env_args, tolerance):
    demo, tips = random_episode(make_env(env_args))
    goals = absolute_actions(json.dumps(env_args))(demo)
    env = make_env(absolute(env_args))
    env.reset_to({"states": demo["states"][0], "model": demo["model_file"]})
    for goal, expected in zip(goals.astype(np.float32), tips, strict=True):
        obs, *_ = env.step(goal)
        found = [obs[key] for key in sorted(obs) if key.endswith("eef_pos")]
        assert np.abs(np.array(found) - expected).max() < tolerance


@pytest.mark.slow
def test_a_goal_is_a_relative_action_again():
    env_args = lift()
    env = make_env(env_args)
    demo, _ = random_episode(env, seed=3)
    for state, action in zip(demo["states"], demo["actions"], strict=True):
        env.reset_to({"states": state})
        again = env.goals.relative(env.goals.absolute(action))
        np.testing.assert_allclose(again[:6], action[:6].clip(-1, 1), atol=1e-6)
    # One goal for two steps: as far from the first state as the second's aim is.
    slow = {**demo, "actions": demo["actions"] * 0.1}
    goals = absolute_actions(json.dumps(env_args))(slow)
    for factor in (2, 5):
        relative = interval_actions(json.dumps(env_args), factor)
        try:
            found = relative(slow)
        except ValueError as error:
            assert "times what one action can ask for" in str(error)
            continue
        assert found.shape == (-(-12 // factor), 7)
        for i, action in enumerate(found):
            env.reset_to({"states": demo["states"][i * factor]})
            last = goals[min((i + 1) * factor, 12) - 1]
            np.testing.assert_allclose(env.goals.absolute(action), last, atol=1e-6)


@pytest.mark.thorough
def test_motions_that_one_action_cannot_ask_for_are_refused():
    with DemoFile(ROOT / "datasets/lift/low_dim.hdf5") as file:
        relabel = interval_actions(json.dumps(file.env_args), 4)
        with pytest.raises(ValueError, match="4 .*0 .*--absolute"):
            relabel(file.recording("demo_0"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_args", "words"),
    [
        (lift(controller_configs=with_arm(type="JOINT_POSITION", input_type="delta")), "OSC_POSE"),
        (lift(controller_configs=with_arm(impedance_mode="variable_kp")), "impedance"),
        (lift(controller_configs=with_arm(input_type="absolute")), "input_type"),
        ({"env_name": "Hopper-v4", "type": 2}, "env_args.*Hopper-v4"),
        (None, "env_args.*None"),
    ],
    ids=["joints", "impedance", "absolute", "gymnasium", "none"],
)
def test_where_it_is_not_known_what_actions_aim_at_it_is_refused(env_args, words):
    with pytest.raises(ValueError, match=words):
        absolute(env_args)


@pytest.mark.thorough
def test_the_simulator_says_what_actions_are():
    assert input_type(lift()) == "delta"
    assert input_type(absolute(lift())) == "absolute"
    for sees in (True, False):
        env_args = absolute(lift(use_camera_obs=sees, has_offscreen_renderer=sees))
        assert env_args["env_kwargs"]["use_camera_obs"] is sees
        assert env_args["env_version"] == make_env(lift()).serialize()["env_version"]
    assert input_type({"env_name": "reach-v3", "type": "metaworld"}) is input_type(None) is None


@pytest.mark.slow
def test_dense_rewards_of_states_are_those_that_the_simulator_gives():
    env_args = rewarding(lift(), dense=True)
    assert env_args["env_kwargs"]["reward_shaping"] and "reward_shaping" not in LIFT["env_kwargs"]
    env = make_env(env_args)
    demo, _ = random_episode(env)
    env.reset_to({"states": demo["states"][0], "model": demo["model_file"]})
    expected = [env.step(action)[1] for action in demo["actions"]]
    found = dense_rewards(json.dumps(env_args))(demo)
    # A step's reward is of the moment before its last substep, 2 ms earlier than the state.
    np.testing.assert_allclose(found, expected, rtol=0.05)
    assert found[-1] == pytest.approx(expected[-1], rel=1e-3) and max(expected) > 3 * min(expected)


def test_simulators_without_that_switch_have_no_dense_rewards():
    gym = {"env_name": "Hopper-v4", "type": 2, "env_kwargs": {}}
    assert rewarding(gym, dense=False) == gym
    for env_args in (gym, None):
        with pytest.raises(ValueError, match="env_args"):
            rewarding(env_args, dense=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "input_type", ["delta", pytest.param("absolute", marks=pytest.mark.thorough)]
)
def test_an_arm_stands_still_while_its_policy_thinks(input_type):
    """From the beginning on, and behind an action that closes the hand."""
    env = make_env(lift(controller_configs=with_arm(input_type=input_type)))
    obs, _ = env.reset(seed=0)
    places, action = [obs["robot0_eef_pos"]], None
    for _ in range(10):
        action = env.get_wrapper_attr("stand_still")(action)
        obs, *_ = env.step(action)
        places.append(obs["robot0_eef_pos"])
    assert np.ptp(places, axis=0).max() < 0.01
    action = np.array([*action[:-1], 1.0])
    if input_type == "delta":
        action[:3] = 1
    env.step(action)
    still = env.get_wrapper_attr("stand_still")(action)
    np.testing.assert_allclose(still, action if input_type == "absolute" else [0] * 6 + [1])
