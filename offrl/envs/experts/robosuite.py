"""Demonstrators of robosuite's tasks: Lift, Stack, PickPlaceCan, NutAssemblySquare and Door.

They share the motions of a gripper that points down, under OSC_POSE delta control. Positions are in
metres, angles in radians, quaternions ``(x, y, z, w)``, all in the world.
"""

from collections.abc import Mapping

import numpy as np

from offrl.envs.experts.expert import demonstrator

FULL_MOVE, FULL_TURN = 0.05, 0.5  # metres and radians per step for an action of 1
OPEN, CLOSE = -1.0, 1.0
STILL = np.zeros(3)


def fingers_width(obs: Mapping[str, np.ndarray]) -> float:
    """Measure the distance between the fingers of the first robot; open: 0.08."""
    return float(np.ptp(obs["robot0_gripper_qpos"]))


def above(offset: np.ndarray, height: float, radius: float = 0.01) -> np.ndarray:
    """Approach a target from above through a funnel: from afar aim at a point ``height`` above it,
    lower with better centring, and straight down within ``radius``."""
    sideways = float(np.linalg.norm(offset[:2]))
    return offset + [0.0, 0.0, np.clip(5.0 * (sideways - radius), 0.0, height)]


def yaw_of(quaternion: np.ndarray) -> float:
    """Return the angle about the vertical of a body's x axis."""
    x, y, z, w = quaternion
    return float(np.arctan2(2.0 * (x * y + w * z), 1.0 - 2.0 * (y * y + z * z)))


def nearest_turn(angle: float, period: float) -> float:
    """Return the equivalent angle that is within half a period of 0."""
    return float((angle + period / 2) % period - period / 2)


def point_down(quaternion: np.ndarray, yaw: float) -> np.ndarray:
    """Turn the hand to point down, its x axis towards ``yaw``; the fingers close across it."""
    cos, sin = np.cos(yaw), np.sin(yaw)
    return turn_to(quaternion, np.array([[cos, sin, 0.0], [sin, -cos, 0.0], [0.0, 0.0, -1.0]]))


