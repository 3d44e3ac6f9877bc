"""Minari's datasets, read by the package minari."""

from pathlib import Path
from typing import Any

import numpy as np

from offrl.data.demos import DemoArrays
from offrl.data.hdf5 import located


def minari_folder(name: str) -> Path:
    """Where Minari keeps a dataset, e.g. ``mujoco/hopper/medium-v0``."""
    try:
        return Path(_import().load_dataset(name).storage.data_path).resolve().parent
    except FileNotFoundError:
        raise FileNotFoundError(
            f"minari:{name}: not among Minari's datasets here; run: minari download {name}"
        ) from None


def read_minari(folder: Path) -> DemoArrays:
    """The episodes in a dataset's folder as demonstrations, in memory.

    An observation that is no dict is ``flat``; of a dict the arrays are taken. ``dones`` are the
    terminations; the observations have one row more than there are steps, so that each step has its
    ``next_obs``.
    """
    minari = _import()
    try:
        dataset = minari.MinariDataset(folder / "data")
    except (FileNotFoundError, ValueError) as error:
        raise ValueError(f"{folder}: a folder, but not of a Minari dataset ({error})") from None
    columns: dict[str, list[np.ndarray]] = {}
    with located(folder, "its episodes"):
        episodes = list(dataset.iterate_episodes())
    for number, episode in enumerate(episodes):
        if not isinstance(episode.actions, np.ndarray):
            raise ValueError(f"{folder}: actions are {dataset.action_space}; vectors are needed")
        rows = {"actions": episode.actions, "rewards": episode.rewards}
        rows["dones"] = episode.terminations.astype(np.float32)
        obs = episode.observations
        for key, values in (obs if isinstance(obs, dict) else {"flat": obs}).items():
            if isinstance(values, np.ndarray):
                rows |= {f"obs/{key}": values[:-1], f"next_obs/{key}": values[1:]}
        if len({len(values) for values in rows.values()}) > 1:
            raise ValueError(f"{folder}: episode {number} has arrays of unequal lengths")
        for key, values in rows.items():
            columns.setdefault(key, []).append(values)
    lengths = np.array([len(rows) for rows in columns["rewards"]])
    arrays = {key: np.concatenate(parts) for key, parts in columns.items()}
    demos, spec = DemoArrays(folder, arrays, lengths), dataset.env_spec
    if spec is not None:
        limit = {"max_episode_steps": spec.max_episode_steps} if spec.max_episode_steps else {}
        demos.env_args = {"env_name": spec.id, "type": 2, "env_kwargs": spec.kwargs | limit}
    return demos


def _import() -> Any:
    try:
        import minari
    except ModuleNotFoundError as error:
        raise ImportError(f"Minari is missing ({error}); pip install 'offrl[minari]'") from None
    return minari
