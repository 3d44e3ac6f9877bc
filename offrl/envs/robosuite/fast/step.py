"""robosuite's control step with less Python around the physics: the bits of ``env.step``.

A control step is some 25 substeps of the physics. For each, robosuite computes torques in Python
and asks every sensor whether to sample. Here robosuite's own code runs in the first substep, which
takes the action, in the last one, and whenever a sensor samples; the others call the physics and
one function, ``osc_torques``, compiled if that gives NumPy's bits.

It repeats code of robosuite 1.5.2, for that version only. Import it after robosuite.
"""

import functools
from collections.abc import Callable
from operator import is_ as _is
from typing import Any

import numba
import numpy as np
import robosuite.macros
from mujoco import mj_fullM, mj_jacSite, mj_step1, mj_step2
from robosuite.controllers.composite.composite_controller import CompositeController
from robosuite.controllers.parts.arm.osc import OperationalSpaceController
from robosuite.controllers.parts.gripper.simple_grip import SimpleGripController
from robosuite.environments.base import MujocoEnv
from robosuite.environments.robot_env import RobotEnv
from robosuite.robots.fixed_base_robot import FixedBaseRobot
from robosuite.utils.binding_utils import MjSim
from robosuite.utils.control_utils import nullspace_torques, opspace_matrices, orientation_error
from robosuite.utils.observables import Observable

REPEATED = {  # methods repeated here, by their classes
    MujocoEnv: ("step", "_update_observables"),
    RobotEnv: ("_pre_action",),
}


@numba.njit(cache=robosuite.macros.CACHE_NUMBA)
def osc_torques(  # type: ignore[no-untyped-def]
    goal_pos, goal_ori, kp, kd, pos, ori, jac_pos, jac_ori, inertia, qpos, qvel, bias, initial, q, v
):
    """Compute torques ``[N]`` of operational-space control (Khatib, 1987), before they are clipped.

    Arguments are the hand's goal and present position ``[3]`` and orientation ``[3, 3]``, gains
    ``[6]``, the hand's Jacobians ``[3, V]``, inertia ``[V, V]``, state and bias forces of all
    joints, the arm's null-space posture ``[N]``, and the arm's first index in ``qpos`` and
    ``qvel``.
    """
    n = len(initial)
    arm = slice(v, v + n)
    # Memory layouts are robosuite's, as the last bits of products depend on them.
    mass = np.empty((n, n)).T
    mass[:] = inertia[arm, arm]
    jac = np.empty((6, n))
    jac[:3], jac[3:] = jac_pos[:, arm], jac_ori[:, arm]
    force = (goal_pos - pos) * kp[:3] + -np.dot(jac_pos, qvel) * kd[:3]
    torque = orientation_error(goal_ori, ori) * kp[3:6] + -np.dot(jac_ori, qvel) * kd[3:6]
    _, by_force, by_torque, nullspace = opspace_matrices(mass, jac, jac[:3], jac[3:])
    wrench = np.concatenate((np.dot(by_force, force), np.dot(by_torque, torque)))
    torques = np.dot(jac.T, wrench) + bias[arm]
    return torques + nullspace_torques(mass, nullspace, initial, qpos[q : q + n], qvel[arm])


@functools.cache
def compiled_is_exact(num_joints: int, num_velocities: int) -> bool:
    """Say whether the compiled products agree with NumPy's to the last bit on this machine."""
    rng, n, v = np.random.default_rng(0), num_joints, num_velocities
    shapes: list[Any] = [3, (3, 3), 6, 6, 3, (3, 3), (3, v), (3, v), (v, v), v, v, v, n]
    for _ in range(100):
        case = [rng.normal(size=shape) for shape in shapes]
        case[8] = case[8] @ case[8].T + np.eye(v)
        forms: tuple[Any, ...] = (osc_torques, osc_torques.py_func)
        compiled, plain = (form(*case, v - n, v - n) for form in forms)
        if compiled.tobytes() != plain.tobytes():
            return False
    return True


