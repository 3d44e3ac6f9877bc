"""What data is where: demonstrations in robomimic's layout, in D4RL's, in Minari's, in LeRobot's,
and as robosuite's own script records them."""

from pathlib import Path

from offrl.config.files import find_file
from offrl.data.d4rl import D4RLFile, is_d4rl
from offrl.data.demos import Demos, Episodes
from offrl.data.hdf5 import DemoFile
from offrl.data.lerobot import LeRobotFolder, is_lerobot
from offrl.data.minari import MINARI, MinariEpisodes, minari_folder, read_minari
from offrl.data.robosuite_raw import RobosuiteRaw, is_raw


def find_data(path: str) -> Path:
    """The file or folder that ``train.data.path`` names, absolute; ``minari:NAME`` one of
    Minari's, as ``find_file`` any other."""
    if path.startswith(MINARI):
        return minari_folder(path.removeprefix(MINARI))
    folder = Path(path).expanduser()
    return folder.resolve() if folder.is_dir() else find_file(path)


def open_demos(path: str | Path, swmr: bool = False) -> Demos:
    """The demonstrations in a file or folder, to train on."""
    path = Path(path)
    if path.is_dir():
        if is_lerobot(path):
            raise ValueError(
                f"{path}: is of LeRobot's layout, which is not trained on; convert it with: "
                f"offrl convert {path} demos.hdf5 --to robomimic"
            )
        return read_minari(path)
    return D4RLFile(path, swmr) if path.is_file() and is_d4rl(path) else DemoFile(path, swmr)


def open_episodes(path: str | Path) -> Episodes:
    """The demonstrations in a file or folder of any kind, to read them one after the other."""
    path = Path(path)
    if path.is_dir():
        return LeRobotFolder(path) if is_lerobot(path) else MinariEpisodes(path)
    if path.is_file() and is_raw(path):
        return RobosuiteRaw(path)
    return D4RLFile(path) if path.is_file() and is_d4rl(path) else DemoFile(path)
