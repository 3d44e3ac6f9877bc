"""What data is where: demonstrations in robomimic's layout, in D4RL's, in Minari's."""

from pathlib import Path

from offrl.config.files import find_file
from offrl.data.d4rl import D4RLFile, is_d4rl
from offrl.data.demos import Demos
from offrl.data.hdf5 import DemoFile
from offrl.data.minari import minari_folder, read_minari

MINARI = "minari:"


def find_data(path: str) -> Path:
    """The file or folder that ``train.data.path`` names, absolute; ``minari:NAME`` one of
    Minari's, as ``find_file`` any other."""
    if path.startswith(MINARI):
        return minari_folder(path.removeprefix(MINARI))
    folder = Path(path).expanduser()
    return folder.resolve() if folder.is_dir() else find_file(path)


def open_demos(path: str | Path, swmr: bool = False) -> Demos:
    """The demonstrations in a file or folder."""
    path = Path(path)
    if path.is_dir():
        return read_minari(path)
    return D4RLFile(path, swmr) if path.is_file() and is_d4rl(path) else DemoFile(path, swmr)
