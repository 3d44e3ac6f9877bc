"""ManiSkill's layout (Tao et al., 2024, arXiv:2410.00425): an HDF5 file of groups ``traj_N`` with
``actions``, ``terminated``, ``truncated``, ``success``, ``rewards`` and ``obs``, JSON beside it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from offrl.data.arrays import Part, StepArray
from offrl.data.demos import numbers_of
from offrl.data.formats.hdf5 import located, open_array, open_hdf5
from offrl.data.separate import SeparateArrays
from offrl.links import text_in

ARRAYS = {
    "actions": "actions",
    "rewards": "rewards",
    "dones": "terminated",
    "timeouts": "truncated",
}
CAMERAS = ("sensor_data", "image")  # groups of them, of ManiSkill 3 and 2


class ManiSkillFile(SeparateArrays):
    """A file of trajectories.

    A trajectory has one observation more than steps: the first ``T`` are ``obs``, the last ``T``
    ``next_obs``. The names of groups and of what is in them are joined: ``obs/agent/qpos`` is
    ``obs/agent_qpos``. Cameras have ``CAMERA_image`` and ``CAMERA_depth``, and one vector of all is
    ``flat``. ``dones`` are ``terminated``, which also marks failures.
    """

    layout = "ManiSkill"

    def __init__(self, path: Path, swmr: bool = False):
        super().__init__()
        self.path = path
        self._file = open_hdf5(path, swmr)
        self.external = self._file.external
        self._keys: dict[str, dict[str, str]] = {}  # the places of arrays in each trajectory
        self._names = self._numbers_of = numbers_of(self._file, "traj_N", path)
        self._info, self._episodes = self._read_json()

    def close(self) -> None:
        super().close()
        self._file.close()

    def masks(self) -> dict[str, list[str]]:
        """Return the successful trajectories under ``success``, if there are some."""
        names = [demo for demo in self.demos() if self._success(demo)]
        return {"success": names} if names else {}

    def keys(self, demo: str) -> dict[str, str]:
        if demo not in self._keys:
            with located(self.path, f"{demo}: its list of arrays"):
                self._keys[demo] = dict(self._places(demo))
        return self._keys[demo]

    def lengths(self, demos: Any, key: str = "actions") -> np.ndarray:
        lengths = super().lengths(demos, key)
        for demo, length in zip(demos, lengths, strict=True):
            recorded = self._episodes.get(self._numbers_of[demo], {}).get("elapsed_steps", length)
            if key == "actions" and recorded != length:
                words = f"recorded with {recorded!r:.20} steps (elapsed_steps in its JSON)"
                raise ValueError(
                    f"{self.path}: {demo} was {words}, but has {length}; copy both files again"
                )
        return lengths

    def attributes(self, demo: str | None = None) -> dict[str, Any]:
        if demo is None:
            name = self._info.get("env_id")
            return {"env_id": name} if isinstance(name, str) else {}
        episode = self._episodes.get(self._numbers_of[demo], {})
        found = {"seed": episode.get("episode_seed"), "control_mode": episode.get("control_mode")}
        found["success"] = self._success(demo)
        return {key: value for key, value in found.items() if isinstance(value, (int, str))}

    def unread(self) -> list[str]:
        demo = self.demos()[0]
        read = {place.split("/")[1] for place in self.keys(demo).values()} | {"success"}
        return sorted({*self._file[demo]} - read - {"obs"})

    def _open(self, demo: str, key: str) -> StepArray:
        group, _, name = key.partition("/")
        if name and not any(k.startswith("obs/") for k in self.keys(demo)):
            remedy = "replay it by mani_skill.trajectory.replay_trajectory with --obs-mode state"
            raise ValueError(f"{self.path}: {demo} was recorded without observations; {remedy}")
        place = self.place_of(demo, key)
        array = open_array(self.path, self._file, place)
        self.external |= {(f"{demo}/{key}", other) for other in array.external}
        if not name:
            return array
        return Part(array, int(group == "next_obs"), max(0, len(array) - 1))

    def _places(self, demo: str) -> Iterator[tuple[str, str]]:
        group = self._file[demo]
        if not isinstance(group, h5py.Group):
            raise ValueError(f"{self.path}: {demo} is no group of arrays; take it out")
        yield from ((key, f"{demo}/{name}") for key, name in ARRAYS.items() if name in group)
        obs, names = group.get("obs"), dict[str, str]()
        if isinstance(obs, h5py.Dataset):
            names["flat"] = f"{demo}/obs"
        elif isinstance(obs, h5py.Group):
            paths: list[str] = []
            obs.visititems(lambda n, x: paths.append(n) if isinstance(x, h5py.Dataset) else None)
            for path in paths:
                other = names.setdefault(_name(path), f"{demo}/obs/{path}")
                if other != f"{demo}/obs/{path}":
                    words = f"{other} and {demo}/obs/{path} would have one name; rename one"
                    raise ValueError(f"{self.path}: {words}")
        for name, place in names.items():
            yield from ((f"{group}/{name}", place) for group in ("obs", "next_obs"))

    def _success(self, demo: str) -> bool | None:
        """Say whether a trajectory ends in success, by the JSON or else by its last step."""
        said = self._episodes.get(self._numbers_of[demo], {}).get("success")
        if isinstance(said, bool) or "success" not in self._file[demo]:
            return said if isinstance(said, bool) else None
        steps = open_array(self.path, self._file, f"{demo}/success").read()
        return bool(steps.size and steps.reshape(-1)[-1])

    def _read_json(self) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
        """Read what the JSON beside the file says of the environment, and of each episode by its
        number; nothing if there is none."""
        path = self.path.with_suffix(".json")
        if not path.exists():
            return {}, {}
        with located(path.parent, path.name):
            content = json.loads(text_in(path.parent, path.name))
        with located(path, "what it says of the episodes"):
            numbers = [episode["episode_id"] for episode in content["episodes"]]
            episodes = dict(zip(numbers, content["episodes"], strict=True))
            if len(episodes) < len(numbers):
                twice = next(n for n in episodes if numbers.count(n) > 1)
                raise ValueError(f"{path}: has two episodes {twice}; copy the file again")
            info = dict(content.get("env_info") or {})
        there = {*self._numbers_of.values()}
        for lacks, has, lacking in (
            (path, self.path, there - {*episodes}),
            (self.path, path, {*episodes} - there),
        ):
            if lacking:
                words = f"has no episode {min(lacking)}, but {has.name} has; copy both files again"
                raise ValueError(f"{lacks}: {words}")
        return info, episodes


def is_maniskill(file: h5py.File) -> bool:
    return any(name.startswith("traj_") for name in file)


def _name(path: str) -> str:
    """Name the observation at a path below ``obs``."""
    group, *parts = path.split("/")
    if group in CAMERAS and parts:
        return "_".join(["image" if part == "rgb" else part for part in parts])
    return "_".join([group, *parts])