def turn_to(quaternion: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the rotation ``[3]`` of an action that turns the hand until its x, y and z axes are
    the rows of ``wanted`` ``[3, 3]``. The hand points along z, and its fingers open along y."""
    x, y, z, w = quaternion
    axes = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y)],
            [2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x)],
            [2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
    # Half of the sum of the cross products of the axes is the axis times the sine of the angle.
    error = 0.5 * np.cross(axes, wanted).sum(axis=0)
    return np.clip(error / FULL_TURN, -1.0, 1.0)


def action(offset: np.ndarray, grip: float, turn: np.ndarray = STILL) -> np.ndarray:
    """Make an action ``[7]`` of ``offset`` ``[3]``, clipped to a step, ``grip`` and ``turn``."""
    return np.concatenate([np.clip(offset / FULL_MOVE, -1.0, 1.0), turn, [grip]])


@demonstrator("Lift", horizon=150)
def lift(obs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Lift the cube with a Panda arm under OSC_POSE delta control: action ``[7]`` in [-1, 1].

    Descend through a funnel above the cube, close the fingers, and lift.
    """
    offset, width = obs["object"][:3] - obs["robot0_eef_pos"], fingers_width(obs)
    sideways = float(np.linalg.norm(offset[:2]))

    # The funnel: 10 cm above the cube from afar, lower with better centring.
    height = np.clip(3.0 * (sideways - 0.01), 0.0, 0.1)
    move = action(offset + [0.0, 0.0, height], OPEN)
    around_cube = sideways < 0.015 and abs(offset[2]) < 0.025
    if around_cube:
        # The funnel keeps the pull from losing a cube that lags (6 cm wide at its corners).
        move[2] += 0.45 * np.clip((0.07 - width) / 0.02, 0.0, 1.0)
        move[-1] = CLOSE
    return move


STACKED = 0.045  # metres from the centre of the large cube up to that of the small one on it


@demonstrator("Stack", horizon=200)
def stack(obs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Put the small cube onto the large one with a Panda arm: action ``[7]`` in [-1, 1]."""
    cube, base, eef = obs["object"][:3], obs["object"][7:10], obs["robot0_eef_pos"]
    to_base = base + [0.0, 0.0, STACKED] - cube
    # Of the two ways to hold a cube, take the one whose fingers avoid the other cube.
    yaw = yaw_of(obs["object"][3:7])
    towards = np.arctan2(to_base[1], to_base[0])
    yaws = [nearest_turn(yaw + quarter * np.pi / 2, np.pi) for quarter in (0, 1)]
    sideways = np.linalg.norm(to_base[:2])
    beside = [sideways < 0.1 and abs(np.sin(towards - y)) > 0.7 for y in yaws]
    yaw = min(zip(beside, np.abs(yaws), yaws, strict=True))[2]

    offset, width = cube - eef, fingers_width(obs)
    around = np.linalg.norm(offset[:2]) < 0.015 and abs(offset[2]) < 0.02
    if around and sideways < 0.015 and to_base[2] > -0.015:  # it stands: let go
        rise = 0.05 if width > 0.06 else 0.0
        return action(np.array([0.0, 0.0, rise]), OPEN)
    if not around:
        return action(above(offset, 0.1), OPEN, point_down(obs["robot0_eef_quat"], yaw))
    if width > 0.05:
        return action(offset, CLOSE)
    return action(above(to_base, 0.08, radius=0.005), CLOSE)


PLACE = np.array([0.18, 0.38, 0.87])  # position of a can just above its part of the bins
ROOM = np.array([0.05, 0.06])  # distance from there up to which a can is clear of the walls
SIDES = {"left": 1.0, "right": -1.0}  # signs in y, which points to the robot's left
# Offsets beside and above a can's middle where closed fingers avoid it, below its lid.
BESIDE, RAISED = 0.08, 0.045


@demonstrator("PickPlaceCan", horizon=250, styles=tuple(SIDES))
def can(obs: Mapping[str, np.ndarray], style: str | None = None) -> np.ndarray:
    """Put the can into its part of the bins with a Panda arm: action ``[7]`` in [-1, 1].

    Without a style the hand takes the can from above, which is the shortest way. With one, the
    closed hand comes from above, passes the can on one side, and opens to take it from there. The
    mean of both ways would end on the lid of the can.
    """
    can, eef, width = obs["object"][7:10], obs["robot0_eef_pos"], fingers_width(obs)
    offset, way = can - eef, PLACE - can
    turn = point_down(obs["robot0_eef_quat"], np.pi / 2 if style else 0.0)
    holds = 0.03 < width < 0.068
    reach = 0.05 if holds else 0.02  # a can in the hand lags behind it
    around = np.linalg.norm(offset[:2]) < reach and abs(offset[2]) < 0.01 + reach
    if (np.abs(way[:2]) < ROOM).all() and way[2] > -0.01:
        # Success needs the hand 4 cm away. Move up once the fingers are wider than the can; else
        # demonstrations would end while it falls, and not show how to get there.
        rise = 0.05 if width > 0.06 else 0.0
        return action(np.array([0.0, 0.0, rise]), OPEN)
    if not around:
        move, grip = _aside(offset, width, SIDES[style]) if style else (above(offset, 0.12), OPEN)
        return action(move, grip, turn)
    if not holds:
        return action(offset, CLOSE)
    move = above(way, 0.15, radius=0.03)
    move[:2] *= np.clip((can[2] - 0.87) / 0.05, 0.0, 1.0)  # first upwards
    return action(move, CLOSE, turn)


def _aside(offset: np.ndarray, width: float, side: float) -> tuple[np.ndarray, float]:
    """Choose the motion and the grip of a hand that goes around a can on one side."""
    aside = -side * offset[1]  # distance of the hand from the middle, on that side
    beside = offset + [0.0, side * BESIDE, RAISED]
    if beside[2] > -0.02 and aside > -0.02:  # low enough to approach
        if aside < 0.02:
            return offset, OPEN
        opens = width < 0.075 and aside > 0.05
        return (beside if opens else offset + [0.0, 0.0, RAISED]), OPEN
    if np.hypot(offset[0], max(-aside, aside - BESIDE, 0.0)) < 0.03:  # over the way down
        return beside * FULL_MOVE / np.abs(beside).max(), CLOSE
    return offset + [0.0, 0.0, 0.15], CLOSE


PEG = np.array([0.23, 0.1, 0.83])  # where the nut lies when it is around the peg
PEG_TOP = 0.95
CLEAR = PEG_TOP + 0.04 - PEG[2]  # height above PEG from which the nut is clear of the peg
HANDLE = 0.054  # metres from the middle of the nut to that of its handle


@demonstrator("NutAssemblySquare", horizon=250)
def square_nut(obs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Put the square nut around its peg with a Panda arm: action ``[7]`` in [-1, 1]."""
    nut, quaternion, eef = obs["object"][7:10], obs["object"][10:14], obs["robot0_eef_pos"]
    yaw = yaw_of(quaternion)
    handle = nut + HANDLE * np.array([np.cos(yaw), np.sin(yaw), 0.0])
    offset, to_peg = handle - eef, PEG - nut
    hand = obs["robot0_eef_quat"]
    along = nearest_turn(yaw, np.pi)  # the hand's x axis along the handle, either way
    holds = fingers_width(obs) < 0.04
    reach = 0.03 if holds else 0.02  # a nut in the hand lags behind it
    around = np.linalg.norm(offset[:2]) < reach and abs(offset[2]) < reach - 0.005
    if not around:
        return action(above(offset, 0.1), OPEN, point_down(hand, along))
    if not holds:
        return action(offset, CLOSE)
    # The square fits the peg in four ways: turn to the nearest one.
    rest = nearest_turn(yaw, np.pi / 2)
    turn = np.array([0.0, 0.0, np.clip(-rest / FULL_TURN, -1.0, 1.0)])
    sideways = np.linalg.norm(to_peg[:2])
    is_around_peg = sideways < 0.012 and nut[2] < PEG_TOP
    fits = sideways < 0.006 and abs(rest) < 0.1
    if not (is_around_peg or fits):
        to_peg = to_peg + [0.0, 0.0, CLEAR]
    return action(to_peg, CLOSE, turn)


TILT = np.pi / 4  # angle of the hand, which would touch the door without it
TURNED = 1.0  # radians of the handle at which the latch lets go of the frame
# One finger goes behind the handle and above it, so that the hand can press and pull.
COS, SIN = np.cos(TILT), np.sin(TILT)
AXES = np.array([[1.0, 0.0, 0.0], [0.0, -COS, SIN], [0.0, -SIN, -COS]])


@demonstrator("Door", horizon=200)
def door(obs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Open the door with a Panda arm: action ``[7]`` in [-1, 1].

    Take the end of the handle, press it down, pull.
    """
    handle, eef = obs["object"][3:6], obs["robot0_eef_pos"]
    hinge, turned = obs["object"][6], obs["object"][13]
    turn = turn_to(obs["robot0_eef_quat"], AXES)
    offset = handle - eef
    along = offset @ AXES[2]  # how far the hand has to go where it points
    across = np.linalg.norm(offset - along * AXES[2])
    holds = fingers_width(obs) < 0.06
    if across > (0.05 if holds else 0.03) or abs(along) > 0.04:
        # A funnel in the direction of the hand.
        back = np.clip(5.0 * (across - 0.01), 0.0, 0.12)
        return action(offset - back * AXES[2], OPEN, turn)
    if not holds:
        return action(offset, CLOSE, turn)
    if turned < TURNED and hinge < 0.02:
        return action(np.array([2 * offset[0], 2 * offset[1], -0.05]), CLOSE, turn)
    return action(np.array([2 * offset[0], 0.05, offset[2] - 0.02]), CLOSE, turn)
