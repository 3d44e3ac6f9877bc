"""offrl's forms of robosuite's step, reset and sensors have the bits of robosuite's own."""

import importlib
import logging
import os
import subprocess
import sys

import numpy as np
import pytest

from offrl.envs import make_env, robosuite
from offrl.envs.rendering import working_backend
from offrl.tools.collect import ROBOSUITE_KWARGS

pytestmark = pytest.mark.slow

TASKS = ["Lift", "Stack", "Door", "PickPlaceCan", "NutAssemblySquare", "TwoArmLift"]


def make(task, **kwargs):
    robots = {"robots": ["Panda", "Panda"]} if task.startswith("TwoArm") else {}
    kwargs = ROBOSUITE_KWARGS | {"reward_shaping": True} | robots | kwargs
    return make_env({"env_name": task, "type": 1, "env_kwargs": kwargs})


def simulated(env):
    """All that a simulation goes on from, and what controllers, sensors and robots keep."""
    env, data = env._env, env._env.sim.data._data
    names = "time qpos qvel act qacc_warmstart ctrl qacc sensordata site_xpos qfrc_bias".split()
    parts = {name: getattr(data, name) for name in names}
    parts["random"] = str(env.rng.bit_generator.state)
    parts["clock"] = [env.cur_time, env.timestep, env.done]
    for robot in env.robots:
        for name, controller in robot.part_controllers.items():
            for key, value in vars(controller).items():
                if isinstance(value, (np.ndarray, float, bool, int)):
                    parts[f"{robot.idn} {name} {key}"] = value
        for arm in robot.arms:
            for recent in ("forcetorques", "pose", "vel", "acc"):
                parts[f"{robot.idn} {recent}"] = getattr(robot, f"recent_ee_{recent}")[arm].current
    for name, sensor in env._observables.items():
        parts[name] = [
            sensor._time_since_last_sample,
            sensor._sampled,
            sensor._current_delay,
            sensor._enabled,
            np.sum(sensor._current_observed_value),
        ]
    return parts


def differing(a, b):
    assert a.keys() == b.keys()
    return [key for key in a if np.asarray(a[key]).tobytes() != np.asarray(b[key]).tobytes()]


class Twins:
    """An environment on and off, that do the same."""

    def __init__(self, task, **kwargs):
        self.fast, self.plain = make(task, **kwargs), make(task, offrl_fast=False, **kwargs)

    def do(self, work):
        """What ``work(env)`` gives, which is the same for both to the last bit."""
        fast, plain = work(self.fast), work(self.plain)
        assert differing(simulated(self.fast), simulated(self.plain)) == []
        return fast, plain

    def reset(self, seed=None):
        (fast, _), (plain, _) = self.do(lambda env: env.reset(seed=seed))
        assert differing(fast, plain) == []

    def step(self, action):
        fast, plain = self.do(lambda env: env.step(action))
        assert differing(fast[0], plain[0]) == []
        assert fast[1:] == plain[1:]

    def state(self):
        fast, plain = self.do(lambda env: env.get_state())
        assert fast["model"] == plain["model"]
        np.testing.assert_array_equal(fast["states"], plain["states"])
        return fast

    def reset_to(self, state):
        assert differing(*self.do(lambda env: env.reset_to(state))) == []

    def steps(self, number, rng, is_held=False):
        shape = self.fast.action_space.shape
        for i in range(number):
            if i == 0 or not is_held or i % 10 == 0:
                action = rng.uniform(-1.2, 1.2, shape)
            self.step(action)


