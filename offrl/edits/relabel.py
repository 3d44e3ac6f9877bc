"""Edits that replace rewards or actions, or make one step of several."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from offrl.data.formats.hdf5 import located
from offrl.data.remarks import SWITCHES
from offrl.data.separate import SeparateArrays
from offrl.data.storage import COMPRESSIONS, StoredArray  # frames' compressions first
from offrl.edits import simulated
from offrl.edits.edit import ACTION_MAP, Edit, check_range, of_files
from offrl.edits.selection import success_steps
from offrl.normalize import axis_angle_to_rot_6d
from offrl.robomimic.configs import is_robosuite

WIDTH = 7  # of an arm's action: position, rotation, gripper
CONTROL_FREQ = 20  # Hz, of a robosuite task that names none


def rewards(
    file: SeparateArrays,
    dense: bool = False,
    success_only: bool = False,
    scale: float = 1.0,
    shift: float = 0.0,
    workers: int | None = None,
) -> Edit:
    """Write ``scale * r + shift``: r is stored, ``dense`` (simulated), or 1 at success, else 0."""
    if not (dense or success_only or scale != 1 or shift):
        raise ValueError("offrl edit rewards: give --dense, --success-only, --scale or --shift")
    env_args: Mapping[str, Any] | None = file.env_args
    computed = None
    if dense or success_only:
        env_args = simulated.rewarding(env_args, dense)
    if dense:
        computed = simulated.simulate(file, simulated.dense_rewards, env_args, workers=workers)

    def change(file: SeparateArrays, demo: str) -> dict[str, Any]:
        if computed is not None:
            found = next(computed)
        elif success_only:
            found = success_steps(file, demo)
        else:
            found = file.steps(demo, "rewards").reshape(-1)
        return {**file.stored(demo), "rewards": scale * found.astype(np.float64) + shift}

    return of_files([file], env_args=env_args, change=change, computed=computed)


def actions(
    file: SeparateArrays,
    absolute: bool = False,
    action_dict: bool = False,
    limits: Sequence[float] | None = None,
    undo_range: bool = False,
    kind: str | None = None,
    workers: int | None = None,
) -> Edit:
    """Write actions in another form.

    absolute: replace relative actions by the poses that they aim at.
    action_dict: also write the parts of actions as arrays of their own.
    limits, undo_range: scale actions to this range, or undo that.
    kind: ``delta`` or ``absolute``, the kind of the file's actions; by default as simulated.
    """
    if bool(limits or undo_range) == (absolute or action_dict):
        words = "give --absolute, --action-dict or both, --range or --undo-range"
        raise ValueError(f"offrl edit actions: {words}")
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

    def change(file: SeparateArrays, demo: str) -> dict[str, Any]:
        place, trajectory = f"{file.path}: {file.root}{demo}", file.stored(demo)
        if action_dict:
            trajectory |= parts_of(file.steps(demo, "actions"), kind, place)
        if computed is not None:
            trajectory["actions"] = next(computed)
            if action_dict:
                trajectory |= parts_of(trajectory["actions"], "absolute", place)
        return trajectory

    return of_files([file], env_args=env_args, change=change, computed=computed)


def to_range(file: SeparateArrays, low: float, high: float) -> Edit:
    """Scale actions so that their smallest and largest values are ``low`` and ``high`` in each
    dimension; a constant one becomes the middle. ``ACTION_MAP`` of ``data`` can undo it."""
    check_range(file)
    if not low < high:
        raise ValueError(f"--range {low} {high}: LOW is to be below HIGH")
    rows = np.concatenate([file.steps(demo, "actions") for demo in file.demos()])
    smallest, largest = (f(rows, axis=0).astype(np.float64) for f in (np.min, np.max))
    is_still = smallest == largest
    scale = np.where(is_still, 1.0, (largest - smallest) / (high - low))
    offset = (smallest + largest) / 2 - scale * (low + high) / 2
    undo = {"scale": scale.tolist(), "offset": offset.tolist()}

    def change(file: SeparateArrays, demo: str) -> dict[str, Any]:
        scaled = ((file.steps(demo, "actions") - offset) / scale).clip(low, high)
        return {**file.stored(demo), "actions": scaled}

    edit = of_files([file], change=change)
    edit.attributes[ACTION_MAP] = json.dumps(undo)
    return edit


def from_range(file: SeparateArrays) -> Edit:
    """Write actions as they were before ``to_range``: ``scale * stored + offset``."""
    attributes = file.attributes()
    if ACTION_MAP not in attributes:
        words = f"its actions are as they were recorded: data has no attribute {ACTION_MAP}"
        raise ValueError(f"{file.path}: {words}")
    with located(file.path, f"the attribute {ACTION_MAP} of data"):
        undo = json.loads(attributes.pop(ACTION_MAP))
        scale, offset = (np.array(undo[key], np.float64) for key in ("scale", "offset"))

    def change(file: SeparateArrays, demo: str) -> dict[str, Any]:
        return {**file.stored(demo), "actions": scale * file.steps(demo, "actions") + offset}

    return of_files([file], attributes=attributes, change=change)


def known_kind(file: SeparateArrays, kind: str | None) -> str:
    """Return the kind of a file's actions, ``delta`` or ``absolute``; ``ValueError`` if it is
    unknown, or if actions were scaled (``check_range``)."""
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


def downsample(
    file: SeparateArrays,
    factor: int,
    kind: str | None = None,
    commands: int = 1,
    workers: int | None = None,
) -> Edit:
    """Make one step of each ``factor`` steps, an interval.

    Observations and states are those of an interval's first step, next observations those of its
    last; rewards add up; it is done if one of its steps is. Left-over steps at the end of a
    demonstration form a shorter interval.

    kind: the kind of actions: ``absolute`` (the interval's last is taken) or ``delta`` (they add
        up, except the last ``commands`` numbers, of a gripper, which are the interval's last). By
        default the simulator's, which computes relative ones by recorded states, if any.
    """
    is_asked, computed = kind is None, None
    kind = known_kind(file, kind or simulated.input_type(file.env_args))
    if is_asked and kind == "delta" and file.has(file.demos()[0], "states"):
        make = simulated.interval_actions
        computed = simulated.simulate(file, make, file.env_args, factor, workers=workers)

    def change(file: SeparateArrays, demo: str) -> dict[str, Any]:
        trajectory, place = file.trajectory(demo), f"{file.path}: {file.root}{demo}"
        if others := [k for k in trajectory if k.startswith("action") and k != "actions"]:
            group = others[0].split("/")[0]
            raise ValueError(
                f"{place}/{others[0]} says of single steps what need not hold for several; leave "
                f"it out first: offrl edit rename {file.path} --drop {group} --output OUT"
            )
        actions = file.steps(demo, "actions")
        for key, rows in trajectory.items():
            if isinstance(rows, np.ndarray):
                file.check([demo], key, np.array([len(actions)]))
                trajectory[key] = slowed(key, rows, factor)
        if "fps" in trajectory:
            trajectory["fps"] = trajectory["fps"] / factor
        if computed is not None:
            trajectory["actions"] = next(computed)
        elif kind == "delta":
            trajectory["actions"] = summed(actions, factor, commands, place)
        return trajectory

    options, env_args = {"compression": compression(file)}, slower(file, factor)
    return of_files([file], env_args=env_args, change=change, options=options, computed=computed)


def slowed(key: str, rows: np.ndarray, factor: int) -> np.ndarray:
    """Downsample ``[T, ...]`` to ``[ceil(T / factor), ...]``; of actions take each interval's
    last."""
    begins = np.arange(0, len(rows), factor)
    if key == "rewards":
        return np.add.reduceat(rows, begins, dtype=np.float64)
    if key in SWITCHES:
        return np.maximum.reduceat(rows, begins)
    is_of_the_end = key == "actions" or key.startswith("next_obs/")
    return rows[np.minimum(begins + factor, len(rows)) - 1 if is_of_the_end else begins]


def summed(actions: np.ndarray, factor: int, num_commands: int, place: str) -> np.ndarray:
    """Sum relative actions ``[T, A]`` in intervals, ``[ceil(T / factor), A]``, except the last
    ``num_commands`` numbers. ``ValueError`` if a sum is beyond [-1, 1] and would be clipped."""
    if actions.ndim != 2 or actions.shape[1] <= num_commands:
        raise ValueError(
            f"{place}/actions ({list(actions.shape[1:])} at each step) are no relative motions and "
            f"{num_commands} commands; lower --commands, or say --kind absolute: the last one holds"
        )
    num_motions = actions.shape[1] - num_commands
    begins = np.arange(0, len(actions), factor)
    sums = np.add.reduceat(actions[:, :num_motions], begins, dtype=np.float64)
    single = np.maximum.reduceat(np.abs(actions[:, :num_motions]), begins)
    clipped = np.maximum(np.abs(sums), single).max(axis=1, initial=0) > 1
    if clipped.any():
        raise ValueError(
            f"{place}/actions add up to more than 1 from step {begins[clipped.argmax()]} on, which "
            "environments clip; where the simulator's states are recorded make them absolute "
            "first (offrl edit actions --absolute), else choose a smaller --factor"
        )
    return np.concatenate([sums, slowed("actions", actions, factor)[:, num_motions:]], axis=1)


def slower(file: SeparateArrays, factor: int) -> Mapping[str, Any] | None:
    """Return ``env_args`` with a ``control_freq`` that is ``factor`` times lower."""
    if (env_args := file.env_args) is None:
        return None
    kwargs = env_args.get("env_kwargs") or {}
    rate = kwargs.get("control_freq", CONTROL_FREQ if is_robosuite(env_args) else None)
    if rate is None:
        raise ValueError(
            f"{file.path}: {env_args.get('env_name')} has no control_freq in env_kwargs that could "
            "be lowered: the new actions could not be run in it"
        )
    if rate % factor:
        words = f"control_freq {rate} is no multiple of {factor}; choose another --factor"
        raise ValueError(f"{file.path}: {words}")
    return {**env_args, "env_kwargs": {**kwargs, "control_freq": rate // factor}}


def compression(file: SeparateArrays) -> str | None:
    """Return the compression of a file's arrays, by those of its first demonstration."""
    arrays = file.stored(file.demos()[0]).values()
    datasets = [array.dataset for array in arrays if isinstance(array, StoredArray)]
    found = {dataset.attrs.get("frames") or dataset.compression for dataset in datasets}
    # Images of one channel are PNG among JPEG, too.
    return "jpeg" if "jpeg" in found else next((k for k in COMPRESSIONS if k in found), None)
