"""Translation of environments' arguments and models of robosuite 1.2 to 1.4 for 1.5.

Those versions describe the controller of one arm, in the world's frame; 1.5 describes that of a
whole robot, in its base's frame. Robots have the same dynamics under other names.
"""

import copy
import inspect
import logging
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from offrl.envs import say_once

# The default controller of an arm in 1.2 to 1.4.
DEFAULT = {
    "type": "JOINT_VELOCITY",
    "input_max": 1,
    "input_min": -1,
    "output_max": 0.5,
    "output_min": -0.5,
    "kp": 0.03,
    "velocity_limits": [-1, 1],
    "interpolation": None,
    "ramp_ratio": 0.2,
}
RENAMED = {"damping": "damping_ratio", "damping_limits": "damping_ratio_limits"}
# Changes in 1.5 of the effect of the same actions.
CHANGED = {
    "OSC_POSE": "an action without rotation holds the hand's present orientation, not the goal",
    "OSC_POSITION": "the hand holds its present orientation and is not kept pointing down",
    "IK_POSE": "inverse kinematics are another solver's, and give joint positions, not velocities",
}
EARLIER_OBJECTS = "offrl_earlier_objects"  # key of env_kwargs: lay ``object`` out as before 1.5
# Sensors that were last among those of objects, and sensors that had another sign.
LAST = ["cubeA_to_cubeB", "hinge_qpos", "handle_qpos"]
LAST += ["payload_in_target_bin", "trash_in_trash_bin"]
NEGATED = {"gripper_to_cube_pos"}
_OLD_MODEL = re.compile(r'name="(mount\d+_base|gripper\d+_(eef|grip_site))"')
_OF_ROBOT = re.compile(r"(robot|gripper|mount|fixed_mount)\d+_")