def live_through(twins, episodes, steps):
    states = []
    for episode in range(episodes):
        twins.reset(seed=None if episode % 3 == 2 else episode)
        if episode % 2:
            states.append(twins.state())
        twins.steps(steps, np.random.default_rng(episode), is_held=bool(episode % 2))
        if states and episode % 3 == 0:
            for state in (states[0], states[0], states[-1]):  # again, and in another scene
                twins.reset_to(state)
                assert twins.state()["model"]
                twins.steps(steps // 10, np.random.default_rng(episode))
            twins.reset_to({"states": states[-1]["states"]})
            twins.steps(steps // 10, np.random.default_rng(episode))


@pytest.mark.parametrize("task", TASKS)
def test_the_bits_are_robosuites(task):
    twins = Twins(task)
    live_through(twins, episodes=5, steps=30)
    assert twins.fast._step.why_plain is None and not twins.fast._scenes.is_plain


@pytest.mark.thorough
@pytest.mark.parametrize("task", TASKS)
def test_the_bits_are_robosuites_for_long(task):
    live_through(Twins(task), episodes=20, steps=100)


VARIANTS = {
    "soft resets": {"hard_reset": False, "seed": 1},
    "two substeps": {"control_freq": 250},
    "one substep": {"control_freq": 500},
    "another robot": {"robots": "Sawyer"},
    "an odd sampling rate": {"control_freq": 30},
    "forward physics": {"lite_physics": False},
    "two arms of one robot": {"robots": "Baxter"},
}


@pytest.mark.parametrize("kwargs", VARIANTS.values(), ids=VARIANTS)
def test_the_bits_are_robosuites_for_other_settings(kwargs):
    twins = Twins("Lift", **kwargs)
    live_through(twins, episodes=4, steps=10)


def test_the_bits_are_robosuites_in_the_frame_of_the_world():
    import robosuite as simulator

    config = simulator.load_composite_controller_config(controller="BASIC", robot="Panda")
    config["body_parts"]["right"]["input_ref_frame"] = "world"
    twins = Twins("Lift", controller_configs=config)
    live_through(twins, episodes=2, steps=20)
    assert twins.fast._step.why_plain is None


def changed_controller(env):
    controller = env._env.robots[0].part_controllers["right"]
    controller.__class__ = type("Mine", (type(controller),), {})


def changed_gripper(env):
    controller = env._env.robots[0].part_controllers["right_gripper"]
    controller.__class__ = type("Mine", (type(controller),), {})


def changed_robot(env):
    robot = env._env.robots[0]
    robot.__class__ = type("Mine", (type(robot),), {})


def changed_method(env):
    kind = type(env._env)
    own = {"_pre_action": lambda self, *args: kind._pre_action(self, *args)}
    env._env.__class__ = type("Mine", (kind,), own)


def changed_sensor(env):
    sensor = next(iter(env._env._observables.values()))
    sensor.__class__ = type("Mine", (type(sensor),), {})


def disabled_arm(env):
    env._env.robots[0].enable_parts(right=False)


def delayed_sensors(env):
    from robosuite.utils.observables import create_deterministic_delayer as delayer

    for delay, name in ((0.01, "cube_pos"), (0.02, "robot0_eef_pos")):
        env._env.modify_observable(name, "delayer", delayer(delay))
    env._env.modify_observable("robot0_joint_pos", "sampling_rate", 60)


CHANGES = [
    changed_controller,
    changed_gripper,
    changed_robot,
    changed_method,
    changed_sensor,
    disabled_arm,
    delayed_sensors,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_is_not_known_takes_robosuites_own_step(change):
    twins = Twins("Lift")
    twins.reset(seed=1)
    twins.steps(3, np.random.default_rng(0))
    twins.do(change)
    twins.fast._step._parts = []  # as with a part that is new
    twins.steps(10, np.random.default_rng(1))
    twins.reset(seed=2)
    twins.steps(5, np.random.default_rng(2))


@pytest.fixture
def said(caplog):
    robosuite._say_once.cache_clear()
    caplog.set_level(logging.DEBUG, "offrl")
    return lambda: [(r.levelno, r.getMessage()) for r in caplog.records]


@pytest.mark.parametrize("change", CHANGES[:4], ids=lambda change: change.__name__)
def test_it_is_said_once_why_the_step_is_robosuites_own(change, said):
    env = make("Lift")
    env.reset(seed=0)
    change(env)
    for _ in range(3):
        env.step(np.zeros(7))
    [(level, message)] = said()
    assert level == logging.DEBUG and "robosuite's own steps, as " in message


def test_a_screen_takes_robosuites_own_step():
    """A viewer is told of every step."""

    class Viewer:
        updates = 0

        def update(self):
            self.updates += 1

        def close(self):
            pass

    twins = Twins("Lift")
    twins.reset(seed=0)
    for env in (twins.fast, twins.plain):
        env._env.viewer = Viewer()
    twins.steps(3, np.random.default_rng(0))
    assert twins.fast._env.viewer.updates == 3
    twins.reset(seed=1)  # closes the viewer
    twins.steps(3, np.random.default_rng(0))


@pytest.mark.parametrize("module", ["robosuite_step", "robosuite_scene"])
def test_nothing_is_known_of_windows(module):
    env = make("Lift")
    unknown = importlib.import_module(f"offrl.envs.{module}").unknown
    assert unknown(env._env) is None
    env._env.has_renderer = True
    assert unknown(env._env) == "it renders to a screen"


def test_a_robot_that_moves_takes_robosuites_own_step(said):
    env = make("Lift", robots="PandaOmron")
    env.reset(seed=0)
    env.step(np.zeros(env.action_space.shape))
    assert "WheeledRobot is no FixedBaseRobot" in said()[-1][1]


def test_another_version_of_robosuite_is_left_alone(monkeypatch, said):
    import robosuite as simulator

    monkeypatch.setattr(simulator, "__version__", "1.5.3")
    env = make("Lift")
    assert env._step == env._env.step and env._scenes.is_plain
    env.reset(seed=0)
    env.step(np.zeros(7))
    [(level, message)] = said()
    assert level == logging.DEBUG and "1.5.3" in message


def test_who_asks_for_it_is_told_why_not(monkeypatch, said):
    monkeypatch.setenv("OFFRL_FAST_SIM", "0")
    env = make("Lift", offrl_fast=True)
    env.reset(seed=0)
    env.step(np.zeros(7))
    [(level, message)] = said()
    assert level == logging.WARNING and "OFFRL_FAST_SIM is 0" in message


def test_products_that_differ_in_the_last_bits_are_not_used(monkeypatch, said):
    from offrl.envs import robosuite_step

    monkeypatch.setattr(robosuite_step, "compiled_is_exact", lambda *_: False)
    twins = Twins("Lift")
    twins.reset(seed=0)
    twins.steps(3, np.random.default_rng(0))
    assert "last bits" in said()[-1][1]


def test_a_last_bit_is_noticed(monkeypatch):
    from offrl.envs import robosuite_step

    class OneOff:
        py_func = staticmethod(robosuite_step.osc_torques.py_func)

        def __call__(self, *args):
            return np.nextafter(self.py_func(*args), np.inf)

    exact = robosuite_step.compiled_is_exact.__wrapped__
    assert exact(7, 15)
    monkeypatch.setattr(robosuite_step, "osc_torques", OneOff())
    assert not exact(7, 15)


def test_the_switch_is_offrls_alone():
    with pytest.raises(ValueError, match="env_kwargs.offrl_fast is 'yes'; give true or false"):
        make("Lift", offrl_fast="yes")
    assert "offrl_fast" not in make("Lift", offrl_fast=False).serialize()["env_kwargs"]


def test_an_action_that_is_refused_leaves_nothing_behind():
    twins = Twins("Lift")
    twins.reset(seed=0)
    for env in (twins.fast, twins.plain):
        with pytest.raises(AssertionError, match="invalid action dimension"):
            env.step(np.zeros(3))
    controller = twins.fast._env.robots[0].part_controllers["right"]
    assert "update" not in vars(controller) and "run_controller" not in vars(controller)
    twins.reset(seed=1)
    twins.steps(3, np.random.default_rng(0))


@pytest.mark.parametrize("task", ["Lift", "Stack"])
def test_what_a_user_changes_in_a_model_ends_with_the_episode(task):
    twins = Twins(task)
    for seed in range(4):
        twins.reset(seed=seed)
        for env in (twins.fast, twins.plain):
            model = env._env.sim.model
            model.opt.gravity[2] = -3
            model.opt.timestep = 0.001
            model.geom_friction[:] *= 0.5
        twins.steps(5, np.random.default_rng(seed))


def test_a_scene_that_is_drawn_is_compiled_and_another_is_not():
    lift, stack = make("Lift"), make("Stack")
    sims = {task: [] for task in ("lift", "stack")}
    for seed in range(4):
        for task, env in (("lift", lift), ("stack", stack)):
            env.reset(seed=seed)
            sims[task].append(env._env.sim)
    assert len({id(sim) for sim in sims["lift"]}) == 4
    assert len({id(sim) for sim in sims["stack"]}) == 1
    state = stack.get_state()
    stack.reset_to(state)
    sim = stack._env.sim
    stack.reset_to(state)
    assert stack._env.sim is sim
    stack.reset(seed=5)
    assert stack._env.sim is sims["stack"][0]


# -- sensors --------------------------------------------------------------------------------------

KEYS = [
    ["object"],
    ["robot0_eef_pos"],
    ["object", "robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos"],
    ["robot0_joint_pos_cos", "robot0_gripper_qvel"],
]


@pytest.mark.parametrize("keys", KEYS, ids=",".join)
@pytest.mark.parametrize("task", ["Lift", "PickPlaceCan", "PickPlaceSingle", "TwoArmHandover"])
def test_observations_are_the_same_among_fewer(task, keys):
    robots = {"robots": ["Panda", "Panda"]} if task.startswith("TwoArm") else {}
    everything, some = make(task, **robots), make(task, **robots)
    some.observe_only(keys)
    for seed in range(4):
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


renders = pytest.mark.skipif(working_backend() is None, reason="no rendering library here")


def in_a_process(script):
    """A back end is chosen once per process."""
    script = f"import sys; sys.path.insert(0, 'tests/envs')\n{script}"
    environ = os.environ | {"MUJOCO_GL": working_backend()}
    subprocess.run([sys.executable, "-c", script], env=environ, check=True)


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
""")


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
