"""Demonstrations at a lower rate: each ``factor`` steps, an interval, become one.

Observations and states are those of an interval's first step, next observations those of its last;
rewards add up; it is done if one of its steps is. Steps that are left over at the end of a
demonstration are an interval of their own, so that nothing of its end is lost.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from offrl.data.formats.hdf5 import DemoFile
from offrl.data.storage import COMPRESSIONS, StoredArray  # those of frames first
from offrl.edits import simulated
from offrl.edits.edit import Edit, of_files
from offrl.edits.relabel import known_kind
from offrl.robomimic.configs import is_robosuite

DONE = ("dones", "terminals", "timeouts")
CONTROL_FREQ = 20  # Hz, of a robosuite task that names none


def downsample(
    file: DemoFile,
    factor: int,
    kind: str | None = None,
    commands: int = 1,
    workers: int | None = None,
) -> Edit:
    """Make one step of each ``factor`` steps.

    kind: of the actions: ``absolute``, of which an interval's last is taken, or ``delta``, which
        add up, but for the last ``commands`` numbers (of a gripper), which are the interval's last.
        By default the simulator says it, and where it knows the states, computes relative ones.
    """
    is_asked, computed = kind is None, None
    kind = known_kind(file, kind or simulated.input_type(file.env_args))
    if is_asked and kind == "delta" and file.has(file.demos()[0], "states"):
        make = simulated.interval_actions
        computed = simulated.simulate(file, make, file.env_args, factor, workers=workers)

    def change(file: DemoFile, demo: str) -> dict[str, Any]:
        trajectory, place = file.trajectory(demo), f"{file.path}: data/{demo}"
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
    """Turn an array ``[T, ...]`` of steps into one of intervals, ``[ceil(T / factor), ...]``; of
    actions it has the last ones."""
    begins = np.arange(0, len(rows), factor)
    if key == "rewards":
        return np.add.reduceat(rows, begins, dtype=np.float64)
    if key in DONE:
        return np.maximum.reduceat(rows, begins)
    is_of_the_end = key == "actions" or key.startswith("next_obs/")
    return rows[np.minimum(begins + factor, len(rows)) - 1 if is_of_the_end else begins]


def summed(actions: np.ndarray, factor: int, num_commands: int, place: str) -> np.ndarray:
    """Add up relative actions ``[T, A]`` in intervals, ``[ceil(T / factor), A]``, but for the last
    ``num_commands`` numbers. ``ValueError`` where a sum is beyond [-1, 1], and would be clipped."""
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


def slower(file: DemoFile, factor: int) -> Mapping[str, Any] | None:
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
        raise ValueError(
            f"{file.path}: control_freq {rate} divided by {factor} is no whole number; choose a "
            "--factor that divides it"
        )
    return {**env_args, "env_kwargs": {**kwargs, "control_freq": rate // factor}}


def compression(file: DemoFile) -> str | None:
    """Say how a file's arrays are compressed, by those of its first demonstration."""
    arrays = file.stored(file.demos()[0]).values()
    datasets = [array.dataset for array in arrays if isinstance(array, StoredArray)]
    found = {dataset.attrs.get("frames") or dataset.compression for dataset in datasets}
    # Images of one channel are PNG among JPEG, too.
    return "jpeg" if "jpeg" in found else next((k for k in COMPRESSIONS if k in found), None)
