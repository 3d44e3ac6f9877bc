"""Finds and opens files and folders of demonstrations in any layout."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import NamedTuple

import h5py

from offrl.config.files import find_file
from offrl.data.demos import Demos, Episodes
from offrl.data.formats.aloha import AlohaEpisodes, is_aloha
from offrl.data.formats.d4rl import D4RLFile, is_d4rl
from offrl.data.formats.hdf5 import DemoFile, located, open_unchecked
from offrl.data.formats.lerobot import LeRobotFolder, is_lerobot
from offrl.data.formats.maniskill import ManiSkillFile, is_maniskill
from offrl.data.formats.minari import MINARI, MinariEpisodes, minari_folder, read_minari
from offrl.data.formats.replay_buffer import ReplayBufferEpisodes, is_replay_buffer
from offrl.data.formats.robosuite import RobosuiteRaw, is_raw
from offrl.images import Form

log = logging.getLogger(__name__)

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


class Layout(NamedTuple):
    """A layout of demonstrations.

    mark: what a file or folder shows it by, in words.
    fits: says whether it is there, in a path and in the file there, if that is HDF5.
    demos: opens it to train on; the second argument is ``swmr``.
    episodes: opens it to read it episode by episode, where ``demos`` cannot.
    """

    name: str
    mark: str
    fits: Callable[[Path, h5py.File | None], bool]
    demos: Callable[[Path, bool], Demos]
    episodes: Callable[[Path], Episodes] | None = None


# The first that fits is taken.
LAYOUTS = (
    Layout(
        "LeRobot",
        "meta/info.json",
        lambda path, file: is_lerobot(path),
        lambda path, swmr: LeRobotFolder(path),
    ),
    Layout(
        "ACT and ALOHA",
        "episode_N.hdf5, or the group observations",
        is_aloha,
        lambda path, swmr: AlohaEpisodes(path),
    ),
    Layout(
        "Diffusion Policy",
        "meta/episode_ends, or .zgroup",
        lambda path, file: file is None and is_replay_buffer(path),
        lambda path, swmr: ReplayBufferEpisodes(path),
    ),
    Layout(
        "RLDS",
        "TFRecord files",
        lambda path, file: ".tfrecord" in path.name or any(path.glob("*.tfrecord*")),
        lambda path, swmr: _refuse_rlds(path),
    ),
    Layout(
        "Minari",
        "data/metadata.json",
        lambda path, file: (path / "data").is_dir(),
        lambda path, swmr: read_minari(path),
        MinariEpisodes,
    ),
    Layout(
        "robosuite's recording script",
        "the attribute env_info of data",
        lambda path, file: file is not None and is_raw(file),
        RobosuiteRaw,
    ),
    Layout(
        "ManiSkill",
        "groups traj_N",
        lambda path, file: file is not None and is_maniskill(file),
        ManiSkillFile,
    ),
    Layout(
        "D4RL",
        "observations",
        lambda path, file: file is not None and is_d4rl(file),
        D4RLFile,
    ),
    Layout("robomimic", "data", lambda path, file: True, DemoFile),
)


def recognise(path: Path, swmr: bool = False) -> Layout:
    """Find the layout of a file or folder by its marks, and log one other than robomimic's."""
    is_hdf5 = path.is_file() and h5py.is_hdf5(path)
    opened = open_unchecked(path, swmr) if is_hdf5 else nullcontext()
    with opened as file, located(path, "its list of groups"):
        layout = next(layout for layout in LAYOUTS if layout.fits(path, file))
    if layout is LAYOUTS[-1] and path.is_dir():
        data = "of data (meta/info.json, data/metadata.json, episode_N.hdf5, meta/episode_ends)"
        words = f"neither of a run (config-*.json) nor {data}; name a file in it, or another folder"
        raise ValueError(f"{path}: a folder, but {words}")
    if layout is not LAYOUTS[-1]:
        _say(path, layout.name, layout.mark)
    return layout


@cache  # once for each path
def _say(path: Path, name: str, mark: str) -> None:
    log.info(f"{path}: read in the layout of {name}, known by {mark}")


def _refuse_rlds(path: Path) -> Demos:
    remedy = "copy its steps with tensorflow_datasets and offrl.DemoWriter (docs/howto/own_data.md)"
    raise ValueError(
        f"{path}: TFRecord files (RLDS) are not read, which takes TensorFlow; {remedy}"
    )


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


def open_demos(
    path: str | Path, swmr: bool = False, images: Mapping[str, Sequence[Form]] | None = None
) -> Demos:
    """Open the demonstrations in a file or folder to train on. Raises ``ValueError`` or
    ``FileNotFoundError``.

    swmr: read also while another program is writing.
    images: the forms of images, by their keys, which are turned as they are read.
    """
    demos = recognise(Path(path), swmr).demos(Path(path), swmr)
    try:
        demos.turn(images or {})
    except ValueError:
        demos.close()
        raise
    return demos


def open_episodes(path: str | Path) -> Episodes:
    """Open the demonstrations in a file or folder of any format, to read them one by one."""
    layout = recognise(Path(path))
    return layout.episodes(Path(path)) if layout.episodes else layout.demos(Path(path), False)
