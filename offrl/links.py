"""Files that data refers to by links of the file system or of HDF5, or by names in the data. Those
in the folder of the data are read; others only if the user allows it."""

import os
from pathlib import Path

from offrl.memory import check_memory

FOLLOWED = "OFFRL_FOLLOW_LINKS"  # environment variable, inherited by a command's processes
JSON_SIZE = 20  # times the bytes of JSON that it takes in memory


def inside(path: str | Path, *folders: str | Path, place: str) -> Path:
    """Resolve all links of ``path`` and return the file, which need not exist.

    Raises ``ValueError`` for anything but a regular file, and for a file in none of the
    ``folders``, unless the user follows links (``--follow-links``). In a hub's cache,
    ``snapshots/COMMIT`` may link to ``blobs``.

    place: the link and its file, for messages.
    """
    found = Path(os.path.realpath(path))
    if os.path.exists(found) and not found.is_file():
        raise ValueError(f"{place} leads to {found}, which is no regular file; take it out")
    allowed = [Path(os.path.realpath(folder)) for folder in folders]
    allowed += [_blobs(folder) for folder in allowed]
    is_inside = any(found.is_relative_to(folder) for folder in allowed)
    if not is_inside and os.environ.get(FOLLOWED) != "1":
        raise ValueError(
            f"{place} leads to {found}, outside of {os.path.realpath(folders[0])}; copy that file "
            f"there, or, if you trust the data, give --follow-links (in Python: {FOLLOWED}=1)"
        )
    return found


def file_in(folder: Path, name: str) -> Path:
    """Find a file of a folder, as ``inside`` does."""
    return inside(folder / name, folder, place=f"{folder}: {name}")


def text_in(folder: Path, name: str) -> str:
    """Read a file of JSON in a folder; ``ValueError`` also if it does not fit into memory."""
    path = file_in(folder, name)
    check_memory(JSON_SIZE * path.stat().st_size, f"{folder}: {name}")
    return path.read_text(encoding="utf-8")


def _blobs(folder: Path) -> Path:
    """Return the folder of a hub's cache that has the content of its files, or else ``folder``."""
    for commit in (folder, *folder.parents):
        if commit.parent.name == "snapshots":
            return commit.parents[1] / "blobs"
    return folder
