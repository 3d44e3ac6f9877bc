"""Conversion between relative and absolute actions of robosuite's arms.

An arm under operational-space control (Khatib, 1987) takes a goal for its hand: relative to the
hand (``input_type`` delta), scaled, or absolute: a position in metres and a rotation vector in
radians, in the frame ``input_ref_frame``. Other parts of an action, such as the gripper's, are the
same in both. Import it after robosuite.
"""

import copy
from typing import Any

import numpy as np
from robosuite.controllers.composite.composite_controller import CompositeController
from robosuite.controllers.parts.arm.osc import OperationalSpaceController
from scipy.spatial.transform import Rotation


class ArmGoals:
    """The goals of an environment's arms; ``ValueError`` for other controllers than these."""

    def __init__(self, env: Any):
        self._env = env
        reasons = [why for robot, arm, _ in self._arms() if (why := _why_unknown(robot, arm))]
        for robot in env.robots:
            known = {*robot.arms, *robot.composite_controller.grippers}
            if others := [name for name in robot.part_controllers if name not in known]:
                reasons.append(f"actions for {robot.name} move its {', '.join(others)} as well")
        if reasons:
            raise ValueError(
                f"{type(env).__name__}: {reasons[0]}; only of arms under OSC_POSE or OSC_POSITION "
                "with impedance_mode fixed is it known what actions aim at"
            )
        parts = [np.arange(part.start, part.stop) for *_, part in self._arms()]
        self.motions = np.concatenate(parts)  # indices of the action that move arms

    def are(self, input_type: str) -> bool:
        """Say whether all arms take ``delta`` or ``absolute`` actions."""
        return all(controller.input_type == input_type for _, controller, _ in self._arms())

    def absolute(self, action: np.ndarray) -> np.ndarray:
        """Convert a relative action ``[A]`` in the present state to an absolute one."""
        goal = np.array(action, np.float64)
        for robot, controller, part in self._arms():
            robot.composite_controller.update_state()
            controller.set_goal(goal[part])
            turn = Rotation.from_matrix(controller.goal_ori).as_rotvec()
            goal[part] = np.concatenate([controller.goal_pos, turn])[: part.stop - part.start]
        return goal

    def relative(self, goal: np.ndarray) -> np.ndarray:
        """Return the relative action ``[A]`` that in the present state has the goal of an absolute
        one. It exceeds the controller's range (``input_max``) if the goal is too far away."""
        action = np.array(goal, np.float64)
        for robot, controller, part in self._arms():
            robot.composite_controller.update_state()
            position, orientation = _pose(controller)
            turn = Rotation.from_rotvec(goal[part][3:] if controller.use_ori else np.zeros(3))
            turn = turn * Rotation.from_matrix(orientation).inv()
            delta = np.concatenate([goal[part][:3] - position, turn.as_rotvec()])
            # The action for this motion, unclipped.
            c, delta = controller, delta[: part.stop - part.start]
            scale = (c.output_max - c.output_min) / (c.input_max - c.input_min)
            middle = (c.input_max + c.input_min) / 2
            action[part] = (delta - (c.output_max + c.output_min) / 2) / scale + middle
        return action

    def stand_still(self, last: np.ndarray | None) -> np.ndarray:
        """Return the action ``[A]`` by which arms stay in place, or move on to the goal of the
        ``last`` one if that is absolute; other parts are those of the last one."""
        action = np.zeros(self._env.action_dim) if last is None else np.array(last, np.float64)
        for robot, controller, part in self._arms():
            if controller.input_type == "delta":
                action[part] = 0
            elif last is None:
                robot.composite_controller.update_state()
                position, orientation = _pose(controller)
                turn = Rotation.from_matrix(orientation).as_rotvec()
                action[part] = np.concatenate([position, turn])[: part.stop - part.start]
        return action

    def absolute_configs(self) -> Any:
        """Return the ``controller_configs`` for absolute actions with the same motions."""
        configs = []
        for robot in self._env.robots:
            config = copy.deepcopy(robot.composite_controller_config)
            for arm in robot.arms:
                config["body_parts"][arm]["input_type"] = "absolute"
            configs.append(config)
        return configs if len(configs) > 1 else configs[0]

    def _arms(self) -> list[tuple[Any, Any, slice]]:
        """Return robots, arms' present controllers (resets make new ones), and parts of actions."""
        arms, begin = [], 0
        for robot in self._env.robots:
            for name, (first, last) in robot.composite_controller._action_split_indexes.items():
                if name in robot.arms:
                    part = slice(begin + first, begin + last)
                    arms.append((robot, robot.part_controllers[name], part))
            begin += robot.action_dim
        return arms


def _pose(controller: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return position ``[3]`` and orientation ``[3, 3]`` of the hand in the frame of its goals."""
    if controller.input_ref_frame == "world":
        return controller.ref_pos, controller.ref_ori_mat
    pose = controller.goal_origin_to_eef_pose()
    return pose[:3, 3], pose[:3, :3]


def _why_unknown(robot: Any, controller: Any) -> str | None:
    """Name the setting of an arm that this module does not support, if any."""
    composite = robot.composite_controller
    if type(composite) is not CompositeController:
        return f"{robot.name} is controlled by {type(composite).__name__}"
    if type(controller) is not OperationalSpaceController:
        return f"an arm of {robot.name} is controlled by {controller.name}"
    if controller.impedance_mode != "fixed":
        return f"actions for {robot.name} set its impedance as well"
    return None
