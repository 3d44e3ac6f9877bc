"""offrl's forms of robosuite's step, reset and sensors have the bits of robosuite's own."""

import importlib
import itertools
import logging

import numpy as np
import pytest

from offrl.envs import ROBOSUITE_KWARGS, make_env, say_once
from offrl.robomimic.configs import env_args_for_robomimic

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
                parts[f"{robot.idn} {arm} {recent}"] = getattr(robot, f"recent_ee_{recent}")[
                    arm
                ].current
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


@pytest.mark.parametrize(
    ("task", "episodes", "steps"),
    [
        ("Lift", 5, 20),
        *(pytest.param(task, 10, 60, marks=pytest.mark.thorough) for task in TASKS),
    ],
)
def test_the_bits_are_robosuites(task, episodes, steps):
    twins = Twins(task)
    live_through(twins, episodes, steps)
    assert twins.fast._step.why_plain is None and not twins.fast._scenes.is_plain


VARIANTS = {
    "soft resets": {"hard_reset": False, "seed": 1},
    "two substeps": {"control_freq": 250},
    "one substep": {"control_freq": 500},
    "another robot": {"robots": "Sawyer"},
    "an odd sampling rate": {"control_freq": 30},
    "forward physics": {"lite_physics": False},
    "two arms of one robot": {"robots": "Baxter"},
}


@pytest.mark.thorough
@pytest.mark.parametrize("kwargs", VARIANTS.values(), ids=VARIANTS)
def test_the_bits_are_robosuites_for_other_settings(kwargs):
    twins = Twins("Lift", **kwargs)
    live_through(twins, episodes=4, steps=10)


@pytest.mark.thorough
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
    """One that is two control steps late."""
    sensor = env._env._observables["cube_pos"]
    updates = itertools.count()

    def update(self, **how):
        if next(updates) % 50 == 0:
            type(sensor).__base__.update(self, **how)

    sensor.__class__ = type("Mine", (type(sensor),), {"update": update})


def wrapped_controller(env):
    controller = env._env.robots[0].part_controllers["right"]
    own = controller.run_controller
    controller.run_controller = lambda: own() * 0.9


def changed_base(env):
    """The robot's sensors of force see a trembling hand."""
    robot = env._env.robots[0]
    own = robot.control
    robot.control = lambda action, policy_step=False: own(action * 0.9, policy_step)


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
    wrapped_controller,
    changed_base,
    changed_sensor,
    disabled_arm,
    delayed_sensors,
]


FEW = changed_method, changed_sensor  # the other changes are thorough


@pytest.mark.parametrize(
    "change",
    [pytest.param(x, marks=[] if x in FEW else pytest.mark.thorough) for x in CHANGES],
    ids=lambda change: change.__name__,
)
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
    say_once.cache_clear()
    caplog.set_level(logging.DEBUG, "offrl")
    ours = lambda record: record.name.startswith("offrl")  # noqa: E731 (robosuite says more)
    return lambda: [(r.levelno, r.getMessage()) for r in filter(ours, caplog.records)]


@pytest.mark.parametrize(
    "change",
    [pytest.param(x, marks=[] if x in FEW else pytest.mark.thorough) for x in CHANGES[:6]],
    ids=lambda change: change.__name__,
)
def test_it_is_said_once_why_the_step_is_robosuites_own(change, said):
    env = make("Lift")
    env.reset(seed=0)
    change(env)
    for _ in range(3):
        env.step(np.zeros(7))
    [(level, message)] = said()
    assert level == logging.DEBUG and "robosuite's own steps, as " in message


@pytest.mark.thorough
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


@pytest.mark.parametrize("module", ["step", "scene"])
def test_nothing_is_known_of_windows(module):
    env = make("Lift")
    unsupported = importlib.import_module(f"offrl.envs.robosuite.fast.{module}").unsupported
    assert unsupported(env._env) is None
    env._env.has_renderer = True
    assert unsupported(env._env) == "it renders to a screen"


@pytest.mark.thorough
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


def test_where_compiled_products_differ_in_the_last_bits_numpys_are_taken(monkeypatch):
    from offrl.envs.robosuite.fast import step

    monkeypatch.setattr(step, "compiled_is_exact", lambda *_: False)
    twins = Twins("Lift")
    live_through(twins, episodes=1, steps=10)
    assert twins.fast._step.why_plain is None
    [arm] = twins.fast._step._arms
    assert arm.osc_torques is step.osc_torques.py_func


@pytest.mark.parametrize("towards", [None, np.inf, -np.inf])
def test_a_last_bit_is_noticed(monkeypatch, towards):
    from offrl.envs.robosuite.fast import step

    class Compiled:
        py_func = staticmethod(step.osc_torques.py_func)

        def __call__(self, *args):
            torques = self.py_func(*args)
            return torques if towards is None else np.nextafter(torques, towards)

    monkeypatch.setattr(step, "osc_torques", Compiled())
    assert step.compiled_is_exact.__wrapped__(7, 15) == (towards is None)


def test_the_switch_is_offrls_alone():
    with pytest.raises(ValueError, match="env_kwargs.offrl_fast.*'yes'"):
        make("Lift", offrl_fast="yes")
    assert "offrl_fast" not in make("Lift", offrl_fast=False).serialize()["env_kwargs"]
    env_args = {"env_name": "Lift", "type": 1, "env_kwargs": {"offrl_fast": True, "horizon": 9}}
    assert env_args_for_robomimic(env_args) == env_args | {"env_kwargs": {"horizon": 9}}


@pytest.mark.thorough
def test_an_action_that_is_refused_leaves_nothing_behind():
    twins = Twins("Lift")
    twins.reset(seed=0)
    for env in (twins.fast, twins.plain):
        with pytest.raises(AssertionError, match="7.*3"):
            env.step(np.zeros(3))
    twins.steps(3, np.random.default_rng(0))
    controller = twins.fast._env.robots[0].part_controllers["right"]
    assert "update" not in vars(controller) and "run_controller" not in vars(controller)
    twins.reset(seed=1)
    twins.steps(3, np.random.default_rng(0))


@pytest.mark.parametrize("task", ["Lift", pytest.param("Stack", marks=pytest.mark.thorough)])
def test_what_a_user_changes_in_a_model_ends_with_the_episode(task):
    twins = Twins(task)
    for seed in range(4):
        twins.reset(seed=seed)
        for env in (twins.fast, twins.plain):
            model = env._env.sim.model
            model.opt.gravity[2] = -3
            model.opt.timestep = 0.001
            model.geom_friction[:] *= 0.5
            model._model.vis.headlight.diffuse[:] = 0.1
            model._model.stat.extent = 9
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


@pytest.mark.thorough
def test_a_scene_of_a_users_own_may_change_whenever_it_likes():
    import robosuite as simulator

    class Shrinking(simulator.environments.manipulation.stack.Stack):
        resets = 0

        def _load_model(self):
            self.resets += 1
            self.table_full_size = (0.8, 0.8, 0.05) if self.resets < 5 else (0.6, 0.6, 0.05)
            super()._load_model()

    assert "Shrinking" in simulator.ALL_ENVIRONMENTS
    twins = Twins("Shrinking")
    for seed in range(7):
        twins.reset(seed=seed)
        twins.state()
        twins.step(np.zeros(7))


@pytest.mark.parametrize("task", ["Stack", pytest.param("Lift", marks=pytest.mark.thorough)])
def test_an_environment_may_be_closed_twice_and_reset(task):
    env = make(task)
    before = [env.reset(seed=0)[0] for _ in range(4)][0]
    env.close()
    env.close()
    assert differing(env.reset(seed=0)[0], before) == []
