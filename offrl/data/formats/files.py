"""Finds and opens files and folders of demonstrations in any layout."""

import json
from pathlib import Path
from typing import Any

from offrl.config.files import find_file
from offrl.data.demos import Demos, Episodes
from offrl.data.formats.d4rl import D4RLFile, is_d4rl
from offrl.data.formats.hdf5 import DemoFile, attributes_of_data, located, open_unchecked
from offrl.data.formats.lerobot import LeRobotFolder, is_lerobot
from offrl.data.formats.minari import MINARI, MinariEpisodes, minari_folder, read_minari

# The commands that make the data for configs/. A clone has the first two files; a wheel none.
MADE_BY = {
    "datasets/lift/low_dim.hdf5": "offrl collect --env Lift --n 200 --noise 0.1 "
    "--output datasets/lift/low_dim.hdf5",
    "datasets/lift/mixed.hdf5": "offrl collect --env Lift --n 150 --noise 0.5 1.0 1.5 2.0 "
    "--keep-failures --horizon 100 --output datasets/lift/mixed.hdf5",
    "datasets/lift/images.hdf5": "offrl images --dataset datasets/lift/low_dim.hdf5 --n 60 "
    "--cameras agentview robot0_eye_in_hand --output datasets/lift/images.hdf5",
    "datasets/metaworld/push.hdf5": "offrl collect --type metaworld --env push-v3 --n 50 "
    "--horizon 500 --env-kwargs '{\"reward_shaping\": true}' --output datasets/metaworld/push.hdf5",
    "datasets/metaworld/push_mixed.hdf5": "offrl collect --type metaworld --env push-v3 --n 30 "
    "--horizon 150 --noise 0.3 0.6 1.2 --keep-failures --output datasets/metaworld/push_mixed.hdf5",
    "datasets/metaworld/reach.hdf5": "offrl collect --type metaworld --env reach-v3 --n 50 "
    "--horizon 200 --output datasets/metaworld/reach.hdf5",
}
# Arguments of robosuite's recording script that ``env_info`` lacks.
RECORDED_WITH = {"ignore_done": True, "use_camera_obs": False, "control_freq": 20}
HEADLESS = {"has_renderer": False, "has_offscreen_renderer": False}


class RobosuiteRaw(DemoFile):
    """A file of robosuite's own recording script: demonstrations ``demo_1`` on with ``states``,
    ``actions`` and ``model_file``, and the attributes ``env`` and ``env_info`` of all of them."""

    layout = "robosuite's own"

    @property
    def env_args(self) -> dict[str, Any]:
        with located(self.path, "the attributes env and env_info of data"):
            attributes = self._file["data"].attrs
            info = json.loads(attributes["env_info"])
            kwargs = {**RECORDED_WITH, **info, **HEADLESS}
            kwargs.pop("env_name", None)
            return {
                "env_name": str(attributes["env"]),
                "env_version": str(attributes.get("repository_version", "")),
                "type": 1,
                "env_kwargs": kwargs,
            }


def is_raw(path: Path) -> bool:
    """Say whether an HDF5 file has the layout of robosuite's script."""
    with open_unchecked(path) as file, located(path, "data"):
        attributes = attributes_of_data(file)
        return "env_info" in attributes and "env_args" not in attributes


def find_data(path: str) -> Path:
    """Find the data of ``train.data.path``: a path, also below the clone, or ``minari:NAME``."""
    if path.startswith(MINARI):
        return minari_folder(path.removeprefix(MINARI))
    folder = Path(path).expanduser()
    return folder.resolve() if folder.is_dir() else find_data_file(path)


def find_data_file(path: str | Path) -> Path:
    """Find a file as ``find_file`` does; for one of ``MADE_BY``, the error names the command."""
    try:
        return find_file(path)
    except FileNotFoundError:
        command = MADE_BY.get(Path(path).as_posix())
        if command is None:
            raise
        raise FileNotFoundError(f"{path}: no such file here; make it with: {command}") from None


def open_demos(path: str | Path, swmr: bool = False) -> Demos:
    """Open the demonstrations in a file or folder to train on. Raises ``ValueError`` or
    ``FileNotFoundError``. swmr: read also while another program is writing."""
    path = Path(path)
    if path.is_dir():
        if is_lerobot(path):
            remedy = f"convert it with: offrl convert {path} demos.hdf5 --to robomimic"
            raise ValueError(f"{path}: is of LeRobot's layout, which is not trained on; {remedy}")
        return read_minari(path)
    return D4RLFile(path, swmr) if path.is_file() and is_d4rl(path) else DemoFile(path, swmr)


def open_episodes(path: str | Path) -> Episodes:
    """Open the demonstrations in a file or folder of any format, to read them one by one."""
    path = Path(path)
    if path.is_dir():
        return LeRobotFolder(path) if is_lerobot(path) else MinariEpisodes(path)
    if path.is_file() and is_raw(path):
        return RobosuiteRaw(path)
    return D4RLFile(path) if path.is_file() and is_d4rl(path) else DemoFile(path)
