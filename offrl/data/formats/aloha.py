"""ACT's and ALOHA's layout (Zhao et al., 2023, arXiv:2304.13705): HDF5 files of an episode each,
``{action, observations/{qpos, qvel, effort, images/CAMERA}}``.

Images are uint8 ``[T, H, W, 3]``, or, compressed, rows of JPEG files that are padded with zeros.
"""

import io
import math
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from offrl.data.arrays import StepArray
from offrl.data.demos import numbers_of
from offrl.data.formats.hdf5 import CheckedFile, located, open_array, open_hdf5
from offrl.data.recent import Recent
from offrl.data.separate import SeparateArrays
from offrl.data.storage import StoredArray, decode_image
from offrl.links import file_in
from offrl.memory import check_memory

MOST_FILES = 128  # that stay open: a process may have a thousand
IMAGES = "observations/images"


class AlohaEpisodes(SeparateArrays):
    """The episodes in a folder of files ``episode_N.hdf5``, or the one in such a file.

    ``actions`` are ``action``; observations have the names that they have there, and those of
    cameras are ``obs/CAMERA_image``.
    """

    layout = "ALOHA"

    def __init__(self, path: Path):
        super().__init__()
        self.path = path
        self._paths = _episodes_in(path) if path.is_dir() else {_name(path): path}
        self._names = self._paths
        self._files: Recent[CheckedFile] = Recent(MOST_FILES, dropped=self._close_file)
        self._keys: dict[str, dict[str, str]] = {}  # the places of arrays in each file

    def close(self) -> None:
        super().close()
        self._files.clear()

    def keys(self, demo: str) -> dict[str, str]:
        if demo not in self._keys:
            with located(self._paths[demo], "its list of arrays"):
                self._keys[demo] = _places(self._file(demo))
        return self._keys[demo]

    def attributes(self, demo: str | None = None) -> dict[str, Any]:
        if demo is None:
            return {}
        with located(self._paths[demo], "its attributes"):
            kept = (str, bool, int, float, np.generic)
            found = self._file(demo).attrs.items()
            return {k: v for k, v in found if isinstance(v, kept) and k != "compress"}

    def unread(self) -> list[str]:
        demo = self.demos()[0]
        read = {place.split("/")[0] for place in self.keys(demo).values()}
        return sorted({*self._file(demo)} - read - {"compress_len"})

    def _open(self, demo: str, key: str) -> StepArray:
        place, path, file = self.place_of(demo, key), self._paths[demo], self._file(demo)
        array = open_array(path, file, place)
        self.external |= {(f"{demo}/{key}", other) for other in array.external}
        is_packed = place.startswith(IMAGES) and len(array.shape) == 2 and array.dtype == np.uint8
        return _Jpegs(array, f"{path}: {place}") if is_packed else array

    def _file(self, demo: str) -> CheckedFile:
        return self._files.get(demo, lambda: self._open_file(demo))

    def _open_file(self, demo: str) -> CheckedFile:
        path = self._paths[demo]
        if self.path.is_dir():
            path = file_in(self.path, path.name)
        file = open_hdf5(path)
        self.external |= file.external
        return file

    def _close_file(self, demo: str, file: CheckedFile) -> None:
        for key in self._keys.get(demo, ()):
            self._opened.discard((demo, key))
        file.close()


class _Jpegs(StepArray):
    """Images ``[T, H, W, 3]`` in rows of JPEG files, in the channel order in which they were given
    to OpenCV, which encoded them.

    ALOHA gives RGB, as its cameras do, but OpenCV takes it for BGR. So red and blue are swapped in
    the files, and OpenCV, by which ACT decodes them, swaps them back.
    """

    def __init__(self, files: StoredArray, place: str):
        from PIL import Image

        self._files, self._place, self.dtype = files, place, files.dtype
        with (
            located(place, "the first image"),
            Image.open(io.BytesIO(files.rows(0, 1).tobytes())) as image,
        ):
            self.shape = (len(files), image.height, image.width, 3)
        check_memory(math.prod(self.shape[1:]), f"{place}: an image")

    @property
    def bytes_on_disk(self) -> int:
        return self._files.bytes_on_disk

    @property
    def storage(self) -> str:
        return "jpeg files"

    def rows(self, start: int, stop: int) -> np.ndarray:
        images = np.empty((stop - start, *self.shape[1:]), np.uint8)
        for i, file in enumerate(self._files.rows(start, stop)):
            with located(self._place, f"the image of step {start + i}"):
                decode_image(file, images[i])
        return images[..., ::-1]


def _episodes_in(folder: Path) -> dict[str, Path]:
    """List the files of episodes in a folder by their names, in the order of their numbers."""
    names = sorted(path.name for path in folder.glob("*.hdf5"))
    return {Path(n).stem: folder / n for n in numbers_of(names, "episode_N.hdf5", folder)}


def is_aloha(path: Path, file: h5py.File | None) -> bool:
    """Say whether a folder has files of episodes, or a file is one."""
    if file is None:
        return path.is_dir() and any(path.glob("episode_*.hdf5"))
    return isinstance(file.get("observations"), h5py.Group)  # of D4RL it is an array


def _name(path: Path) -> str:
    return path.stem if re.fullmatch(r"episode_\d{1,9}", path.stem) else "episode_0"


def _places(file: h5py.File) -> dict[str, str]:
    """Return the places of the arrays in a file, by their keys."""
    found = {"actions": "action", "base_action": "base_action"}
    found = {key: place for key, place in found.items() if place in file}
    for group, suffix in (("observations", ""), (IMAGES, "_image")):
        for name in file.get(group, ()):
            if file[group].get(name, getclass=True) is h5py.Dataset:
                end = "" if name.endswith(("_image", "_depth")) else suffix
                found[f"obs/{name}{end}"] = f"{group}/{name}"
    return found
