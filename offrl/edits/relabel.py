"""Edits that write other rewards or actions of the same steps."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from offrl.data.formats.hdf5 import DemoFile, located
from offrl.edits import simulated
from offrl.edits.edit import ACTION_MAP, Edit, check_range, of_files
from offrl.edits.selection import success_steps
from offrl.normalize import axis_angle_to_rot_6d

WIDTH = 7  # of an arm's action: position, rotation, gripper


def rewards(
    file: DemoFile,
    dense: bool = False,
    success_only: bool = False,
    scale: float = 1.0,
    shift: float = 0.0,
    workers: int | None = None,
) -> Edit:
    """Write ``scale * r + shift``: of the stored rewards, of the simulator's ``dense`` ones, or of
    1 where the task was done and 0 elsewhere."""
    if not (dense or success_only or scale != 1 or shift):
        raise ValueError("offrl edit rewards: give --dense, --success-only, --scale or --shift")
    env_args: Mapping[str, Any] | None = file.env_args
    computed = None
    if dense or success_only:
        env_args = simulated.rewarding(env_args, dense)
    if dense:
        computed = simulated.simulate(file, simulated.dense_rewards, env_args, workers=workers)

    def change(file: DemoFile, demo: str) -> dict[str, Any]:
        if computed is not None:
            found = next(computed)
        elif success_only:
            found = success_steps(file, demo)
        else:
            found = file.steps(demo, "rewards").reshape(-1)
        return {**file.stored(demo), "rewards": scale * found.astype(np.float64) + shift}

    return of_files([file], env_args=env_args, change=change, computed=computed)


def actions(
    file: DemoFile,
    absolute: bool = False,
    action_dict: bool = False,
    limits: Sequence[float] | None = None,
    undo_range: bool = False,
    kind: str | None = None,
    workers: int | None = None,
) -> Edit:
    """Write actions in another form.

    absolute: the poses that relative actions aim at, in their place.
    action_dict: also the parts of actions, as arrays of their own.
    limits, undo_range: scaled to this range, or as they were before that.
    kind: ``delta`` or ``absolute``, the kind of the file's actions; by default the simulator's.
    """
    if bool(limits or undo_range) == (absolute or action_dict):
        raise ValueError(
            "offrl edit actions: give --absolute, --action-dict or both, or else --range or "
            "--undo-range"
        )
    if limits:
        return to_range(file, *limits)
    if undo_range:
        return from_range(file)
    if absolute and kind == "absolute":
        raise ValueError("--absolute makes relative actions absolute; leave --kind absolute out")
    env_args, computed = file.env_args, None
    if absolute:
        kind, make = "delta", simulated.absolute_actions
        computed = simulated.simulate(file, make, env_args, workers=workers)
        env_args = simulated.absolute(env_args)
    kind = known_kind(file, kind or simulated.input_type(env_args))

    def change(file: DemoFile, demo: str) -> dict[str, Any]:
        place, trajectory = f"{file.path}: data/{demo}", file.stored(demo)
        if action_dict:
            trajectory |= parts_of(file.steps(demo, "actions"), kind, place)
        if computed is not None:
            trajectory["actions"] = next(computed)
            if action_dict:
                trajectory |= parts_of(trajectory["actions"], "absolute", place)
        return trajectory

    return of_files([file], env_args=env_args, change=change, computed=computed)


def to_range(file: DemoFile, low: float, high: float) -> Edit:
    """Scale actions so that their smallest and largest values are ``low`` and ``high`` in each
    dimension; one that never changes is in their middle. The attribute ``ACTION_MAP`` of ``data``
    says how to undo it."""
    check_range(file)
    if not low < high:
        raise ValueError(f"--range {low} {high}: LOW is to be below HIGH")
    rows = np.concatenate([file.steps(demo, "actions") for demo in file.demos()])
    smallest, largest = (f(rows, axis=0).astype(np.float64) for f in (np.min, np.max))
    is_still = smallest == largest
    scale = np.where(is_still, 1.0, (largest - smallest) / (high - low))
    offset = (smallest + largest) / 2 - scale * (low + high) / 2
    undo = {"scale": scale.tolist(), "offset": offset.tolist()}

    def change(file: DemoFile, demo: str) -> dict[str, Any]:
        scaled = ((file.steps(demo, "actions") - offset) / scale).clip(low, high)
        return {**file.stored(demo), "actions": scaled}

    edit = of_files([file], change=change)
    edit.attributes[ACTION_MAP] = json.dumps(undo)
    return edit


def from_range(file: DemoFile) -> Edit:
    """Write actions as they were before ``to_range``: ``scale * stored + offset``."""
    attributes = file.attributes()
    if ACTION_MAP not in attributes:
        raise ValueError(
            f"{file.path}: its actions are as they were recorded: no attribute {ACTION_MAP} of "
            "data says otherwise"
        )
    with located(file.path, f"the attribute {ACTION_MAP} of data"):
        undo = json.loads(attributes.pop(ACTION_MAP))
        scale, offset = (np.array(undo[key], np.float64) for key in ("scale", "offset"))

    def change(file: DemoFile, demo: str) -> dict[str, Any]:
        return {**file.stored(demo), "actions": scale * file.steps(demo, "actions") + offset}

    return of_files([file], attributes=attributes, change=change)


def known_kind(file: DemoFile, kind: str | None) -> str:
    """Return the kind of a file's actions; ``ValueError`` where it is not known whether they are
    relative or absolute, or where no environment takes them as they are."""
    check_range(file)
    if kind is None:
        raise ValueError(
            f"{file.path}: its environment (env_args) does not say whether actions are relative or "
            "absolute; say so: --kind delta, or --kind absolute"
        )
    return kind


def parts_of(actions: np.ndarray, kind: str, place: str) -> dict[str, np.ndarray]:
    """Split an arm's actions ``[T, 7]`` into parts, with names and contents as robomimic's:
    ``action_dict/{abs_pos, abs_rot_axis_angle, abs_rot_6d, gripper}``, or ``rel_...``."""
    if actions.shape[1:] != (WIDTH,):
        raise ValueError(
            f"{place}/actions has steps of {list(actions.shape[1:])} numbers; only actions of one "
            f"arm, [x, y, z, rotation vector, gripper], {WIDTH} numbers, have such parts"
        )
    prefix = {"delta": "rel", "absolute": "abs"}[kind]
    turn = actions[:, 3:6].astype(np.float64)
    parts = {
        f"{prefix}_pos": actions[:, :3],
        f"{prefix}_rot_axis_angle": actions[:, 3:6],
        f"{prefix}_rot_6d": axis_angle_to_rot_6d(turn),
        "gripper": actions[:, 6:],
    }
    return {f"action_dict/{name}": rows for name, rows in parts.items()}
