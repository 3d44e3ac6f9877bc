"""Edits that say other rewards or actions of the same steps."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from offrl.data.formats.hdf5 import DemoFile, located
from offrl.edits.edit import Edit, of_files
from offrl.edits.selection import success_steps
from offrl.normalize import axis_angle_to_rot_6d

ACTION_MAP = "action_map"  # the attribute of data: stored actions were scaled, and how
WIDTH = 7  # of an arm's action: position, rotation, gripper

Computed = Iterator[np.ndarray]  # an array for each demonstration, in their order


def rewards(
    file: DemoFile,
    env_args: Mapping[str, Any] | None,
    dense: Computed | None = None,
    success_only: bool = False,
    scale: float = 1.0,
    shift: float = 0.0,
) -> Edit:
    """``scale * r + shift``: of the stored rewards, of ``dense`` ones, or of 1 where the task was
    done and 0 elsewhere. ``env_args``: of the environment that gives such rewards."""

    def change(file: DemoFile, demo: str) -> dict[str, Any]:
        if dense is not None:
            found = computed(dense, file, demo)
        elif success_only:
            found = success_steps(file, demo)
        else:
            found = file.steps(demo, "rewards").reshape(-1)
        return {**file.stored(demo), "rewards": scale * found.astype(np.float64) + shift}

    return replace(of_files([file]), env_args=env_args, change=change)


def actions(
    file: DemoFile,
    env_args: Mapping[str, Any] | None,
    kind: str | None,
    absolute: Computed | None = None,
    parts: bool = False,
) -> Edit:
    """``absolute`` actions in place of relative ones; with ``parts`` beside them ``action_dict``.

    kind: ``delta`` or ``absolute``, what the file's actions are.
    env_args: of the environment that takes the new ones.
    """

    check_kind(file, kind)

    def change(file: DemoFile, demo: str) -> dict[str, Any]:
        trajectory = file.stored(demo)
        place, terms = f"{file.path}: data/{demo}", {}
        if parts:
            terms = action_dict(file.steps(demo, "actions"), kind, place)
        if absolute is not None:
            trajectory["actions"] = actions = computed(absolute, file, demo)
            if parts:
                terms |= action_dict(actions, "absolute", place)
        return trajectory | terms

    return replace(of_files([file]), env_args=env_args, change=change)


def to_range(file: DemoFile, low: float, high: float) -> Edit:
    """Actions whose smallest and largest values are ``low`` and ``high`` in each dimension; one
    that never changes is in their middle. ``data`` says how to undo it: ``ACTION_MAP``."""
    check_range(file)
    if not low < high:
        raise ValueError(f"--range {low} {high}: LOW is to be below HIGH")
    rows = np.concatenate([file.steps(demo, "actions") for demo in file.demos()])
    smallest, largest = (f(rows, axis=0).astype(np.float64) for f in (np.min, np.max))
    is_still = smallest == largest
    scale = np.where(is_still, 1.0, (largest - smallest) / (high - low))
    offset = (smallest + largest) / 2 - scale * (low + high) / 2
    undo = {"scale": scale.tolist(), "offset": offset.tolist()}
    edit = of_files([file])
    attributes = {**edit.attributes, ACTION_MAP: json.dumps(undo)}
    return replace(
        edit,
        attributes=attributes,
        change=lambda file, demo: {
            **file.stored(demo),
            "actions": ((file.steps(demo, "actions") - offset) / scale).clip(low, high),
        },
    )


def from_range(file: DemoFile) -> Edit:
    """Actions as they were before ``to_range``: ``scale * stored + offset``."""
    edit = of_files([file])
    attributes = dict(edit.attributes)
    if ACTION_MAP not in attributes:
        raise ValueError(
            f"{file.path}: its actions are as they were recorded: no attribute {ACTION_MAP} of "
            "data says otherwise"
        )
    with located(file.path, f"the attribute {ACTION_MAP} of data"):
        undo = json.loads(attributes.pop(ACTION_MAP))
        scale, offset = (np.array(undo[key], np.float64) for key in ("scale", "offset"))
    return replace(
        edit,
        attributes=attributes,
        change=lambda file, demo: {
            **file.stored(demo),
            "actions": scale * file.steps(demo, "actions") + offset,
        },
    )


def check_kind(file: DemoFile, kind: str | None) -> None:
    """``ValueError`` where it is not known whether actions are relative or absolute."""
    check_range(file)
    if kind is None:
        raise ValueError(
            f"{file.path}: its environment (env_args) does not say whether actions are relative or "
            "absolute; say so: --kind delta, or --kind absolute"
        )


def check_range(file: DemoFile) -> None:
    """``ValueError`` for actions that no environment takes as they are."""
    if ACTION_MAP in file.attributes():
        raise ValueError(
            f"{file.path}: its actions were brought into another range; undo that first: "
            f"offrl edit actions {file.path} --undo-range --output OUT"
        )


def computed(arrays: Computed, file: DemoFile, demo: str) -> np.ndarray:
    """The next of what was computed for demonstrations; errors say for which one."""
    try:
        return next(arrays)
    except ValueError as error:
        raise ValueError(f"{file.path}: data/{demo}: {error}") from None


def action_dict(actions: np.ndarray, kind: str, place: str) -> dict[str, np.ndarray]:
    """An arm's actions ``[T, 7]`` in parts, with names and contents as robomimic's:
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