def kwargs_for_installed(env_args: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the ``env_kwargs`` of ``env_args`` for robosuite 1.5. Those of 1.2 to 1.4 have such
    an ``env_version`` or, without any, an arm's controller instead of a robot's; others, and
    controllers that are not robosuite's, stay the same."""
    from robosuite.controllers.composite import composite_controller_factory as factory
    from robosuite.environments.base import REGISTERED_ENVS

    env_name, kwargs = env_args["env_name"], dict(env_args.get("env_kwargs") or {})
    version = re.match(r"(\d+)\.(\d+)", str(env_args.get("env_version")))
    configs = kwargs.get("controller_configs")
    if version is not None and configs is None:
        configs = DEFAULT
    flat = list(_arm_controllers(configs))
    is_old = version is None or (int(version[1]), int(version[2])) < (1, 5)
    if not is_old or not flat or not all(map(factory.is_part_controller_config, flat)):
        return kwargs
    robots = kwargs.get("robots")
    robots = [robots] if isinstance(robots, str) else list(robots or ())
    per_robot = configs if isinstance(configs, (list, tuple)) else [configs] * len(robots)
    task = REGISTERED_ENVS.get(env_name)
    types = inspect.signature(task).parameters.get("gripper_types") if task else None
    has_grippers = kwargs.get("gripper_types", types.default if types else "default") is not None
    given = zip(per_robot, robots, strict=False)
    kwargs["controller_configs"] = [_robot_controller(*own, has_grippers) for own in given]
    kwargs[EARLIER_OBJECTS] = True
    if "mount_types" in kwargs:
        kwargs["base_types"] = kwargs.pop("mount_types")
    for name in ("renderer", "renderer_config"):  # 1.5 has others, and no window opens
        kwargs.pop(name, None)
    if any(config["type"] == "JOINT_VELOCITY" for config in flat):
        _mend_joint_velocity()
    _say_what_changed(env_name, env_args.get("env_version"), flat)
    return kwargs


def _arm_controllers(configs: Any) -> Iterator[Any]:
    """Yield the controllers of all arms: of one, of each robot, or of each robot's two arms."""
    if isinstance(configs, (list, tuple)):
        for config in configs:
            yield from _arm_controllers(config)
    elif configs is not None:
        yield configs


def _robot_controller(config: Any, robot: str, has_grippers: bool) -> dict[str, Any]:
    """Make a robot's composite controller of that of its arm or those of ``[right, left]``."""
    from robosuite.utils.robot_utils import check_bimanual

    arms = ["right", "left"] if check_bimanual(robot) else ["right"]
    parts = config if isinstance(config, (list, tuple)) else [config] * len(arms)
    body = {}
    for arm, given in zip(arms, parts, strict=False):
        part = {RENAMED.get(key, key): value for key, value in copy.deepcopy(dict(given)).items()}
        if part["type"].startswith("OSC"):
            part["input_type"] = "delta" if part.pop("control_delta", True) else "absolute"
            part["input_ref_frame"] = "world"
            part["position_limits"] = part["orientation_limits"] = None  # 1.5 fails with any
        body[arm] = part | {"gripper": {"type": "GRIP"}}
    composite: dict[str, Any] = {"type": "BASIC", "body_parts": body}
    if len(arms) == 2 and has_grippers:  # actions are arm, gripper, arm, gripper, as they were
        order = [name for arm in arms for name in (arm, f"{arm}_gripper")]
        composite["composite_controller_specific_configs"] = {"body_part_ordering": order}
    return composite


def _mend_joint_velocity() -> None:
    """Repair robosuite's joint velocity controller, which cannot be made in 1.5: it assigns to a
    property without a setter, and takes the truth value of an array."""
    from robosuite.controllers.parts.controller import Controller
    from robosuite.controllers.parts.generic import JointVelocityController

    class Torques(np.ndarray):
        def __bool__(self) -> bool:
            return True

    def torque_compensation(self: Any) -> np.ndarray:
        return Controller.torque_compensation.fget(self).view(Torques)

    if "torque_compensation" not in vars(JointVelocityController):
        JointVelocityController.torque_compensation = property(torque_compensation, lambda *_: None)


def _say_what_changed(env_name: str, recorded: str | None, configs: list[Any]) -> None:
    import robosuite

    kinds = sorted({config["type"] for config in configs} & CHANGED.keys())
    changed = [CHANGED[kind] for kind in kinds]
    limits = ("position_limits", "orientation_limits")
    if any(config.get(key) is not None for config in configs for key in limits):
        changed.append("the limits of the hand's pose are gone")
    changed.append("grippers and MuJoCo differ")
    say_once(
        logging.WARNING,
        f"{env_name}: recorded with robosuite {recorded or '1.4 or earlier'}, simulated with "
        f"{robosuite.__version__}: states and observations are those that were recorded, but the "
        f"same actions move the robot otherwise ({'; '.join(changed)}). Play back by states; "
        "compare success rates with others of this version only, or evaluate with the earlier one",
    )


def lay_out_as_earlier(env: Any) -> None:
    """Give objects' sensors the order and signs of 1.2 to 1.4, for policies that were trained with
    these. A sensor that reads another one then comes after it; in 1.5 it reads the value of the
    last step."""
    from robosuite.utils.observables import sensor

    set_up = env._setup_observables

    def set_up_as_earlier() -> dict[str, Any]:
        sensors = set_up()
        for name in NEGATED & sensors.keys():
            seen = sensors[name]._sensor
            negated = sensor(modality="object")(lambda cache, seen=seen: -seen(cache))
            sensors[name].set_sensor(negated)
        return {name: sensors[name] for name in earlier_order(list(sensors))}

    env._setup_observables = set_up_as_earlier
    env._observables = set_up_as_earlier()


def earlier_order(names: Sequence[str]) -> list[str]:
    """Sort 1.5's sensors as in 1.2 to 1.4: by object its pose and that to a hand; then ``LAST``."""

    def thing(name: str) -> str:
        return re.sub(r"(_to_robot\d+_\w*eef)?_(pos|quat)$", "", name)

    first = {thing(name): i for i, name in reversed(list(enumerate(names)))}

    def place(name: str) -> tuple[int, int, bool]:
        last = LAST.index(name) + 1 if name in LAST else 0
        return last, first[thing(name)], "_to_robot" in name

    return sorted(names, key=place)


def is_earlier(text: str) -> bool:
    """Say whether a model (MJCF) is of robosuite 1.2 to 1.4."""
    return _OLD_MODEL.search(text) is not None


def model_for_installed(text: str, present: str) -> str:
    """Replace the robots in a model of robosuite 1.2 to 1.4 by those of the ``present`` model of
    the same task; keep all else as recorded.

    Raises ``ValueError``, which says why, where the two do not fit together.
    """
    try:
        old, new = ET.fromstring(text), ET.fromstring(present)
    except ET.ParseError as error:
        raise ValueError(f"it is no XML: {error}") from None
    world, new_world = _part(old, "worldbody"), _part(new, "worldbody")
    places = {body.get("name"): i for i, body in enumerate(world)}
    for body in new_world.iterfind("body"):
        name = body.get("name", "")
        if _OF_ROBOT.match(name) and name in places:
            place = places[name]
            for key in {"pos", "quat"} & {*body.attrib, *world[place].attrib}:
                body.attrib.pop(key, None)
                if key in world[place].attrib:
                    body.set(key, world[place].attrib[key])
            world[place] = body
        elif body.get("mocap") and name not in places:
            world.append(body)
    assets = _part(old, "asset")
    for asset in list(assets):
        if _OF_ROBOT.match(asset.get("name", "")):
            assets.remove(asset)
    assets.extend(a for a in _part(new, "asset") if _OF_ROBOT.match(a.get("name", "")))
    for tag in ("contact", "equality", "tendon", "actuator", "sensor"):
        for section in old.findall(tag):
            old.remove(section)
        old.extend(new.findall(tag))
    for tag in ("body", "joint", "geom", "site", "camera"):
        known, names = ({e.get("name", "") for e in model.iter(tag)} - {""} for model in (old, new))
        if names - known:
            raise ValueError(f"it has no {tag} {min(names - known)!r}")
    return ET.tostring(old, encoding="unicode")


def _part(model: ET.Element, tag: str) -> ET.Element:
    part = model.find(tag)
    if part is None:
        raise ValueError(f"it has no {tag}")
    return part