class FastStep:
    """Repeats ``env.step`` for environments with known parts only, and calls it for others, passing
    the reason to ``say``."""

    def __init__(self, env: Any, say: Callable[[str], None]):
        self.env, self._say = env, say
        self._parts: list[Any] = []  # parts that were checked; each reset makes new ones
        self._arms: list[_Arm] = []
        self.why_plain: str | None = None  # the unknown part of the environment now

    def __call__(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, dict[str, Any]]:
        env = self.env
        self._look()
        if self.why_plain or env.done or env.viewer is not None or not env.lite_physics:
            return env.step(action)
        has_all_parts = all(all(robot._enabled_parts.values()) for robot in env.robots)
        if not has_all_parts or any(type(x) is not Observable for x in env._observables.values()):
            return env.step(action)
        env.timestep += 1
        for arm in self._arms:  # ``_Arm`` stands in for controllers
            arm.controller.update, arm.controller.run_controller = arm.update, arm.run_controller
            arm.is_stale = not arm.controller.new_update
        try:
            self._run(action)
        finally:
            for arm in self._arms:
                del arm.controller.update, arm.controller.run_controller
        env.cur_time += env.control_timestep
        reward, done, info = env._post_action(action)
        return env._get_observations(), reward, done, info

    def _look(self) -> None:
        robots = self.env.robots
        parts = [self.env.sim, *(c for robot in robots for c in robot.part_controllers.values())]
        if len(parts) == len(self._parts) and all(map(_is, parts, self._parts)):
            return
        self._parts, self.why_plain, self._arms = parts, unsupported(self.env), []
        if self.why_plain is None:
            for robot in robots:
                controllers, kind = robot.part_controllers, OperationalSpaceController
                self._arms += [_Arm(robot, x) for x, c in controllers.items() if type(c) is kind]
            self.why_plain = next((why for arm in self._arms if (why := arm.unsupported())), None)
        if self.why_plain is not None:
            self._say(f"{type(self.env).__name__}: robosuite's own steps, as {self.why_plain}")

    def _run(self, action: np.ndarray) -> None:
        env, arms = self.env, self._arms
        model, data = env.sim.model._model, env.sim.data._data
        last = int(env.control_timestep / env.model_timestep) - 1
        for i in range(last + 1):
            mj_step1(model, data)
            if i == 0:
                env._pre_action(action, True)
                for arm in arms:
                    arm.take_goal()
                quiet = self._quiet_substeps(last + 1)
            elif i < last:  # grippers keep their commands
                for arm in arms:
                    arm.look()
                    arm.apply(arm.osc_torques(*arm.arguments))
            else:  # leave controllers as robosuite does
                for robot in env.robots:
                    robot.composite_controller.run_controller(robot._enabled_parts)
                for arm in arms:
                    arm.apply(arm.controller.torques)
            mj_step2(model, data)
            if quiet == 0:
                env._update_observables()
                quiet = self._quiet_substeps(last - i) if i < last else 0
            else:
                quiet -= 1

    def _quiet_substeps(self, most: int) -> int:
        """Count the next substeps without a sample or an end of a sensor's period, and advance the
        sensors' clocks by these, one by one as robosuite does."""
        groups: dict[tuple[float, float, float], list[Any]] = {}
        for sensor in self.env._observables.values():
            if sensor._enabled:
                period = sensor._sampling_timestep
                due = -np.inf if sensor._sampled else period - sensor._current_delay
                key = sensor._time_since_last_sample, period, due
                groups.setdefault(key, []).append(sensor)
        quiet, timestep = most, self.env.model_timestep
        for time, period, due in groups:
            for passed in range(quiet):
                time += timestep
                if time >= period or time <= due:
                    quiet = passed
                    break
        for (time, _, _), sensors in groups.items():
            for _ in range(quiet):
                time += timestep
            for sensor in sensors:
                sensor._time_since_last_sample = time
        return quiet


def unsupported(env: Any) -> str | None:
    """Name the part of an environment that ``FastStep`` cannot repeat, if any."""
    for owner, names in REPEATED.items():
        for name in names:
            if getattr(getattr(env, name), "__func__", None) is not getattr(owner, name):
                return f"{type(env).__name__} has a {name} of its own"
    if type(env.sim) is not MjSim:
        return f"the simulator is {type(env.sim).__name__}"
    if env.has_renderer:
        return "it renders to a screen"
    if not robosuite.macros.ENABLE_NUMBA:
        return "robosuite's macros turn numba off"
    for robot in env.robots:
        known = {robot: FixedBaseRobot, robot.composite_controller: CompositeController}
        for controller in robot.part_controllers.values():
            is_arm = isinstance(controller, OperationalSpaceController)
            known[controller] = OperationalSpaceController if is_arm else SimpleGripController
        for part, kind in known.items():
            if type(part) is not kind:
                return f"{robot.name}'s {type(part).__name__} is no {kind.__name__}"
            if {"update", "run_controller", "control"} & vars(part).keys():
                return f"methods of {robot.name}'s {kind.__name__} were replaced"
        for name, controller in robot.part_controllers.items():
            if type(controller) is SimpleGripController and controller.interpolator is not None:
                return f"the commands of {robot.name}'s {name} are interpolated"
    return None


