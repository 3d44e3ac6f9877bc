"""Which of robosuite's sensors are computed, and what cameras see."""

import itertools
import os
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from test_fast_simulation import differing, make

from offrl.envs import ROBOSUITE_KWARGS, make_env
from offrl.envs.rendering import working_backend
from offrl.envs.robosuite import RobosuiteEnv
from offrl.registry import ENVS

pytestmark = pytest.mark.slow

KEYS = [
    ["object"],
    ["robot0_eef_pos"],
    ["object", "robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos"],
    ["robot0_joint_pos_cos", "robot0_gripper_qvel"],
]


@pytest.mark.thorough
@pytest.mark.parametrize("task", ["Lift", "PickPlaceCan", "PickPlaceSingle", "TwoArmHandover"])
def test_observations_are_the_same_among_fewer(task):
    robots = {"robots": ["Panda", "Panda"]} if task.startswith("TwoArm") else {}
    everything, some = make(task, **robots), make(task, **robots)
    for keys, seed in itertools.product(KEYS, range(4)):
        some.observe_only(keys)
        seen = [(some.reset(seed=seed)[0], everything.reset(seed=seed)[0])]
        rng = np.random.default_rng(seed)
        for _ in range(8):
            action = rng.uniform(-1, 1, some.action_space.shape)
            seen.append((some.step(action)[0], everything.step(action)[0]))
        if seed == 2:
            state = everything.get_state()
            seen.append((some.reset_to(state), everything.reset_to(state)))
        for few, all_of_them in seen:
            assert list(few) == keys
            assert differing(few, {key: all_of_them[key] for key in keys}) == []


def computed(env):
    """The sensors that are asked in a step."""
    asked, sensors = set(), env._env._observables.values()
    filters = [sensor._filter for sensor in sensors]
    for sensor in sensors:
        sensor.set_filter(lambda value, name=sensor.name: asked.add(name) or value)
    env.step(np.zeros(env.action_space.shape))
    for sensor, before in zip(sensors, filters, strict=True):
        sensor.set_filter(before)
    return asked


def test_sensors_that_nobody_reads_are_not_computed():
    env = make("Lift")
    env.observe_only(["object"])
    env.reset(seed=0)
    cube = {"cube_pos", "cube_quat", "gripper_to_cube_pos"}
    assert computed(env) == cube | {"robot0_eef_pos"}  # to which one of them is relative
    env.observe_only(["robot0_joint_pos_sin"])
    env.reset(seed=0)
    assert computed(env) == {"robot0_joint_pos", "robot0_joint_pos_sin"}
    env.observe_only(None)
    env.reset(seed=0)
    assert len(computed(env)) == len(env._env._observables)


@pytest.mark.parametrize("keys", [["object", "no such key"], [], None])
def test_all_is_computed_for_keys_that_are_not_there(keys):
    env = make_env({"env_name": "Lift", "type": 1, "env_kwargs": ROBOSUITE_KWARGS}, keys)
    obs, _ = env.reset(seed=0)
    assert obs.keys() == env.observation_space.spaces.keys()


def test_all_is_computed_where_a_sensor_is_corrupted_on_purpose():
    from robosuite.utils.observables import create_gaussian_noise_corrupter

    few, all_of_them = make("Lift"), make("Lift")
    few.observe_only(["object"])
    seen = []
    for env in (few, all_of_them):
        env._env.modify_observable(
            "robot0_joint_pos", "corrupter", create_gaussian_noise_corrupter(0, 0.1)
        )
        env._env.modify_observable("cube_pos", "corrupter", create_gaussian_noise_corrupter(0, 0.1))
        np.random.seed(0)  # corrupters draw from global state, one after the other
        env.reset(seed=0)
        seen.append([env.step(np.zeros(7))[0]["object"] for _ in range(3)])
    np.testing.assert_array_equal(*seen)


@ENVS.register("relative")
class Relative(gymnasium.ObservationWrapper):
    """Reads what the policy does not."""

    def __init__(self, env_name, env_kwargs):
        super().__init__(RobosuiteEnv(env_name, env_kwargs))

    def observation(self, obs):
        return {**obs, "robot0_eef_pos": obs["robot0_eef_pos"] - obs["object"][:3]}


def test_a_wrapper_sees_everything():
    env_args = {"env_name": "Lift", "type": "relative", "env_kwargs": ROBOSUITE_KWARGS}
    env = make_env(env_args, ["robot0_eef_pos"])
    assert "object" in env.reset(seed=0)[0]


renders = pytest.mark.skipif(working_backend() is None, reason="no rendering library here")


def in_a_process(script):
    """A back end is chosen once per process."""
    script = f"import sys; sys.path.insert(0, 'tests/envs')\n{script}"
    environ = os.environ | {"MUJOCO_GL": working_backend()}
    subprocess.run([sys.executable, "-c", script], env=environ, check=True)


@pytest.mark.thorough
@renders
def test_images_outlive_the_garbage_of_earlier_simulators():
    in_a_process("""
import gc
from test_fast_simulation import *
gc.disable()
for fast in (True, False):
    env = make("Lift", use_camera_obs=True, camera_heights=32, camera_widths=32, offrl_fast=fast)
    for seed in range(3):
        before = env.reset(seed=seed)[0]["agentview_image"]
        gc.collect()
        state = env.get_state()
        after = env.reset_to({"states": state["states"]})["agentview_image"]
        assert (before == after).all()
        env.reset_to(state)
    env.close()
""")


@pytest.mark.thorough
@renders
def test_images_are_the_same_and_no_others_are_rendered():
    in_a_process("""
from test_fast_simulation import *
cameras = dict(use_camera_obs=True, camera_names=["agentview", "robot0_eye_in_hand"],
               camera_depths=True, camera_heights=32, camera_widths=32)
twins = Twins("Stack", **cameras)
for seed in range(3):
    twins.reset(seed=seed)
    assert differing(*({"film": film} for film in twins.do(lambda env: env.render()))) == []
    twins.step(np.full(7, 0.3))
    state = twins.state()
    twins.step(np.full(7, 0.3))
    twins.reset_to(state)
    twins.step(np.full(7, 0.3))
rendered = []
env = twins.fast
for keys, number in ((["agentview_image"], 1), (["robot0_eye_in_hand_depth"], 1), (["object"], 0)):
    env.observe_only(keys)
    obs, _ = env.reset(seed=5)
    render, rendered = env._env.sim.render, []
    env._env.sim.render = lambda **how: rendered.append(how["camera_name"]) or render(**how)
    obs = env.step(np.full(7, 0.3))[0]
    del env._env.sim.render
    twins.plain.reset(seed=5)
    expected = twins.plain.step(np.full(7, 0.3))[0]
    assert list(obs) == keys and differing(obs, {key: expected[key] for key in keys}) == []
    assert len(rendered) == number, rendered
""")
