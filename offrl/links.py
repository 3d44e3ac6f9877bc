"""Files that data leads to, by links of the file system, of HDF5, or by names in it: what lies in
the folder of the data is read, all else only for a user who says so."""

import os
from pathlib import Path

FOLLOWED = "OFFRL_FOLLOW_LINKS"  # in the environment, which the processes of a command inherit


def inside(path: str | Path, *folders: str | Path, place: str) -> Path:
    """The file at the end of all links of ``path``, which need not be there.

    Raises ``ValueError`` for what is no regular file, and for a file in none of the ``folders``
    unless links are followed (``--follow-links``). place: what leads there, with its file.
    """
    found = Path(os.path.realpath(path))
    if found.exists() and not found.is_file():
        raise ValueError(f"{place} leads to {found}, which is no regular file; take it out")
    is_inside = any(found.is_relative_to(os.path.realpath(folder)) for folder in folders)
    if not is_inside and os.environ.get(FOLLOWED) != "1":
        raise ValueError(
            f"{place} leads to {found}, outside of {os.path.realpath(folders[0])}; copy that file "
            f"there, or, if you trust the data, give --follow-links (in Python: {FOLLOWED}=1)"
        )
    return found