class _Arm:
    """Stands in for the ``update`` and ``run_controller`` of an arm's controller in a step."""

    def __init__(self, robot: Any, name: str):
        self.controller = c = robot.part_controllers[name]
        self.name = name
        self.model, self.data = model, data = robot.sim.model._model, robot.sim.data._data
        self.actuators = robot._ref_actuators_indexes_dict[name]
        first, *_, last = self.actuators
        self.control = data.ctrl[first : last + 1]
        self.low, self.high = model.actuator_ctrlrange[first : last + 1].T
        self.hand = robot.sim.model.site_name2id(c.ref_name)
        self.base = robot.sim.model.site_name2id(f"{c.naming_prefix}{c.part_name}_center")
        self.at = int(c.qpos_index[0]), int(c.qvel_index[0])
        # MuJoCo writes into these arrays, or owns them.
        self.jacobian = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        self.inertia = np.zeros((model.nv, model.nv))
        self.pose = data.site_xpos[self.hand], data.site_xmat[self.hand].reshape(3, 3)
        state = data.qpos, data.qvel, data.qfrc_bias
        self.seen = (*self.pose, *self.jacobian, self.inertia, *state)
        # Numba calls SciPy's BLAS; on some processors NumPy's sums in another order.
        is_exact = compiled_is_exact(c.joint_dim, model.nv)
        self.osc_torques = osc_torques if is_exact else osc_torques.py_func
        self.is_stale = False  # true if not updated before this control step

    def unsupported(self) -> str | None:
        c, n = self.controller, self.controller.joint_dim
        indices = (c.qpos_index, c.qvel_index, self.actuators)
        if any(list(x) != list(range(x[0], x[0] + n)) for x in indices):
            return f"the joints of the arm {self.name} do not follow each other"
        if not c.uncoupling or c.interpolator_pos is not None or c.interpolator_ori is not None:
            return f"the arm {self.name} interpolates, or couples position and orientation"
        if self.model.body_weldid[self.model.site_bodyid[self.base]] != 0:
            return f"the base of the arm {self.name} moves"
        if not c.lite_physics:
            return f"the arm {self.name} computes the physics again (lite_physics is false)"
        return None

    def take_goal(self) -> None:
        c = self.controller
        position = np.asarray(c.goal_pos, np.float64)  # an absolute one is a view of the action
        orientation = c.goal_ori
        if c.input_ref_frame == "base":
            position = c.origin_pos + np.dot(c.origin_ori, position)
            orientation = np.dot(c.origin_ori, orientation)
        self.arguments = (position, orientation, c.kp, c.kd, *self.seen, c.initial_joint, *self.at)

    def look(self) -> None:
        mj_jacSite(self.model, self.data, *self.jacobian, self.hand)
        mj_fullM(self.model, self.inertia, self.data.qM)

    def apply(self, torques: np.ndarray) -> None:
        np.minimum(np.maximum(torques, self.low), self.high, out=self.control)

    def update(self, force: bool = False) -> None:
        c, arm = self.controller, slice(self.at[1], self.at[1] + self.controller.joint_dim)
        if force or not c.new_update:
            return type(c).update(c, force)
        self.look()
        c.ref_pos[:], c.ref_ori_mat[:] = self.pose
        c.ref_pos_vel[:], c.ref_ori_vel[:] = (np.dot(jac, self.data.qvel) for jac in self.jacobian)
        c.J_pos[:], c.J_ori[:] = (jac[:, arm] for jac in self.jacobian)
        c.J_full[:3], c.J_full[3:] = c.J_pos, c.J_ori
        c.joint_pos, c.joint_vel = self.data.qpos[c.qpos_index], self.data.qvel[c.qvel_index]
        c.mass_matrix = np.array(self.inertia[arm, arm], order="F")
        c.new_update = False
        return None

    def run_controller(self) -> np.ndarray:
        c = self.controller
        if self.is_stale:  # it uses its earlier state, as robosuite's does
            self.is_stale = False
            return type(c).run_controller(c)
        self.update()
        self.take_goal()
        c.torques, c.new_update = self.osc_torques(*self.arguments), True
        return c.torques
